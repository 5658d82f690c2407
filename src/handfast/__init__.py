"""handfast: a distributed lock on Redis and Valkey; one node or a quorum, threads or asyncio.

General layout. `sync` and `aio` are the two facades; both run the algorithms of `core`, which do no I/O. `protocol` is
what is sent, `net` holds the connections, `watchdog` renews what is held, `discovery` finds the servers, `embedded` runs
some. `operate` and `cli` are for operators, `testing` is for our tests and yours.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if not hasattr(os, "register_at_fork"):
    raise ImportError("handfast needs a Unix system, such as Linux or macOS: it uses poll(), unix sockets and fork()")

from handfast import (
    _startup,  # noqa: F401 - the first of all
    backoff,
)
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
    # Not for type checkers: they would take it to mean that the package has every attribute, also a misspelt one.
    def __getattr__(name: str) -> Any:
        # asyncio takes longer to import than all the rest; a program without it does not wait for it.
        if name == "aio":
            import importlib

            return importlib.import_module("handfast.aio")
        raise AttributeError(f"module 'handfast' has no attribute {name!r}")
