"""Blocking sockets: their time limits, the handshake over them, and their end."""

from __future__ import annotations

import socket
import time

from handfast.core.io import CLOSED
from handfast.net.connection import Connection
from handfast.net.link import CONNECT_TIMEOUT

__all__ = ["converse", "hang_up"]


def hang_up(sock: socket.socket) -> None:
    """Shut a connection down, from any thread. The thread that uses it finds it closed."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # SSLSocket.shutdown breaks the thread that reads
    except OSError:
        pass  # the socket is closed already


def converse(sock: socket.socket, connection: Connection, *, blocking: bool) -> None:
    """Shake hands. Afterwards the connection is ready or has a fault, and the socket is ready (see ThreadLink.flags)."""
    end = time.monotonic() + CONNECT_TIMEOUT
    while not connection.ready and connection.fault is None:
        sock.settimeout(max(0.001, end - time.monotonic()))
        if connection.out:
            sock.sendall(connection.take())
        data = sock.recv(65536)
        if not data:
            connection.fail(CLOSED)
        connection.feed(data)
    sock.setblocking(blocking)
