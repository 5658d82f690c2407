"""The order of the queue on one node and on five, and nodes that fail in the middle of hand-overs.

The nodes are of all installed versions, so that one run covers them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

import handfast
from handfast.testing import Server, available
from handfast.testing.proxy import Proxy
from tests.conftest import KINDS
from tests.support.eventually import eventually, eventually_async
from tests.support.queues import (
    KEY,
    LONG,
    SOON,
    acquire_in_background,
    claims_on,
    holder_on,
    no_lock_state_left,
    queue_length,
    wait_for_claims_on_all,
)
from tests.support.stress_processes import Agent
from tests.support.sync_and_async import MODES, both, connected
from tests.support.tcp_relay import Relay
from tests.support.waiters import resolve, wait_until

NODE_TIMEOUT = 0.3
"""Seconds: enough for a busy machine."""
OPTIONS: dict[str, Any] = {"ttl": LONG, "node_timeout": NODE_TIMEOUT}
COUNTS = pytest.mark.parametrize("count", [1, 5], ids=["one node", "five nodes"])


@contextlib.contextmanager
def mixed_nodes(count: int) -> Iterator[list[Server]]:
    """So many servers, of each kind in turn."""
    binaries = [available()[kind] for kind in KINDS if kind in available()]
    with ExitStack() as stack:
        yield [stack.enter_context(Server(binary)) for binary in itertools.islice(itertools.cycle(binaries), count)]


def open_for_votes(nodes: list[Server]) -> None:
    with handfast.connect([node.url for node in nodes], node_timeout=5.0) as client:
        handfast.bootstrap(client)


@pytest.fixture(scope="module")
def _calm_nodes() -> Iterator[list[Server]]:
    with mixed_nodes(5) as nodes:
        yield nodes


@pytest.fixture
def calm(_calm_nodes: list[Server]) -> list[Server]:
    """Five empty nodes that are open for votes, for tests that do not stop them."""
    for node in _calm_nodes:
        node.command("FLUSHALL")
    open_for_votes(_calm_nodes)
    return _calm_nodes


@pytest.fixture
def nodes() -> Iterator[list[Server]]:
    """Five nodes that are open for votes, for tests that kill, pause or restart them."""
    with mixed_nodes(5) as nodes:
        open_for_votes(nodes)
        yield nodes


def urls_of(nodes: list[Server]) -> Any:
    """What connect() takes: one URL, or a list of URLs."""
    return [node.url for node in nodes] if len(nodes) > 1 else nodes[0].url


# -- the order -----------------------------------------------------------------------------------------------------------


@COUNTS
@both
async def test_clients_get_the_lock_in_order_of_arrival(mode: str, count: int, calm: list[Server]) -> None:
    nodes = calm[:count]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, urls_of(nodes), **OPTIONS)) for _ in range(5)]
        lease = await clients[0].lock("a").acquire()
        waiting: list[asyncio.Future[Any]] = []
        for client in clients[1:]:
            waiting.append(acquire_in_background(mode, client.lock("a")))
            await wait_for_claims_on_all(nodes, len(waiting), lease.owner)
        order = await resolve(clients[0].lock("a").waiters())
        assert len(order) == len(waiting)
        tokens = [lease.token]
        for waiter, owner in zip(waiting, order, strict=True):
            assert not waiter.done()
            assert await lease.release()
            lease = await asyncio.wait_for(waiter, SOON)
            assert lease.owner == owner
            assert sum(holder_on(node) == owner for node in nodes) > count // 2
            tokens.append(lease.token)
        assert await lease.release()
        assert tokens == sorted(set(tokens))
        await eventually_async(lambda: no_lock_state_left(*nodes))


@COUNTS
@pytest.mark.parametrize("mode", MODES)
def test_processes_get_the_lock_in_order_of_arrival(mode: str, count: int, calm: list[Server]) -> None:
    nodes = calm[:count]
    with Agent.several(4, mode, urls_of(nodes), "a", **OPTIONS) as agents:
        agents[0].acquire()
        first = agents[0].held()
        tokens = [first.token]
        for place, agent in enumerate(agents[1:], 1):
            agent.acquire()
            eventually(lambda place=place: all(claims_on(node, first.owner) == place for node in nodes))
        for agent, heir in itertools.pairwise(agents):
            assert all(other.silent for other in agents)
            assert agent.release()
            held = heir.held(within=SOON)
            assert f":{heir.pid}:" in held.owner
            tokens.append(held.token)
        assert agents[-1].release()
    assert tokens == sorted(set(tokens))
    eventually(lambda: no_lock_state_left(*nodes))


@COUNTS
@both
async def test_try_acquire_does_not_overtake_waiters(mode: str, count: int, calm: list[Server]) -> None:
    """The lock is free, but the waiter is before the caller: it gets the lock now."""
    nodes = calm[:count]
    async with connected(mode, urls_of(nodes), **OPTIONS) as one, connected(mode, urls_of(nodes), **OPTIONS) as two:
        lease = await one.lock("a").acquire()
        waiting = acquire_in_background(mode, two.lock("a"))
        await wait_for_claims_on_all(nodes, 1, lease.owner)
        for node in nodes:
            node.command("DEL", KEY)
        assert await one.lock("a").try_acquire() is None
        heir = await asyncio.wait_for(waiting, SOON)
        assert sum(holder_on(node) == heir.owner for node in nodes) > count // 2
        assert heir.token > lease.token
        assert await heir.release()
        free = await one.lock("a").acquire(wait=SOON)
        assert await free.release()


@both
async def test_split_claims_are_won_by_the_first_waiter(mode: str, nodes: list[Server]) -> None:
    """Two nodes give their votes to the first waiter and two to the second one, the fifth is dead: the second yields."""
    with ExitStack() as stack:
        relays = [stack.enter_context(Relay(node.url)) for node in nodes]
        async with (
            connected(mode, urls_of(nodes), **OPTIONS) as holding,
            connected(mode, [*urls_of(nodes[:2]), *(relay.url for relay in relays[2:4]), nodes[4].url], **OPTIONS) as one,
            connected(mode, [*(relay.url for relay in relays[:2]), *urls_of(nodes[2:])], **OPTIONS) as two,
        ):
            for client in (one, two):
                assert await (await client.lock("warm").acquire()).release()
            lease = await holding.lock("a").acquire()
            for relay in relays:
                relay.requests.clear()
            first = acquire_in_background(mode, one.lock("a"))
            await wait_for_claims_on_all([nodes[0], nodes[1], nodes[4]], 1, lease.owner)
            second = acquire_in_background(mode, two.lock("a"))
            await wait_for_claims_on_all([nodes[2], nodes[3]], 1, lease.owner)
            nodes[4].kill()
            assert await lease.release()
            assert holder_on(nodes[0]) == holder_on(nodes[1])
            assert holder_on(nodes[2]) == holder_on(nodes[3]) != holder_on(nodes[0])
            # The claims of the first waiter arrive everywhere, and later the claims of the second one.
            for relay in relays[2:]:
                relay.requests.set()
            winner = await asyncio.wait_for(first, SOON)
            assert not second.done()
            for relay in relays:
                relay.requests.set()
            assert await winner.release()
            heir = await asyncio.wait_for(second, SOON)
            assert heir.token > winner.token > lease.token
            assert await heir.release()
            await eventually_async(lambda: no_lock_state_left(*nodes[:4]))


# -- nodes that fail -----------------------------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[Server], None]] = {
    "killed": Server.kill,
    "paused": Server.pause,
    "restarted empty": Server.restart,
}


@pytest.mark.parametrize("when", ["before", "while they wait", "during the hand-over"])
@pytest.mark.parametrize("fault", FAULTS)
@both
async def test_order_survives_a_minority_of_faulty_nodes(mode: str, fault: str, when: str, nodes: list[Server]) -> None:
    """Two of five nodes fail. The lock goes on in order, and tokens grow."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, urls_of(nodes), **OPTIONS)) for _ in range(4)]
        for client in clients:
            assert await (await client.lock("warm").acquire()).release()

        def strike() -> None:
            for node in nodes[:2]:
                FAULTS[fault](node)

        if when == "before":
            strike()
        lease = await clients[0].lock("a").acquire(wait=SOON)
        tokens = [lease.token]
        waiting: list[asyncio.Future[Any]] = []
        for client in clients[1:]:
            waiting.append(acquire_in_background(mode, client.lock("a")))
            await wait_for_claims_on_all(nodes[2:], len(waiting), lease.owner)
        if when == "while they wait":
            strike()
        for number, waiter in enumerate(waiting):
            assert not any(other.done() for other in waiting[number:])
            assert await lease.release()
            if when == "during the hand-over" and number == 0:
                strike()
            lease = await asyncio.wait_for(waiter, SOON)
            tokens.append(lease.token)
        assert await lease.release()
        assert tokens == sorted(set(tokens))
        await eventually_async(lambda: no_lock_state_left(*nodes[2:]))
        for node in nodes:
            node.resume()


