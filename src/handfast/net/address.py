"""Where a server is, and how to get a socket to it."""

from __future__ import annotations

import encodings.idna  # noqa: F401
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from handfast.core.handshake import Login
from handfast.core.io import Fault

if TYPE_CHECKING:
    import ssl

__all__ = ["TLS_SILENT", "Address", "HostPort", "Resolver", "dial"]

# `encodings.idna` is imported above because `getaddrinfo` and `ssl` import it at the first host name. A fork during that
# import leaves its lock to a thread that does not exist in the child: every connection that the child makes would hang.

HostPort = tuple[str, int]
"""Host and port."""
TLS_SILENT: Final = Fault(
    "closed", "did not answer the TLS handshake in time; if its port has no TLS, use redis:// and not rediss://"
)
"""A server without TLS takes the start of a TLS handshake for half a command, and waits for the rest."""


class Resolver(Protocol):
    """Knows where a server is that may move from one machine to another: a master under Sentinel, a cluster's shard."""

    def find(self) -> HostPort:
        """Where it is now. Asks whom it must, so it may take time."""
        ...

    def opened(self, connection: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """There is a connection to it now, to be hung up when it is known to be somewhere else; from any thread."""

    def on_redirect(self, host_port: HostPort, fault: Fault) -> tuple[int, HostPort, bool] | None:
        """A server has refused a request. If it says where that belongs: the slot, its place, and whether only for this
        once, because the slot is just being moved there."""
        ...


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
    resolver: Resolver | None = None
    """Where to look for it before each connection, instead of host and port; takes time as well."""
    cluster: Any = None
    """The discovery.cluster.Cluster that it is, of which each name has its own node."""

    def __repr__(self) -> str:
        return f"<Address {self.label}>"

    def login(self) -> Login:
        username, password = self.credentials() if self.credentials is not None else (self.username, self.password)
        return Login(username, password, self.db, self.client_name)

    @property
    def host_port(self) -> HostPort:
        return self.host, self.port

    def located(self) -> Address:
        """With host and port of where it is at present."""
        if self.prepare is not None:
            self.prepare()
        if self.resolver is None:
            return self
        host, port = self.resolver.find()
        return self._replace(host=host, port=port)

    def says(self, fault: Fault) -> Fault:
        """A fault of what its label names; where that may be one of several machines, with the one it is of."""
        if self.tls is not None and fault.kind == "timeout":
            fault = Fault(fault.kind, TLS_SILENT.text)
        if self.resolver is None or not self.host:
            return fault
        where = f"[{self.host}]" if ":" in self.host else self.host
        return Fault(fault.kind, f"{where}:{self.port} {fault.text}", lasting=fault.lasting)


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
