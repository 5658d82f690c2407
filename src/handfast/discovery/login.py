"""Logs in to a server that is asked for addresses, and reads its replies.

The login and the questions behind it leave in one write. The server may be far away, and each round trip takes a share of
the time that a search has. The greeting of a client library (HELLO, CLIENT SETINFO) would take three more.
"""

from __future__ import annotations

import time
from typing import Any, Final

import hiredis

from handfast.core.handshake import Rejected
from handfast.core.io import CLOSED, Fault
from handfast.net.address import Address, dial
from handfast.net.faults import from_reply, from_socket
from handfast.protocol.resp import encode

__all__ = ["CHUNK", "Replies", "login_fault"]

CHUNK: Final = 65536
LONGEST: Final = 1 << 20
"""Bytes. A longer reply is no answer to these questions, and would take as much memory as the server likes."""
_NOTHING: Final = object()


class Replies:
    """The replies on one connection, which begins with the login. No I/O here."""

    def __init__(self, address: Address) -> None:
        login = address.login()
        words = (b"AUTH", (login.username or "default").encode(), login.password.encode())
        self.login = encode(*words) if login.username or login.password else b""
        """The bytes to send first; empty if the server is used without a password."""
        self._logging_in = bool(self.login)
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._unread = 0
        """Bytes since the last complete reply."""

    def read(self, data: bytes) -> list[Any]:
        """The replies that are complete with this data, without the login's. Raises `Rejected` for an error reply, and
        ConnectionResetError at the end of the connection."""
        if not data:
            raise ConnectionResetError(CLOSED.text)
        self._unread += len(data)
        if self._unread > LONGEST:
            raise hiredis.ProtocolError(f"a reply of more than {LONGEST} bytes")
        self._reader.feed(data)
        replies: list[Any] = []
        while (reply := self._reader.gets()) is not _NOTHING:
            self._unread = 0
            if isinstance(reply, hiredis.ReplyError):
                raise Rejected(from_reply(str(reply)))
            if self._logging_in:
                self._logging_in = False
            else:
                replies.append(reply)
        return replies


def login_fault(address: Address, within: float) -> Fault | None:
    """Log in and send PING. Returns the fault, if there is one."""
    end = time.monotonic() + within
    try:
        replies = Replies(address)
        with dial(address, within) as sock:
            sock.sendall(replies.login + encode(b"PING"))
            while True:
                if replies.read(sock.recv(CHUNK)):
                    return None
                sock.settimeout(max(0.001, end - time.monotonic()))
    except Exception as error:
        return from_socket(error)
