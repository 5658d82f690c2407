"""TCP ports that are nobody else's, also while the server that they are for is down.

A port is reserved by a socket that is bound to it and never listens: a client finds the port closed, and nobody else is
given it.
"""

from __future__ import annotations

import socket
from typing import Final

__all__ = ["LOOPBACK", "reserve_port", "reserve_with_bus"]

LOOPBACK: Final = "127.0.0.1"
BUS: Final = 10000
"""So far from a cluster node's port is the one at which other nodes meet it."""


def reserve_port(port: int = 0) -> socket.socket:
    """A socket bound to this port, or to a free one. On Linux a server can listen there as long as this one does not."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.bind((LOOPBACK, port))
    except OSError:
        reserved.close()
        raise
    # After the bind: before it, two processes could be given the same port.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved


def reserve_with_bus() -> list[socket.socket]:
    """A port and that of its cluster bus."""
    passed_over: list[socket.socket] = []
    try:
        while True:
            reserved = reserve_port()
            port = reserved.getsockname()[1]
            try:
                if port + BUS < 65536:
                    return [reserved, reserve_port(port + BUS)]
            except OSError:
                pass  # somebody has the bus port
            passed_over.append(reserved)  # kept until we are done, or we might be given the same one for ever
    finally:
        for reserved in passed_over:
            reserved.close()
