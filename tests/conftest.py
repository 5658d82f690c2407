"""Servers and clients for tests. A server is started once per worker and emptied between tests."""

from __future__ import annotations

import functools
import gc
import os
import signal
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

import handfast
from handfast import _lifetime
from handfast.testing import Cluster, SentinelGroup, Server, Servers, available
from handfast.testing.plugin import _Kept
from tests.support.topologies import _sharded, _watched, doomed, sharded, watched

__all__ = ["_sharded", "_watched", "doomed", "sharded", "watched"]

gc.disable()  # until all tests are collected: garbage collection took a third of that time
KINDS = ("valkey-9.1", "redis-7.0", "redis-6.2")

IGNORED_IN_BACKGROUND = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts background commands with SIGINT and SIGQUIT ignored, and nohup ignores SIGHUP. Every program that
    # a test starts would inherit that.
    for number, usual in IGNORED_IN_BACKGROUND.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    config.addinivalue_line("markers", "slow: runs on one kind of server, on every kind with HANDFAST_LONG=1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one kind of server for each set of other parameters of a slow test. The choice differs from test to test."""
    here = [kind for kind in KINDS if kind in available()]
    if not here or os.environ.get("HANDFAST_LONG"):
        return

    def wanted(item: pytest.Item) -> bool:
        params = getattr(item, "callspec", None) and item.callspec.params  # type: ignore[attr-defined]
        if not params or item.get_closest_marker("slow") is None:
            return True
        kind = next((value for value in params.values() if isinstance(value, str) and value in here), None)
        return kind is None or kind == here[zlib.crc32(item.name.replace(kind, "").encode()) % len(here)]

    left_out = [item for item in items if not wanted(item)]
    items[:] = [item for item in items if wanted(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Everything imported and collected lives until the end, so the garbage collector need not visit it again."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def small_heap() -> None:
    """A collection visits only the objects of the test: with all objects of other tests it takes a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_client_outlives_its_test() -> Iterator[None]:
    """Some tests drop clients on purpose; the next test in this process must not find their watchdog."""
    yield
    for client in list(_lifetime.clients):
        if client._dog is not None and not client._closed:
            client._dog.unregister(client._group).result(timeout=5)


@pytest.fixture(scope="session")
def _server_of() -> Iterator[Callable[[str], Server]]:
    """One server of each kind, started at its first use and kept, in whatever order the tests run."""
    with ExitStack() as servers:
        yield functools.cache(lambda kind: servers.enter_context(Server(available()[kind])))


@pytest.fixture(params=KINDS)
def any_server(request: pytest.FixtureRequest, _server_of: Callable[[str], Server]) -> Server:
    """One running server of each supported kind; a kind that is not installed is skipped by name."""
    if request.param not in available():
        pytest.skip(f"no {request.param} on this machine")
    return _server_of(request.param)


@pytest.fixture
def server(any_server: Server) -> Server:
    """An empty server, of each kind in turn."""
    any_server.command("FLUSHALL")
    return any_server


@pytest.fixture(scope="session")
def _one() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def one(_one: Server) -> Server:
    """An empty server of the first installed kind, for tests that do not depend on the kind."""
    _one.command("FLUSHALL")
    return _one


@pytest.fixture
def client(one: Server) -> Iterator[handfast.Client]:
    with handfast.connect(one.url) as client:
        yield client


# As the plugin's fixtures, but for a module: sentinels and the nodes of a cluster talk all the time, also when no test
# uses them.


@pytest.fixture(scope="module")
def _handfast_sentinel() -> Iterator[_Kept[SentinelGroup]]:
    with closing(_Kept(SentinelGroup)) as kept:
        yield kept


@pytest.fixture(scope="module")
def _handfast_cluster() -> Iterator[_Kept[Cluster]]:
    with closing(_Kept(Cluster)) as kept:
        yield kept


@pytest.fixture
def five() -> Iterator[Servers]:
    """Five new servers, for tests that stop, pause or restart them."""
    with Servers(5) as servers:
        yield servers


@pytest.fixture
def three() -> Iterator[Servers]:
    with Servers(3) as servers:
        yield servers


@pytest.fixture
def quorum(five: Servers) -> Iterator[handfast.Client]:
    """A client of five nodes that are open for votes."""
    with handfast.connect(five.urls) as client:
        handfast.bootstrap(client)
        yield client
