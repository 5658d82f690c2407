"""One replicated master: a grant that needs copies waits for them, and is taken back without them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import NoQuorum
from handfast.embedded.resp import Connection
from handfast.net import clock
from handfast.testing import Server, available
from tests.support.eventually import eventually, eventually_async, renewal_of
from tests.support.sync_and_async import both, connected, plain

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

KINDS = ("valkey-9.1", "redis-7.0", "redis-6.2")


on_one_kind = pytest.mark.parametrize("_pair", KINDS[:1], indirect=True)
"""For what takes its time by nature: silence has to be waited for."""


def binary(kind: str) -> Path:
    if kind not in available():
        pytest.skip(f"no {kind} on this machine")
    return available()[kind]


@pytest.fixture(scope="module", params=KINDS)
def _pair(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Server]]:
    """A replica takes a second to be counted, so the two are shared."""
    kind = binary(request.param)
    with Server(kind) as master, Server(kind, replica_of=master) as replica:
        in_step(master)
        yield master, replica


def in_step(master: Server) -> None:
    """Wait until the replica confirms writes."""
    with Connection(("127.0.0.1", master.port), timeout=10) as link:
        link.command("SET", "step", "1")
        assert link.command("WAIT", 1, 9000) == 1


@pytest.fixture
def master(_pair: tuple[Server, Server]) -> Server:
    _pair[0].command("FLUSHALL")
    _pair[0].command("CONFIG", "RESETSTAT")
    return _pair[0]


@pytest.fixture
def replica(_pair: tuple[Server, Server], master: Server) -> Iterator[Server]:
    yield _pair[1]
    _pair[1].resume()
    in_step(master)


def calls(server: Server, command: str) -> int:
    said = server.info(f"cmdstat_{command}")
    return int(said.partition("calls=")[2].partition(",")[0]) if said else 0


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@both
async def test_grant_with_replicas_option_is_on_replica(mode: str, fence: bool, master: Server, replica: Server) -> None:
    async with connected(mode, master.url, replicas=1, fence=fence) as client:
        lease = await client.lock("a").acquire(wait=0)
        assert replica.command("GET", "handfast:{a}") == lease.owner.encode()
        if fence:
            assert replica.command("GET", "handfast:{a}:f") == str(lease.token).encode()
        await lease.extend()
        assert calls(master, "wait") == 2
        with pytest.raises(handfast.Contended) as raised:
            await client.lock("a").acquire(wait=0)
        assert raised.value.holder == lease.owner
        assert await lease.release()
        assert master.command("GET", "handfast:{a}") is None


@on_one_kind
@both
async def test_grant_without_its_replica_is_refused_and_undone(mode: str, master: Server, replica: Server) -> None:
    async with connected(mode, master.url, replicas=1) as client:
        await (await client.lock("warm").acquire(wait=0)).release()
        replica.pause()
        with pytest.raises(NoQuorum) as raised:
            await client.lock("a").acquire(wait=0)
        assert list(raised.value.nodes.values()) == ["0 of 1 replicas confirmed within 1000 ms"]
        assert raised.value.granted == 0
        # ttl is 10 s: gone at once means taken back.
        await eventually_async(lambda: master.command("GET", "handfast:{a}") is None, within=1)
        replica.resume()
        lease = await client.lock("a").acquire(wait=5)
        assert await lease.release()


@on_one_kind
@both
async def test_missing_replica_is_reported_for_short_leases(mode: str, master: Server, replica: Server) -> None:
    """An idle server checks the timeout of WAIT ten times a second; the reply must still come in time."""
    async with connected(mode, master.url, replicas=1, ttl=1) as client:
        replica.pause()
        with pytest.raises(NoQuorum, match="0 of 1 replicas confirmed"):
            await client.lock("a").acquire(wait=0)


@plain
async def test_replica_that_left_does_not_confirm() -> None:
    with Server() as master, Server(replica_of=master) as replica:
        in_step(master)
        async with handfast.aio.connect(master.url, replicas=1) as client:
            await (await client.lock("a").acquire(wait=0)).release()
            replica.command("REPLICAOF", "NO", "ONE")
            await eventually_async(lambda: master.info("connected_slaves") == "0")
            with pytest.raises(NoQuorum, match="0 of 1 replicas confirmed"):
                await client.lock("a").acquire(wait=0)
            await eventually_async(lambda: master.command("GET", "handfast:{a}") is None, within=1)


@on_one_kind
@plain
async def test_refusal_counts_replicas_when_too_many_are_required(master: Server, replica: Server) -> None:
    async with connected("asyncio", master.url, replicas=2) as client:
        with pytest.raises(NoQuorum, match="1 of 2 replicas confirmed"):
            await client.lock("a").acquire(wait=0)
        lease = await client.lock("a", replicas=1).acquire(wait=0)
        assert await lease.release()


@on_one_kind
@both
async def test_extension_without_confirmation_of_replica_does_not_count(
    mode: str, master: Server, replica: Server
) -> None:
    async with connected(mode, master.url, replicas=1, node_timeout=0.3, ttl=5, renew=False) as client:
        lease = await client.lock("a").acquire(wait=0)
        replica.pause()
        left = lease.remaining()
        with pytest.raises(handfast.NoQuorum, match="0 of 1 replicas confirmed"):
            await lease.extend(ttl=20)
        assert lease.remaining() < left
        assert lease.valid, "it runs on to its old deadline"
        replica.resume()
        assert await lease.release()


@on_one_kind
@both
async def test_lease_ends_at_deadline_while_replica_is_frozen(mode: str, master: Server, replica: Server) -> None:
    async with connected(mode, master.url, replicas=1, ttl=2.0, node_timeout=0.15) as client:
        lease = await client.lock("a").acquire(wait=0)
        lost = lease.lost
        await eventually_async(renewal_of(lease))
        tried = calls(master, "wait")
        replica.pause()
        # A renewal that was under way may still have been confirmed; from here on none is.
        eventually(lambda: lease._hold.retrying or lost.is_set(), within=5)
        deadline = lease._hold.deadline
        await eventually_async(lost.is_set, within=5)
        assert lease._hold.deadline == deadline
        assert clock.now() - deadline < 0.5
        assert not lease.valid
        # One renewal may have been under way, and one failed first.
        assert calls(master, "wait") > tried + 2, "it was tried again until the deadline"
        with pytest.raises(handfast.LeaseLost, match="no majority confirmed a renewal"):
            lease.check()
        assert await lease.release() is False


@on_one_kind
@both
async def test_lease_survives_replica_that_returns_in_time(mode: str, master: Server, replica: Server) -> None:
    async with connected(mode, master.url, replicas=1, ttl=1.2, node_timeout=0.15) as client:
        lease = await client.lock("a").acquire(wait=0)
        replica.pause()
        await eventually_async(lambda: lease._hold.retrying, within=2)
        replica.resume()
        await eventually_async(renewal_of(lease), within=1)
        assert lease.valid
        assert await lease.release()


@both
async def test_no_grant_waits_for_replicas_by_default(mode: str, server: Server) -> None:
    server.command("CONFIG", "RESETSTAT")
    async with connected(mode, server.url, ttl=0.9) as client:
        for fence in (True, False):
            lease = await client.lock("a", fence=fence).acquire(wait=0)
            await eventually_async(renewal_of(lease))
            await lease.extend()
            assert await lease.release()
    assert (calls(server, "wait"), calls(server, "waitaof")) == (0, 0)


@on_one_kind
@both
async def test_replica_as_only_node_is_reported_as_read_only(mode: str, master: Server, replica: Server) -> None:
    async with connected(mode, replica.url) as client:
        with pytest.raises(NoQuorum, match="READONLY: is a read-only replica"):
            await client.lock("a").acquire(wait=0)


@on_one_kind
@both
async def test_replica_does_not_vote_in_a_quorum(mode: str, master: Server, replica: Server, one: Server) -> None:
    async with connected(mode, [master.url, replica.url, one.url], guard=False) as client:
        lease = await client.lock("a").acquire(wait=0)
        assert set(lease.votes) == {master.url, one.url}
        assert await lease.release()
    async with connected(mode, ["redis://127.0.0.1:1", replica.url, one.url], guard=False) as client:
        with pytest.raises(NoQuorum) as raised:
            await client.lock("a").acquire(wait=0)
        assert raised.value.nodes[replica.url] == "is a replica, not a master, so it cannot vote: name its master"
        assert raised.value.nodes["redis://127.0.0.1:1"] == "refused the connection"


# -- on the disk -------------------------------------------------------------------------------------------------------


def _durable(mode: str, server: Server, **options: Any) -> Any:
    return connected(mode, server.url, durable=True, **options)


@both
async def test_durable_grant_survives_crash(mode: str) -> None:
    config = {"appendonly": "yes", "appendfsync": "everysec"}
    with Server(binary("valkey-9.1"), config=config) as server:
        async with _durable(mode, server, node_timeout=2) as client:
            lease = await client.lock("a", renew=False).acquire(wait=0)
            assert calls(server, "waitaof") == 1
            server.restart(empty=False)
            assert server.command("GET", "handfast:{a}") == lease.owner.encode()
            assert server.command("GET", "handfast:{a}:f") == str(lease.token).encode()


@both
async def test_durable_grant_without_append_only_file_is_refused_and_undone(mode: str) -> None:
    with Server(binary("valkey-9.1")) as server:
        async with _durable(mode, server) as client:
            with pytest.raises(NoQuorum, match="appendonly is disabled"):
                await client.lock("a").acquire(wait=0)
            await eventually_async(lambda: server.command("GET", "handfast:{a}") is None, within=1)
            assert await (await client.lock("b", durable=False).acquire(wait=0)).release()


@pytest.mark.parametrize("kind", ["redis-7.0", "redis-6.2"])
@both
async def test_server_without_waitaof_is_refused_at_once(mode: str, kind: str) -> None:
    with Server(binary(kind), config={"appendonly": "yes"}) as server:
        async with _durable(mode, server) as client:
            began = time.monotonic()
            with pytest.raises(NoQuorum, match=r"unknown command.*WAITAOF") as raised:
                await client.lock("a").acquire(wait=30)
            assert time.monotonic() - began < 1, "no waiting teaches it"
            assert server.url in raised.value.nodes
            await eventually_async(lambda: server.command("GET", "handfast:{a}") is None, within=1)


def test_durable_with_replicas_waits_for_disk_of_replica() -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}
    with (
        Server(binary("valkey-9.1"), config=config) as master,
        Server(binary("valkey-9.1"), config=config, replica_of=master) as replica,
    ):
        in_step(master)
        with handfast.connect(master.url, durable=True, replicas=1, node_timeout=2) as client:
            lease = client.lock("a").acquire(wait=0)
            assert replica.command("GET", "handfast:{a}") == lease.owner.encode()
            assert lease.release()
            replica.pause()
            with pytest.raises(NoQuorum, match="0 of 1 replicas confirmed"):
                client.lock("a", node_timeout=0.6).acquire(wait=0)
