"""Blocking sockets: their time limits, the handshake over them, and their end."""

from __future__ import annotations

import socket
import time

from handfast.core.io import CLOSED
from handfast.net.connection import Connection
from handfast.net.link import CONNECT_TIMEOUT

__all__ = ["converse", "hang_up"]


def hang_up(sock: socket.socket) -> None:
    """From any thread: whoever uses the connection finds it closed."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not an SSLSocket's own, which is for the thread that uses it
    except OSError:
        pass  # it is closed already


def converse(sock: socket.socket, connection: Connection, *, blocking: bool) -> None:
    """The handshake; ends with the connection ready or at fault, and the socket ready for use (see ThreadLink.flags)."""
    end = time.monotonic() + CONNECT_TIMEOUT
    while not connection.ready and connection.fault is None:
        sock.settimeout(max(0.001, end - time.monotonic()))
        if connection.out:
            sock.sendall(b"".join(connection.out))
            connection.out.clear()
        data = sock.recv(65536)
        if not data:
            connection.fail(CLOSED)
        connection.feed(data)
    sock.setblocking(blocking)
