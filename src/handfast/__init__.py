"""handfast: a distributed lock on Redis and Valkey; one node or a quorum, threads or asyncio.

`sync` and `aio` are the two facades; `_client` and `_lease` are what they share. Both run the algorithms of `core`, which
do no I/O, over the connections of `net`. `protocol` has the bytes and the Lua scripts, `watchdog` renews leases,
`discovery` finds the servers, and `embedded` starts servers on demand. `fenced` checks tokens. `operate`, `cli`,
`dashboard` and `observe` are for operators, and `testing` is the test kit. docs/architecture.md explains how they work
together.
"""

from __future__ import annotations

from handfast import _startup  # isort: skip  # noqa: F401 - before all others
import os
import sys
from typing import TYPE_CHECKING, Any

if not hasattr(os, "register_at_fork"):
    raise ImportError("handfast needs a Unix system, such as Linux or macOS: it uses poll(), unix sockets and fork()")

from handfast import backoff
from handfast.core.inspect import Holder
from handfast.errors import (
    ConfigError,
    Contended,
    HandfastError,
    LeaseLost,
    NoQuorum,
    NotAcquired,
    StaleToken,
)
from handfast.events import Event
from handfast.sync import Client, Lease, Lock, bootstrap, connect, from_client, lock

__version__ = "0.1.0"

__all__ = [
    "Client",
    "ConfigError",
    "Contended",
    "Event",
    "HandfastError",
    "Holder",
    "Lease",
    "LeaseLost",
    "Lock",
    "NoQuorum",
    "NotAcquired",
    "StaleToken",
    "__version__",
    "aio",
    "backoff",
    "bootstrap",
    "connect",
    "from_client",
    "lock",
]

if TYPE_CHECKING:
    import handfast.aio as aio
else:
    # Hidden from type checkers: otherwise they would accept every attribute, even a misspelt one.
    def __getattr__(name: str) -> Any:
        # asyncio takes longer to import than all the rest, and many programs do not need it.
        if name == "aio":
            import importlib

            return importlib.import_module("handfast.aio")
        # With `name` and `obj`, a traceback also suggests the name that was meant.
        raise AttributeError(f"module 'handfast' has no attribute {name!r}", name=name, obj=sys.modules[__name__])
