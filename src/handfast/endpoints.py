"""From what the user gave to the addresses of servers: URLs, the environment, servers of our own, redis-py clients."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from handfast import log
from handfast.errors import ConfigError
from handfast.urls import distinct, parse, tls_context
from handfast.wire.dial import Address

if TYPE_CHECKING:
    from pathlib import Path

    from handfast.topology.embedded import Embedded

__all__ = ["Endpoints", "from_redis", "locate"]


class Endpoints:
    """The servers of one client."""

    def __init__(self, addresses: Sequence[Address], embedded: Embedded | None = None) -> None:
        distinct(addresses)
        self.addresses = list(addresses)
        self.open_new: Callable[[Sequence[Address]], None] = lambda addresses: None
        """Told of embedded servers that are known to be new, before anybody else can see them."""
        self._embedded = embedded

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.close()


def locate(servers: object) -> Endpoints:
    """Where the servers are: as given, else by $HANDFAST_URL, else embedded ones."""
    if servers is None:
        servers = os.environ.get("HANDFAST_URL", "").split()
        if not servers:
            log.warning("no server was named, so embedded:// is used: it excludes on this machine alone")
            servers = ["embedded://"]
    if isinstance(servers, str):
        servers = [servers]
    if not isinstance(servers, (list, tuple)):
        raise ConfigError(f"connect() takes a URL or a list of URLs, not a {type(servers).__name__}")
    servers = list(servers)
    if not servers:
        raise ConfigError("connect() was given an empty list of servers")
    if any(isinstance(url, str) and url.strip().startswith("embedded:") for url in servers):
        if len(servers) > 1:
            raise ConfigError("embedded:// stands alone; use embedded://?nodes=5 for an embedded quorum")
        return _embedded(servers[0].strip())
    return Endpoints([parse(url) for url in servers])


def _embedded(url: str) -> Endpoints:
    from pathlib import Path
    from urllib.parse import parse_qsl, urlsplit

    from handfast.topology.embedded import Embedded, default_folder

    parts = urlsplit(url)
    nodes = 1
    for word, value in parse_qsl(parts.query, keep_blank_values=True):
        if word != "nodes":
            raise ConfigError(f"{url}: unknown option {word!r}; known is nodes")
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 99:
            raise ConfigError(f"{url}: nodes must be a number from 1 to 99, not {value!r}")
        nodes = int(value)
    if parts.netloc == "private" and parts.path in ("", "/"):
        folder = None
    elif parts.netloc:
        raise ConfigError(f"{url}: use embedded://, embedded:///some/folder or embedded://private")
    elif parts.path in ("", "/"):
        folder = default_folder() if nodes == 1 else default_folder() / f"quorum-{nodes}"
    else:
        folder = Path(parts.path)

    def open_new(sockets: Sequence[Path]) -> None:
        where.open_new([Address(label=str(path), path=str(path)) for path in sockets])

    embedded = Embedded(folder, nodes, open_new=open_new)
    where = Endpoints(
        [
            Address(label=f"embedded://{path}", path=str(path), prepare=embedded.ensure)
            for path in map(str, embedded.sockets)
        ],
        embedded,
    )
    return where


def from_redis(clients: object) -> Endpoints:
    """The addresses and credentials of redis-py clients; their connections are left alone."""
    each = clients if isinstance(clients, (list, tuple)) else [clients]
    return Endpoints([_from_pool(client) for client in each])


def _from_pool(client: Any) -> Address:
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if pool is None or settings is None or not hasattr(pool, "connection_class"):
        raise ConfigError(f"from_client() takes a redis.Redis (or a list of them), not {client!r}")
    if "service_name" in vars(pool):
        raise ConfigError("from_client() does not take a Sentinel-managed client yet")
    kind = pool.connection_class.__name__
    provider = settings.get("credential_provider")
    shared: dict[str, Any] = {
        "username": settings.get("username") or "",
        "password": settings.get("password") or "",
        "db": int(settings.get("db") or 0),
        "client_name": settings.get("client_name") or "handfast",
        "credentials": _credentials(provider) if provider is not None else None,
    }
    path = settings.get("path")
    if path:
        return Address(label=f"unix://{path}", path=str(path), **shared)
    host, port = settings.get("host") or "localhost", int(settings.get("port") or 6379)
    secure = "SSL" in kind
    words = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname")
    tls = tls_context(**{word: settings[word] for word in words if word in settings}) if secure else None
    shown = f"[{host}]" if ":" in host else host
    db = f"/{shared['db']}" if shared["db"] else ""
    return Address(
        label=f"{'rediss' if secure else 'redis'}://{shown}:{port}{db}",
        host=host,
        port=port,
        tls=tls,
        **shared,
    )


def _credentials(provider: Any) -> Callable[[], tuple[str, str]]:
    def ask() -> tuple[str, str]:
        given = provider.get_credentials()
        return ("", given[0]) if len(given) == 1 else (given[0] or "", given[1])

    return ask
