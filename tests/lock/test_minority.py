"""A quorum of five: a dead, frozen or forgetful minority costs nothing, and the loss of a majority is reported."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import NoQuorum
from handfast.net.link import HUNG
from handfast.testing import Proxy, Server, Servers, available
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import bootstrap, both, connected, plain
from tests.support.tcp_relay import Relay

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")

PAIRS = 60
NOTICEABLE = 0.2
"""Seconds: to wait for a node takes five times as long here."""


def killed(node: Server) -> None:
    node.kill()


def frozen(node: Server) -> None:
    node.pause()


def emptied(node: Server) -> None:
    node.restart()


FAULTS: dict[str, Callable[[Server], None]] = {"killed": killed, "frozen": frozen, "emptied": emptied}


async def pairs(client: Any, tokens: list[int], n: int = PAIRS) -> list[float]:
    """Acquire and release so often; returns the durations, the shortest first."""
    took: list[float] = []
    lock = client.lock("pairs")
    for _ in range(n):
        began = time.perf_counter()
        lease = await lock.acquire(wait=0)
        assert lease.valid
        assert len(lease.votes) >= 3
        tokens.append(lease.token)
        assert await lease.release()
        took.append(time.perf_counter() - began)
    return sorted(took)


def key_everywhere(nodes: list[Server], name: str) -> list[object]:
    return [node.command("GET", f"handfast:{{{name}}}") for node in nodes]


@pytest.mark.parametrize("fault", FAULTS)
@both
async def test_absent_minority_costs_neither_lock_nor_time(mode: str, fault: str, five: Servers) -> None:
    """One node, then two."""
    # To wait for one of them would cost all of the patience; a busy machine costs less.
    async with connected(mode, five.urls, node_timeout=1.0) as client:
        assert set((await bootstrap(client)).values()) == {"opened"}
        tokens: list[int] = []
        healthy = await pairs(client, tokens)
        for minority in (1, 2):
            FAULTS[fault](five[minority - 1])
            began = time.perf_counter()
            await pairs(client, tokens, 1)
            assert time.perf_counter() - began < 0.5, "the first one may find out, but not by waiting for the dead"
            broken = await pairs(client, tokens)
            # If each pair cost more, all would be slower; a busy machine slows only some of them.
            assert broken[0] < max(3 * healthy[0], 0.003)
            assert statistics.median(broken) < NOTICEABLE
            assert tokens == sorted(set(tokens)), "tokens grow with every acquisition, whoever votes"
            lease = await client.lock("who").acquire(wait=0)
            assert not {node.url for node in five.nodes[:minority]} & set(lease.votes)
            await lease.release()


@both
async def test_minority_frozen_until_connections_are_dropped_delays_nothing(mode: str, five: Servers) -> None:
    """A connection without a reply for seconds is dropped, and a new one is made in the background."""
    # To wait for a frozen node would cost all of the patience; a busy machine costs less.
    async with connected(mode, five.urls, node_timeout=1.0) as client:
        await bootstrap(client)
        tokens: list[int] = []
        await pairs(client, tokens, 3)
        five[0].pause()
        five[1].pause()
        slowest, end = 0.0, time.monotonic() + HUNG + 0.2
        while time.monotonic() < end:
            slowest = max(slowest, *await pairs(client, tokens, 1))
        assert slowest < 0.9
        assert tokens == sorted(set(tokens))


@both
async def test_release_beside_dead_nodes_says_that_the_lock_was_gone(mode: str, five: Servers) -> None:
    async with connected(mode, five.urls, node_timeout=1.0) as client:
        await bootstrap(client)
        lease = await client.lock("a", ttl=20).acquire(wait=1)
        for node in five.nodes[:2]:
            node.kill()
        for node in five.nodes[2:]:
            node.command("DEL", "handfast:{a}")
        assert not await lease.release()


@both
async def test_lease_is_extended_and_released_after_minority_has_gone(mode: str, five: Servers) -> None:
    async with connected(mode, five.urls) as client:
        await bootstrap(client)
        lease = await client.lock("a").acquire(wait=0)
        five[0].kill()
        five[1].pause()
        await lease.extend()
        assert len(lease.votes) >= 3
        assert await lease.release()
        assert key_everywhere(five.nodes[2:], "a") == [None] * 3


@pytest.mark.parametrize("fault", ["killed", "frozen"])
@both
async def test_absent_majority_is_reported_by_node_in_time_and_lock_recovers(
    mode: str, fault: str, five: Servers
) -> None:
    # A timeout long enough for a busy machine: the other two nodes must answer within it.
    async with connected(mode, five.urls, max_ttl=0.5, node_timeout=0.2) as client:
        await bootstrap(client)
        tokens: list[int] = []
        await pairs(client, tokens, 3)
        for node in five.nodes[:3]:
            FAULTS[fault](node)
        began = time.monotonic()
        with pytest.raises(NoQuorum) as raised:
            await client.lock("a").acquire(wait=0)
        assert time.monotonic() - began < 1.0
        assert set(raised.value.nodes) == set(five.urls)
        assert (raised.value.needed, raised.value.total) == (3, 5)
        told = [raised.value.nodes[url] for url in five.urls]
        for said in told[:3]:
            assert said in {"closed the connection", "refused the connection", "no answer in 200 ms"}, told
        # The outcome may have been decided before these replies; but these nodes were not silent.
        for said in told[3:]:
            assert not said.startswith("no answer"), told
        # A caller that waits gets the error at the end of its wait, not later.
        began = time.monotonic()
        with pytest.raises(NoQuorum):
            await client.lock("a").acquire(wait=0.3)
        assert time.monotonic() - began < 3.5, "the wait, and at most one connection's timeout"
        for node in five.nodes[:3]:
            if fault == "killed":
                node.spawn()
                node.wait_ready()
            else:
                node.resume()
        # Restarted nodes do not vote for a little more than max_ttl.
        lease = await client.lock("a").acquire(wait=10)
        assert lease.token > tokens[-1]
        assert await lease.release()


@both
async def test_unlimited_wait_ends_in_outage(mode: str, monkeypatch: Any) -> None:
    for module in ("attempt", "queue"):
        monkeypatch.setattr(f"handfast.core.{module}.OUTAGE", 0.3)
    with Server() as server:
        async with connected(mode, server.url) as client:
            await (await client.lock("a").acquire()).release()
            server.kill()
            began = time.monotonic()
            with pytest.raises(NoQuorum):
                await client.lock("a").acquire(wait=None)
            assert 0.2 < time.monotonic() - began < 3


@both
async def test_failed_attempt_leaves_no_key_after_majority_thaws(mode: str, five: Servers) -> None:
    """The servers run the old claims late, each followed by its release on the same connection (fault 24)."""
    async with connected(mode, five.urls) as client:
        await bootstrap(client)
        await (await client.lock("warm").acquire(wait=0)).release()
        for node in five.nodes[:3]:
            node.pause()
        for _ in range(5):
            with pytest.raises(NoQuorum):
                await client.lock("a").acquire(wait=0)
        for node in five.nodes[:3]:
            node.resume()
        # ttl is 10 s: gone long before that means undone, not expired.
        await eventually_async(lambda: key_everywhere(five.nodes, "a") == [None] * 5, within=2)
        assert all(int(node.info("total_commands_processed")) for node in five)
        lease = await client.lock("a").acquire(wait=5)
        assert await lease.release()


@both
async def test_released_lock_leaves_no_key_after_minority_thaws(mode: str, five: Servers) -> None:
    async with connected(mode, five.urls) as client:
        await bootstrap(client)
        await (await client.lock("warm").acquire(wait=10)).release()
        for node in five.nodes[:2]:
            node.pause()
        tokens: list[int] = []
        await pairs(client, tokens, 20)
        for node in five.nodes[:2]:
            node.resume()
        await eventually_async(lambda: key_everywhere(five.nodes, "pairs") == [None] * 5, within=2)
        # They took part: their counters have the last token.
        await eventually_async(
            lambda: all(int(node.command("GET", "handfast:{pairs}:f") or 0) >= tokens[-1] for node in five)  # type: ignore
        )


@both
async def test_a_node_that_is_being_connected_during_a_release_keeps_no_key(mode: str, three: Servers) -> None:
    """A majority confirms the release, and the third node cannot be sent it yet."""
    with Proxy(three.urls[2]) as proxy:
        async with connected(mode, [*three.urls[:2], proxy.url], guard=False, ttl=60, max_ttl=60) as client:
            lease = await client.lock("a").acquire(wait=10)
            while len(lease.votes) < 3:  # the last vote is read with the next replies
                await (await client.lock("b").acquire(wait=10)).release()
            proxy.delay(1.0, down=True)  # it is connected, and tells so late
            before = proxy.accepted
            proxy.reset()
            while proxy.accepted == before:
                await (await client.lock("b").acquire(wait=10)).release()
            assert await lease.release()
            assert key_everywhere(three.nodes, "a")[2] is not None
            proxy.heal()
            await eventually_async(lambda: key_everywhere(three.nodes, "a") == [None] * 3, within=10)


@plain
async def test_cancelled_acquire_leaves_no_key_after_frozen_nodes_thaw(five: Servers) -> None:
    async with handfast.aio.connect(five.urls) as client:
        await handfast.aio.bootstrap(client)
        await (await client.lock("warm").acquire(wait=0)).release()
        for node in five.nodes[:3]:
            node.pause()
        task = asyncio.create_task(client.lock("a").acquire())
        await eventually_async(lambda: five[4].command("GET", "handfast:{a}"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for node in five.nodes[:3]:
            node.resume()
        await eventually_async(lambda: key_everywhere(five.nodes, "a") == [None] * 5, within=2)


# -- a network that is late --------------------------------------------------------------------------------------------


@pytest.fixture
def late(three: Servers) -> Iterator[list[Relay]]:
    """Three nodes behind relays."""
    with ExitStack() as stack:
        yield [stack.enter_context(Relay(url)) for url in three.urls]


@both
async def test_replies_delayed_beyond_ttl_are_no_grant(mode: str, one: Server) -> None:
    """Even for a caller that would wait for them (fault 4)."""
    with Relay(one.url) as relay:
        async with connected(mode, relay.url, ttl=0.3, node_timeout=5) as client:
            await (await client.lock("warm").acquire(wait=0)).release()
            relay.replies.clear()

            async def open_when_expired() -> None:
                await asyncio.to_thread(one.wait_for, lambda: one.command("EXISTS", "handfast:{a}") == 1)
                await asyncio.to_thread(one.wait_for, lambda: one.command("EXISTS", "handfast:{a}") == 0)
                relay.replies.set()

            opening = in_background(open_when_expired)
            with pytest.raises(NoQuorum, match="too late for the lease's validity"):
                await client.lock("a").acquire(wait=0)
            await opening
            lease = await client.lock("a").acquire(wait=0)
            assert await lease.release()


def in_background(work: Callable[[], Any]) -> asyncio.Future[None]:
    """In a thread with its own loop: the blocking client blocks the test's loop."""
    return asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(work()))


