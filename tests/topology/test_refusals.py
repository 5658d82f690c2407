"""The refusals of a server are reported as they are, and a caller waits only if that helps."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import handfast
from handfast import ConfigError, Lease, NoQuorum
from handfast.testing import Server, Servers, available
from handfast.testing.cluster_node import ClusterNode
from handfast.testing.server_versions import any_binary
from handfast.testing.servers import reserve_port
from tests.support.programs import attempt
from tests.support.sync_and_async import both, connected

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")


@pytest.fixture
def full() -> Iterator[tuple[Server, ExitStack]]:
    """A server with its maximum of clients, and a function that closes their connections."""
    with Server(config={"maxclients": "4"}) as server, ExitStack() as connections:
        for _ in range(4):
            connections.enter_context(server.connect())
        yield server, connections


@pytest.fixture
def locked() -> Iterator[Server]:
    with Server(config={"requirepass": "right"}) as server:
        yield server


def _refusal(url: str, wait: float, **options: Any) -> tuple[str, float]:
    """The text of an acquisition's error, and how long it took."""
    began = time.monotonic()
    with handfast.connect(url) as client:
        error = attempt(client.lock("a", **options), wait=wait)
    if isinstance(error, Lease):
        raise RuntimeError("the server did not refuse")
    return f"{type(error).__name__}: {error}", time.monotonic() - began


def test_fair_lock_waits_for_server_with_too_many_clients(full: tuple[Server, ExitStack]) -> None:
    server, connections = full
    leaving = threading.Timer(0.3, connections.close)
    with handfast.connect(server.url) as client:
        leaving.start()
        lease = attempt(client.lock("a", fair=True), wait=5)
        leaving.join()
        assert isinstance(lease, Lease), f"it did not wait until others left: {lease}"
        lease.release()


def test_fair_lock_reports_too_many_clients(full: tuple[Server, ExitStack]) -> None:
    server, _ = full
    said, _ = _refusal(server.url, 1, fair=True)
    assert "number of clients" in said, f"the error does not speak of clients: {said}"


@pytest.mark.parametrize("wait", [0, 5])
@pytest.mark.parametrize("login", ["", ":wrong@"], ids=["none", "wrong"])
def test_fair_lock_reports_wrong_password(locked: Server, login: str, wait: float) -> None:
    said, _ = _refusal(f"redis://{login}127.0.0.1:{locked.port}", wait, fair=True)
    assert "password" in said, f"the error does not speak of a password: {said}"


# -- bootstrap by a client of one node, which is also a member of a quorum ---------------------------------------------


@pytest.fixture
def in_use(three: Servers) -> Servers:
    """A quorum that has given out tokens."""
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
        client.lock("a").acquire(wait=1).release()
    three[0].wait_for(lambda: three[0].command("EXISTS", "handfast:{a}") == 0)
    return three


def test_bootstrap_leaves_single_node_client_usable(in_use: Servers) -> None:
    with handfast.connect(in_use[0].url) as client:
        with pytest.raises(ConfigError, match="nothing to open"):
            handfast.bootstrap(client)
        lease = attempt(client.lock("b"), wait=0.5)
        assert isinstance(lease, Lease), f"bootstrap() has broken the client: {lease}"
        lease.release()


def test_bootstrap_by_single_node_client_changes_nothing_for_quorum(in_use: Servers) -> None:
    with handfast.connect(in_use[0].url) as single, pytest.raises(ConfigError, match="nothing to open"):
        handfast.bootstrap(single)
    in_use[2].pause()
    with handfast.connect(in_use.urls, node_timeout=0.25) as client:
        lease = attempt(client.lock("b"), wait=1)
        assert isinstance(lease, Lease), f"two of three nodes are up, and do not both vote: {lease}"
        lease.release()


# -- clusters and databases --------------------------------------------------------------------------------------------


def test_cluster_without_slots_is_reported() -> None:
    with ClusterNode(any_binary(), config={"cluster-enabled": "yes"}) as node:
        said, _ = _refusal(f"redis+cluster://127.0.0.1:{node.port}", 1)
    assert "slot" in said, f"the error does not speak of slots: {said}"


def test_cluster_url_of_plain_server_is_refused_at_once(one: Server) -> None:
    said, took = _refusal(f"redis+cluster://127.0.0.1:{one.port}", 2.5)
    assert took < 1.5, f"waiting does not help here: {said}"
    assert "without cluster mode" in said


@pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])
def test_unknown_database_is_refused_at_once(one: Server, fair: bool) -> None:
    said, took = _refusal(f"{one.url}/99", 2.5, fair=fair)
    assert took < 1.5, f"waiting does not help here: {said}"


# -- passwords of sentinels and of cluster nodes -----------------------------------------------------------------------

REFUSED_LOGINS = {
    "cluster, none": ("redis+cluster://{}", "NOAUTH: wants a password"),
    "cluster, wrong": ("redis+cluster://:bad@{}", "WRONGPASS: wrong user name or password"),
    "cluster, wrong user": ("redis+cluster://me:bad@{}", "WRONGPASS: wrong user name or password"),
    "sentinel, none": ("redis+sentinel://{}/m", "NOAUTH: wants a password"),
    "sentinel, wrong": ("redis+sentinel://{}/m?sentinel_password=bad", "WRONGPASS: wrong user name or password"),
}


@pytest.mark.parametrize(("url", "said"), REFUSED_LOGINS.values(), ids=REFUSED_LOGINS)
@both
async def test_login_that_all_members_refuse_is_reported_at_once(mode: str, locked: Server, url: str, said: str) -> None:
    with Server(config={"requirepass": "right"}) as second:
        members = f"127.0.0.1:{locked.port},127.0.0.1:{second.port}"
        async with connected(mode, url.format(members)) as client:
            began = time.monotonic()
            with pytest.raises(NoQuorum, match=said):
                await client.lock("a").acquire(wait=10)
            assert time.monotonic() - began < 5, "waiting does not help here"


@pytest.mark.parametrize("url", ["redis+cluster://:bad@{}", "redis+sentinel://{}/m?sentinel_password=bad"])
def test_login_that_one_member_refuses_is_retried(locked: Server, url: str) -> None:
    """The other members are down. They may know the password when they are back."""
    with reserve_port() as closed:
        said, took = _refusal(url.format(f"127.0.0.1:{closed.getsockname()[1]},127.0.0.1:{locked.port}"), 0.5)
    assert took >= 0.5, f"it did not wait: {said}"
