"""Where a server is, and how to get a socket to it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from handfast.core.handshake import Login

if TYPE_CHECKING:
    import ssl

__all__ = ["Address", "dial"]


class Address(NamedTuple):
    """A server's address and the way in. `label` is what people see: never a password."""

    label: str
    host: str = ""
    port: int = 6379
    path: str = ""
    """A unix socket, instead of host and port."""
    username: str = ""
    password: str = ""
    db: int = 0
    client_name: str = "handfast"
    tls: Callable[[], ssl.SSLContext] | None = None
    """Makes the TLS context when first needed: reading certificates takes milliseconds."""
    credentials: Callable[[], tuple[str, str]] | None = None
    """Asked with each connection, where passwords change."""
    prepare: Callable[[], None] | None = None
    """Run before each connection is made; it may take time, so never on an event loop's thread."""

    def __repr__(self) -> str:
        return f"<Address {self.label}>"

    def login(self) -> Login:
        username, password = self.credentials() if self.credentials is not None else (self.username, self.password)
        return Login(username, password, self.db, self.client_name)


def dial(address: Address, timeout: float) -> socket.socket:
    """A connected socket, TLS done, with `timeout` as its timeout."""
    if address.path:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(address.path)
        except BaseException:
            sock.close()
            raise
        return sock
    sock = socket.create_connection((address.host, address.port), timeout=timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if address.tls is not None:
            return address.tls().wrap_socket(sock, server_hostname=address.host)
    except BaseException:
        sock.close()
        raise
    return sock
