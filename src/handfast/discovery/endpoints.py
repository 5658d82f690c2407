"""Finds the servers of a client: from URLs, from the environment, embedded ones, or from redis-py clients."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from handfast import log
from handfast.discovery.redis_options import TLS_WORDS, login_of, tls_of
from handfast.discovery.urls import checking, distinct, not_this, parse, unknown_option, verifies, without_secrets
from handfast.errors import ConfigError
from handfast.net.address import Address

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from handfast.embedded.deployment import Embedded

__all__ = ["Endpoints", "from_redis", "locate"]


class Endpoints:
    """The servers of one client."""

    def __init__(self, addresses: Sequence[Address], embedded: Embedded | None = None) -> None:
        distinct(addresses)
        self.addresses = list(addresses)
        self.open_new: Callable[[Sequence[Address]], None] = lambda addresses: None
        """Called with embedded servers that are known to be new, before any other client can see them."""
        self._embedded = embedded
        self._moving: list[Any] = [each for a in addresses for each in (a.resolver, a.cluster) if each is not None]

    def close(self) -> None:
        if self._embedded is not None:
            self._embedded.close()
        for moving in self._moving:
            moving.close()

    def forked(self) -> None:
        """Reset the resolvers in the child after a fork: their threads and connections belong to the parent."""
        for moving in self._moving:
            moving.forked()


@functools.cache
def _say_embedded() -> None:
    """Warn once in a process."""
    log.warning(
        "no server was named, so embedded:// is used, which excludes on this machine alone; "
        "for several machines pass a URL to connect(), or set $HANDFAST_URL"
    )


def locate(servers: object) -> Endpoints:
    """Find the servers: the given ones, else those in $HANDFAST_URL, else embedded ones."""
    if servers is None:
        servers = os.environ.get("HANDFAST_URL", "").split()
        if not servers:
            _say_embedded()
            servers = ["embedded://"]
        elif len(servers) > 1 and not all("://" in each for each in servers):
            # Nothing is quoted: it may be a part of a password.
            raise ConfigError(
                "$HANDFAST_URL has a word that is not a URL; a space in a user name or password is written %20"
            )
    if isinstance(servers, str):
        servers = [servers]
    if not isinstance(servers, (list, tuple)):
        hint = "; for a redis-py client call from_client()" if hasattr(servers, "connection_pool") else ""
        raise ConfigError(
            f"connect() takes a URL or a list of URLs, not an object of type {type(servers).__name__}{hint}"
        )
    servers = list(servers)
    if not servers:
        raise ConfigError("connect() was given an empty list of servers")
    if any(isinstance(url, str) and url.strip().startswith("embedded:") for url in servers):
        if len(servers) > 1:
            raise ConfigError(
                "embedded:// cannot be combined with other servers; use embedded://?nodes=5 for an embedded quorum"
            )
        return _embedded(servers[0].strip())
    return Endpoints([parse(url) for url in servers])


def _embedded(url: str) -> Endpoints:
    from pathlib import Path
    from urllib.parse import parse_qsl, urlsplit

    from handfast.embedded.deployment import Embedded, default_folder

    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"{without_secrets(url)}: not a valid URL") from None
    if "@" in url:
        raise ConfigError(f"{without_secrets(url)}: an embedded server has no user and no password")
    nodes = 1
    for word, value in parse_qsl(parts.query, keep_blank_values=True):
        if word != "nodes":
            raise ConfigError(f"{without_secrets(url)}: {unknown_option(word, value)}; known is nodes")
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 99:
            raise ConfigError(f"{without_secrets(url)}: nodes must be a number from 1 to 99{not_this(value)}")
        nodes = int(value)
    if parts.netloc == "private" and parts.path in ("", "/"):
        folder = None
    elif parts.netloc:
        raise ConfigError(f"{without_secrets(url)}: use embedded://, embedded:///some/folder or embedded://private")
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
    """Take addresses and credentials from redis-py clients. Their connections are not used."""
    each = clients if isinstance(clients, (list, tuple)) else [clients]
    return Endpoints([_from_pool(client) for client in each])


def _from_pool(client: Any) -> Address:
    pool = getattr(client, "connection_pool", None)
    settings = getattr(pool, "connection_kwargs", None)
    if hasattr(client, "nodes_manager"):
        return _from_cluster(client)
    if pool is None or settings is None or not hasattr(pool, "connection_class"):
        kind = type(client).__name__  # the object itself may show a password
        hint = "; for a URL call connect()" if isinstance(client, str) else ""
        raise ConfigError(
            f"from_client() takes a redis.Redis or a RedisCluster (or a list of them), not an object of type {kind}{hint}"
        )
    kind = pool.connection_class.__name__
    shared = _shared(settings)
    if "service_name" in vars(pool):
        return _from_sentinel(pool, kind, shared)
    path = settings.get("path")
    if path:
        return Address(label=f"unix://{path}", path=str(path), **shared)
    host, port = settings.get("host") or "localhost", int(settings.get("port") or 6379)
    secure = "SSL" in kind
    db = f"/{shared['db']}" if shared["db"] else ""
    return Address(
        label=f"{'rediss' if secure else 'redis'}://{_shown((host, port))}{db}",
        host=host,
        port=port,
        tls=_tls(settings) if secure else None,
        **shared,
    )


def _shared(settings: dict[str, Any]) -> dict[str, Any]:
    """The login, database and client name, from the options of redis-py's connections."""
    return {
        **login_of(settings),
        "db": int(settings.get("db") or 0),
        "client_name": settings.get("client_name") or "handfast",
    }


