"""The client of a command, and the deployment that a command reads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from handfast.cli.declare import servers
from handfast.sync import Client, connect

if TYPE_CHECKING:
    from handfast.operate.servers import Deployment

__all__ = ["deployment", "quiet_client"]


def quiet_client(options: Any, **settings: Any) -> Client:
    """A client for the servers of the command line. Its log is silent, because the command reports errors."""
    client = connect(servers(options), prefix=options.prefix, **settings)
    client._group.bootstrap_call = "handfast bootstrap"
    if not os.environ.get("HANDFAST_DEBUG"):
        import logging

        logging.getLogger("handfast").setLevel(logging.CRITICAL)
    return client


def deployment(options: Any) -> Deployment:
    """The servers of the command line, for reading."""
    from handfast.operate.servers import Deployment

    return Deployment(servers(options), prefix=options.prefix)