@both
async def test_black_holed_nodes_do_not_hold_up_hand_overs(mode: str, nodes: list[Server]) -> None:
    """Packets to and from two of five nodes are lost in the middle of hand-overs. Later they take part again."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node)) for node in nodes[:2]]
        urls = [*(proxy.url for proxy in proxies), *urls_of(nodes[2:])]
        options = {**OPTIONS, "ttl": 2.0}
        async with connected(mode, urls, **options) as one, connected(mode, urls, **options) as two:
            lease = await one.lock("a").acquire()
            tokens, clients = [lease.token], itertools.cycle((two, one))

            async def hand_over() -> None:
                nonlocal lease
                waiting = acquire_in_background(mode, next(clients).lock("a"))
                await wait_for_claims_on_all(nodes[2:], 1, lease.owner)
                assert await lease.release()
                lease = await asyncio.wait_for(waiting, SOON)
                tokens.append(lease.token)

            for turn in range(8):
                if turn == 3:
                    for proxy in proxies:
                        proxy.drop()
                await hand_over()
            for proxy in proxies:
                proxy.heal()
            healed = time.monotonic()
            # Votes from before that end with their ttl at the latest.
            while {holder_on(node) for node in nodes} != {lease.owner}:
                assert time.monotonic() < healed + 2.0 + 5.0
                await hand_over()
            assert await lease.release()
            assert tokens == sorted(set(tokens))
            await eventually_async(lambda: no_lock_state_left(*nodes), within=5)


@both
async def test_wait_goes_on_when_a_majority_was_away(mode: str, nodes: list[Server]) -> None:
    """Three of five nodes do not answer for a while. The waiter keeps its place."""
    async with connected(mode, urls_of(nodes), **OPTIONS) as one, connected(mode, urls_of(nodes), **OPTIONS) as two:
        lease = await one.lock("a").acquire()
        waiting = acquire_in_background(mode, two.lock("a"), wait=10)
        await wait_for_claims_on_all(nodes, 1, lease.owner)
        for node in nodes[:3]:
            node.pause()
        releasing = asyncio.ensure_future(_release(mode, lease))
        await asyncio.sleep(0.1)  # no synchronisation: a time in which no majority can answer
        assert not waiting.done()
        for node in nodes[:3]:
            node.resume()
        await releasing
        heir = await asyncio.wait_for(waiting, 5)
        assert heir.token > lease.token
        assert await heir.release()


async def _release(mode: str, lease: Any) -> None:
    if mode == "asyncio":
        await lease.release()
    else:
        await asyncio.to_thread(lease.inner.release)


# -- nodes that cannot push ----------------------------------------------------------------------------------------------


def _take_channels_away(node: Server) -> str:
    """The URL of a user of this node without the right to any channel."""
    node.command("ACL", "SETUSER", "quiet", "on", ">secret", "~*", "+@all", "resetchannels")
    return node.url.replace("redis://", "redis://quiet:secret@")


@both
async def test_nodes_without_channel_rights_do_not_take_part(mode: str, nodes: list[Server]) -> None:
    urls = [*map(_take_channels_away, nodes[:2]), *urls_of(nodes[2:])]
    await _hand_overs_without_two(mode, urls, nodes)


@both
async def test_nodes_without_resp3_do_not_take_part(mode: str) -> None:
    with mixed_nodes(3) as able, ExitStack() as stack:
        config = {"rename-command": "HELLO NOHELLO"}
        old = [stack.enter_context(Server(node.binary, config=config)) for node in able[:2]]
        nodes = [*old, *able]
        open_for_votes(nodes)
        await _hand_overs_without_two(mode, urls_of(nodes), nodes)


async def _hand_overs_without_two(mode: str, urls: list[str], nodes: list[Server]) -> None:
    """The first two nodes cannot push. The others queue and hand over, in order."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, urls, **OPTIONS)) for _ in range(4)]
        lease = await clients[0].lock("a").acquire()
        waiting: list[asyncio.Future[Any]] = []
        for client in clients[1:]:
            waiting.append(acquire_in_background(mode, client.lock("a")))
            await wait_for_claims_on_all(nodes[2:], len(waiting), lease.owner)
        assert [queue_length(node) for node in nodes[:2]] == [0, 0]
        tokens = [lease.token]
        for waiter in waiting:
            assert await lease.release()
            lease = await asyncio.wait_for(waiter, SOON)
            tokens.append(lease.token)
        assert await lease.release()
        assert tokens == sorted(set(tokens))
        await eventually_async(lambda: no_lock_state_left(*nodes))