@both
async def test_delayed_replies_of_majority_are_no_grant(mode: str, three: Servers, late: list[Relay]) -> None:
    async with connected(mode, [relay.url for relay in late], ttl=0.5) as client:
        await bootstrap(client)
        await (await client.lock("warm").acquire(wait=0)).release()
        late[0].replies.clear()
        late[1].replies.clear()
        with pytest.raises(NoQuorum) as raised:
            await client.lock("a").acquire(wait=0)
        assert sorted(raised.value.nodes.values()) == ["granted", "no answer in 25 ms", "no answer in 25 ms"]
        # The release went the same way, which is open.
        await eventually_async(lambda: key_everywhere(three.nodes, "a") == [None] * 3, within=0.4)
        late[0].replies.set()
        late[1].replies.set()
        lease = await client.lock("a").acquire(wait=5)
        assert await lease.release()


@both
async def test_request_delivered_after_its_ttl_leaves_no_key(mode: str, three: Servers, late: list[Relay]) -> None:
    """Late requests of a failed attempt (fault 5): the release is right behind them."""
    async with connected(mode, [relay.url for relay in late], ttl=10, node_timeout=0.05) as client:
        await bootstrap(client)
        await (await client.lock("warm").acquire(wait=0)).release()
        for relay in late:
            relay.requests.clear()
        began = time.monotonic()
        with pytest.raises(NoQuorum):
            await client.lock("a", ttl=0.2).acquire(wait=0)
        await eventually_async(lambda: time.monotonic() > began + 0.25)  # the ttl
        executed = [node.info("cmdstat_evalsha") for node in three]
        for relay in late:
            relay.requests.set()
        await eventually_async(lambda: all(n.info("cmdstat_evalsha") != e for n, e in zip(three, executed, strict=True)))
        await eventually_async(lambda: key_everywhere(three.nodes, "a") == [None] * 3, within=0.15)
        lease = await client.lock("a").acquire(wait=5)
        assert await lease.release()
