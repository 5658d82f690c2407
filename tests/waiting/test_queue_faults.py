"""Waiters and holders that hang, die, are interrupted or give up, in every position, on one node and on five."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import handfast
from handfast.testing import Server, Servers
from tests.support.eventually import eventually_async
from tests.support.queues import SOON, acquire_in_background, no_lock_state_left, wait_for_claims_on_all
from tests.support.stress_processes import Agent, in_thread
from tests.support.sync_and_async import MODES, connected, plain

TTL = 1.0
OPTIONS: dict[str, Any] = {"ttl": TTL, "node_timeout": 0.3}
TOPOLOGIES = {"one node": 1, "five nodes": 5}


@pytest.fixture(scope="module", params=TOPOLOGIES)
def _nodes(request: pytest.FixtureRequest) -> Iterator[list[Server]]:
    with Servers(TOPOLOGIES[request.param]) as servers:
        yield servers.nodes


@pytest.fixture
def nodes(_nodes: list[Server]) -> list[Server]:
    """One empty node, or five that are open for votes."""
    for node in _nodes:
        node.command("FLUSHALL")
    if len(_nodes) > 1:
        with handfast.connect(urls_of(_nodes), node_timeout=5.0) as client:
            handfast.bootstrap(client)
    return _nodes


def urls_of(nodes: list[Server]) -> Any:
    return [node.url for node in nodes] if len(nodes) > 1 else nodes[0].url


WAITER_FAULTS: dict[str, Callable[[Agent], object]] = {
    "killed": Agent.kill,
    "hung": Agent.stop,
    "interrupted": Agent.interrupt,
    "timed out": lambda agent: agent.hear(),
}


@pytest.mark.parametrize("position", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("fault", WAITER_FAULTS)
@plain
async def test_faulty_waiter_is_skipped_and_the_others_keep_their_order(
    fault: str, position: int, nodes: list[Server]
) -> None:
    mode = MODES[position % 2]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, urls_of(nodes), **OPTIONS)) for _ in range(3)]
        faulty = stack.enter_context(Agent(MODES[1 - position % 2], urls_of(nodes), "a", **OPTIONS))
        lease = await clients[0].lock("a").acquire()
        tokens, waiting = [lease.token], list[asyncio.Future[Any]]()
        for place in range(3):
            if place == position:
                faulty.acquire(wait=1.5 if fault == "timed out" else None)
            else:
                waiting.append(acquire_in_background(mode, clients[len(waiting) + 1].lock("a")))
            await wait_for_claims_on_all(nodes, place + 1, lease.owner)
        await in_thread(lambda: WAITER_FAULTS[fault](faulty))
        if fault == "interrupted":
            assert await in_thread(faulty.hear) == ["failed", "KeyboardInterrupt"]
        if fault in ("interrupted", "timed out"):
            await wait_for_claims_on_all(nodes, 2, lease.owner)
        for number, waiter in enumerate(waiting):
            assert not any(other.done() for other in waiting[number:])
            assert await lease.release()
            # A hung waiter is handed the lock, and it moves on when its ttl is over. Others look again once in a ttl.
            lease = await asyncio.wait_for(waiter, SOON + (2 * TTL if fault == "hung" else 0))
            tokens.append(lease.token)
        assert await lease.release()
        if fault == "hung":
            faulty.resume()
            held = await in_thread(faulty.held)
            tokens.append(held.token)
            assert await in_thread(faulty.release)
        assert tokens == sorted(set(tokens))
        await eventually_async(lambda: no_lock_state_left(*nodes))


@pytest.mark.parametrize("fault", ["killed", "hung"])
@pytest.mark.parametrize("mode", MODES)
@plain
async def test_lock_of_faulty_holder_goes_to_the_waiters_in_order(mode: str, fault: str, nodes: list[Server]) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, urls_of(nodes), **OPTIONS)) for _ in range(2)]
        faulty = stack.enter_context(Agent(mode, urls_of(nodes), "a", **OPTIONS))
        faulty.acquire()
        held = await in_thread(faulty.held)
        tokens = [held.token]
        waiting: list[asyncio.Future[Any]] = []
        for client in clients:
            waiting.append(acquire_in_background(mode, client.lock("a")))
            await wait_for_claims_on_all(nodes, len(waiting), held.owner)
        await in_thread(faulty.kill if fault == "killed" else faulty.stop)
        struck = time.monotonic()
        first = await asyncio.wait_for(waiting[0], TTL + SOON)
        assert time.monotonic() - struck < TTL + 1.0
        assert not waiting[1].done()
        assert await first.release()
        second = await asyncio.wait_for(waiting[1], SOON)
        if fault == "hung":
            # It wakes up while another has the lock, and knows at once that it has not.
            faulty.resume()
            faulty.tell("valid")
            assert await in_thread(faulty.hear) == ["valid", "False"]
            assert not await in_thread(faulty.release)
            assert second.valid
        assert await second.release()
        tokens += [first.token, second.token]
        assert tokens == sorted(set(tokens))
        await eventually_async(lambda: no_lock_state_left(*nodes))


@plain
async def test_waiters_cancelled_at_any_moment_leave_nothing_behind(nodes: list[Server]) -> None:
    """While another holds the lock, and while it is handed over."""
    async with AsyncExitStack() as stack:
        one, fickle, heir = [
            await stack.enter_async_context(connected("asyncio", urls_of(nodes), **{**OPTIONS, "ttl": 20.0}))
            for _ in range(3)
        ]
        cancelled = {False: 0, True: 0}
        for turns, release_first in itertools.product(range(20), (False, True)):
            lease = await one.lock("a").acquire(wait=SOON)
            waiting = asyncio.create_task(fickle.lock("a").acquire())
            if release_first:
                await wait_for_claims_on_all(nodes, 1, lease.owner)
            behind = asyncio.create_task(heir.lock("a").acquire())
            if release_first:
                await wait_for_claims_on_all(nodes, 2, lease.owner)
            releasing = asyncio.create_task(lease.release()) if release_first else None
            if releasing and turns % 2:
                await releasing
            for _ in range(turns // 2 if release_first else turns):
                await asyncio.sleep(0)
            waiting.cancel()
            try:
                assert await (await waiting).release()
            except asyncio.CancelledError:
                cancelled[release_first] += 1
            if releasing:
                assert await releasing
            else:
                await wait_for_claims_on_all(nodes, 1, lease.owner)
                assert await lease.release()
            assert await (await asyncio.wait_for(behind, SOON)).release()
        assert min(cancelled.values()) > 3, cancelled
        await eventually_async(lambda: no_lock_state_left(*nodes))
