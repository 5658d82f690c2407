"""The address of a server, and how to connect a socket to it."""

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

# `getaddrinfo` and `ssl` import `encodings.idna` at the first host name. If the process forks during that import, the
# child inherits an import lock that no thread of its own holds, and its first connection hangs. So import it here.

HostPort = tuple[str, int]
"""Host and port."""
TLS_SILENT: Final = Fault(
    "closed", "did not answer the TLS handshake in time; if its port has no TLS, use redis:// and not rediss://"
)
"""The fault of a silent TLS handshake. A server without TLS takes its start for half a command and waits for the rest."""


class Resolver(Protocol):
    """Finds a server that may move to another machine: a master under Sentinel, or a shard of a cluster."""

    def find(self) -> HostPort:
        """The server's present address. This may ask other servers, so it may block."""
        ...

    def opened(self, connection: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """Register a connection. When the server moves, `hang_up(connection)` is called, from any thread."""

    def when_moved(self, call: Callable[[], None]) -> None:
        """Have `call()` called, from any thread, when the server has moved and its connections are hung up."""

    def on_redirect(self, host_port: HostPort, fault: Fault) -> tuple[int, HostPort, bool] | None:
        """Read a refusal. If it is a redirect, return the slot, the node's address, and whether it is good for one
        request only, because the slot is being moved (ASK)."""
        ...


class Address(NamedTuple):
    """A server's address and how to log in. Messages show `label`, which never contains a password."""

    label: str
    host: str = ""
    port: int = 6379
    path: str = ""
    """The path of a unix socket, instead of host and port."""
    username: str = ""
    password: str = ""
    db: int = 0
    client_name: str = "handfast"
    tls: Callable[[], ssl.SSLContext] | None = None
    """Returns the TLS context. It is made when first needed: reading certificates takes milliseconds."""
    credentials: Callable[[], tuple[str, str]] | None = None
    """Returns user name and password for each new connection, for passwords that change."""
    prepare: Callable[[], None] | None = None
    """Called before each new connection. It may block, so never on an event loop's thread."""
    resolver: Resolver | None = None
    """Finds host and port before each new connection. It may block as well."""
    cluster: Any = None
    """The `discovery.cluster.Cluster`, if this is the address of a cluster."""

    def __repr__(self) -> str:
        return f"<Address {self.label}>"

    def login(self) -> Login:
        username, password = self.credentials() if self.credentials is not None else (self.username, self.password)
        return Login(username, password, self.db, self.client_name)

    @property
    def host_port(self) -> HostPort:
        return self.host, self.port

    def located(self) -> Address:
        """Prepare the server and return its address with the present host and port. May block."""
        if self.prepare is not None:
            self.prepare()
        if self.resolver is None:
            return self
        host, port = self.resolver.find()
        return self._replace(host=host, port=port)

    def says(self, fault: Fault) -> Fault:
        """The fault as messages show it: with host and port, if the label alone does not name the machine."""
        if self.tls is not None and fault.kind == "timeout":
            fault = Fault(fault.kind, TLS_SILENT.text)
        if self.resolver is None or not self.host:
            return fault
        where = f"[{self.host}]" if ":" in self.host else self.host
        return Fault(fault.kind, f"{where}:{self.port} {fault.text}", lasting=fault.lasting)


def dial(address: Address, timeout: float) -> socket.socket:
    """Return a connected socket after the TLS handshake, with `timeout` as its timeout."""
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