@both
async def test_majority_without_channel_rights_is_polled(
    mode: str, nodes: list[Server], caplog: pytest.LogCaptureFixture
) -> None:
    urls = [*map(_take_channels_away, nodes[:3]), *urls_of(nodes[3:])]
    async with connected(mode, urls, **OPTIONS) as one, connected(mode, urls, **OPTIONS) as two:
        lease = await one.lock("a").acquire()
        waiting = acquire_in_background(mode, two.lock("a"))
        await eventually_async(lambda: "waiters poll there" in caplog.text)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.token > lease.token
        assert await heir.release()
        await eventually_async(lambda: no_lock_state_left(*nodes))


# -- bounds --------------------------------------------------------------------------------------------------------------


@COUNTS
@both
async def test_waiter_is_overtaken_by_a_bounded_number_of_later_ones(mode: str, count: int, calm: list[Server]) -> None:
    """Rivals acquire and release without a pause. Only earlier waiters get the lock before a queued waiter."""
    nodes, rivals = calm[:count], 3
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, urls_of(nodes), **OPTIONS)) for _ in range(rivals + 1)]
        took: list[float] = []
        ended = asyncio.Event()

        async def rival(client: Any) -> None:
            while not ended.is_set():
                lease = await acquire_in_background(mode, client.lock("a"))
                took.append(time.monotonic())
                await asyncio.sleep(0.002)
                await lease.release()

        tasks = [asyncio.create_task(rival(client)) for client in clients[1:]]
        await eventually_async(lambda: len(took) > 10)
        lock = clients[0].lock("a", label="patient")
        for _ in range(10):
            waiting = acquire_in_background(mode, lock)
            await _known(lock, waiting)
            before = len(took)
            lease = await asyncio.wait_for(waiting, SOON)
            # the waiters before it, and one that had the lock
            assert len(took) - before <= rivals + 1
            await lease.release()
        ended.set()
        await asyncio.wait_for(asyncio.gather(*tasks), SOON)


async def _known(lock: Any, waiting: asyncio.Future[Any]) -> None:
    """Wait until the servers know the waiter with the label `patient`, or it has the lock."""

    async def so() -> bool:
        return waiting.done() or any(":patient:" in who for who in await resolve(lock.waiters()))

    await wait_until(so, "the waiter is queued")