_ASKING_WORDS = ("username", "password", "credential_provider", *TLS_WORDS)


def _shown(place: tuple[str, int]) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _asked(settings: dict[str, Any], secure: bool) -> dict[str, Any]:
    """Options of the redis-py connections to the sentinels, or to the nodes of a cluster."""
    asked = {word: settings[word] for word in _ASKING_WORDS if settings.get(word) is not None}
    return checking(_consistent(asked)) if secure else asked


def _tls(settings: dict[str, Any]) -> Callable[[], ssl.SSLContext]:
    return tls_of(_consistent(settings))


def _consistent(settings: dict[str, Any]) -> dict[str, Any]:
    """The options of a redis-py client, without the comparison of host names if certificates are not verified. redis-py
    keeps that comparison as its default, and ignores it in that case."""
    if "ssl_cert_reqs" not in settings or verifies(settings):
        return settings
    return {**settings, "ssl_check_hostname": False}


def _from_sentinel(pool: Any, kind: str, shared: dict[str, Any]) -> Address:
    from handfast.discovery.sentinel import SentinelMaster

    if not getattr(pool, "is_master", True):
        raise ConfigError("from_client() needs a master: this client reads from replicas (slave_for); use master_for")
    pools = [sentinel.connection_pool for sentinel in pool.sentinel_manager.sentinels]
    members = [(str(each.connection_kwargs["host"]), int(each.connection_kwargs["port"])) for each in pools]
    first = pools[0]
    secure = "SSL" in kind
    db = f"/{shared['db']}" if shared["db"] else ""
    return Address(
        label=f"redis{'s' * secure}+sentinel://{','.join(map(_shown, members))}/{pool.service_name}{db}",
        tls=_tls(pool.connection_kwargs) if secure else None,
        resolver=SentinelMaster(
            pool.service_name, members, _asked(first.connection_kwargs, "SSL" in first.connection_class.__name__)
        ),
        **shared,
    )


def _from_cluster(client: Any) -> Address:
    from handfast.discovery.cluster import Cluster

    manager = client.nodes_manager
    settings = dict(getattr(manager, "connection_kwargs", None) or client.connection_kwargs)
    members = [(str(node.host), int(node.port)) for node in manager.startup_nodes.values()]
    secure = bool(settings.get("ssl")) or "SSL" in getattr(settings.get("connection_class"), "__name__", "")
    return Address(
        label=f"redis{'s' * secure}+cluster://{','.join(map(_shown, members))}",
        tls=_tls(settings) if secure else None,
        cluster=Cluster(members, _asked(settings, secure)),
        **{**_shared(settings), "db": 0},
    )
