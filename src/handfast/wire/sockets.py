"""Blocking sockets: their time limits, the handshake over them, and their end."""

from __future__ import annotations

import socket
import time

from handfast.core.effects import CLOSED
from handfast.wire.channel import Channel
from handfast.wire.link import CONNECT_TIMEOUT

__all__ = ["converse", "hang_up"]


def hang_up(sock: socket.socket) -> None:
    """From any thread: whoever uses the connection finds it closed."""
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)  # not an SSLSocket's own, which is for the thread that uses it
    except OSError:
        pass  # it is closed already


def converse(sock: socket.socket, channel: Channel, *, blocking: bool) -> None:
    """The handshake; ends with the channel ready or at fault, and the socket as it is to be used (see Link.flags)."""
    end = time.monotonic() + CONNECT_TIMEOUT
    while not channel.ready and channel.fault is None:
        sock.settimeout(max(0.001, end - time.monotonic()))
        if channel.out:
            sock.sendall(b"".join(channel.out))
            channel.out.clear()
        data = sock.recv(65536)
        if not data:
            channel.fail(CLOSED)
        channel.feed(data)
    sock.setblocking(blocking)
