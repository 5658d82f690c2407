"""Reserves TCP ports, also while their server is down.

A reserved port has a socket that is bound to it and never listens. Clients find the port closed, and the system gives it
to no other program.
"""

from __future__ import annotations

import socket
from typing import Final

__all__ = ["LOOPBACK", "reserve_port", "reserve_with_bus"]

LOOPBACK: Final = "127.0.0.1"
BUS: Final = 10000
"""The distance from a cluster node's port to the port of its cluster bus."""


def reserve_port(port: int = 0) -> socket.socket:
    """Return a socket that is bound to this port, or to a free one. On Linux a server can still listen on the port."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        reserved.bind((LOOPBACK, port))
    except OSError:
        reserved.close()
        raise
    # Only after the bind: otherwise two processes could get the same port.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved


def reserve_with_bus() -> list[socket.socket]:
    """Reserve a port and the port of its cluster bus."""
    passed_over: list[socket.socket] = []
    try:
        while True:
            reserved = reserve_port()
            port = reserved.getsockname()[1]
            try:
                if port + BUS < 65536:
                    return [reserved, reserve_port(port + BUS)]
            except OSError:
                pass  # another program has the bus port
            passed_over.append(reserved)  # keep it, or the system might offer the same port for ever
    finally:
        for reserved in passed_over:
            reserved.close()
