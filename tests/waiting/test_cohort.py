"""`cohort=K`: a process hands a lock over to its own next waiter, up to K times, without contacting a server."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import NotAcquired
from handfast.testing import Server, Servers
from tests.support.eventually import eventually, eventually_async
from tests.support.queues import KEY, LONG, SOON, acquire_in_background, call_count
from tests.support.stress_processes import Agent, in_thread
from tests.support.sync_and_async import MODES, both, connected, plain
from tests.support.waiters import FAIR

pytestmark = pytest.mark.slow


async def wait_for_local_waiters(client: Any, count: int) -> None:
    """Wait until so many acquisitions of this client wait."""
    queues = getattr(client, "inner", client)._queues

    def waiting() -> int:
        return sum(len(queue.waiters) for queue in list(queues.by_key.values()))

    await eventually_async(lambda: waiting() == count, what=f"{count} wait")


def calls(server: Server, *commands: str) -> int:
    """How often these commands were executed."""
    return sum(call_count(server, command) for command in commands)


def turns(owners: Iterable[str]) -> list[int]:
    """How many held the lock in a row under one owner, that is, without a release on the server."""
    return [len(list(group)) for _, group in itertools.groupby(owners)]


def ascending(tokens: list[int]) -> bool:
    return tokens == sorted(set(tokens))


class HoldLog:
    """All holders of a lock, in order. Fails if two hold it at once."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []
        self.busy = False

    def took(self, lease: Any) -> None:
        assert not self.busy, f"{lease} while another is held"
        self.busy = True
        self.entries.append((lease.owner, lease.token))

    def ends(self) -> None:
        self.busy = False

    @property
    def owners(self) -> list[str]:
        return [owner for owner, _ in self.entries]

    @property
    def tokens(self) -> list[int]:
        return [token for _, token in self.entries]


async def start_waiters(client: Any, lock: Any, count: int, log: HoldLog, mode: str) -> list[asyncio.Future[None]]:
    """Start so many waiters behind the present holder. Each returned task ends when its waiter has had the lock."""

    async def task() -> None:
        lease = await lock.acquire()
        log.took(lease)
        await asyncio.sleep(0)
        log.ends()
        assert await lease.release()

    def thread() -> None:
        lease = lock.inner.acquire()
        log.took(lease)
        log.ends()
        assert lease.release()

    tasks: list[asyncio.Future[None]] = []
    for number in range(count):
        tasks.append(asyncio.create_task(task()) if mode == "asyncio" else in_thread(thread))
        if number == 0:
            # With one waiter in the local queue, the others queue without an attempt of their own.
            await wait_for_local_waiters(client, 1)
    await wait_for_local_waiters(client, count)
    return tasks


# -- hand-over ---------------------------------------------------------------------------------------------


@FAIR
@both
async def test_each_holder_has_its_own_token_and_a_turn_is_limited(mode: str, fair: bool, server: Server) -> None:
    many = 200 if mode == "asyncio" else 30
    async with connected(mode, server.url, ttl=LONG) as client:
        lock, log = client.lock("a", cohort=9, fair=fair), HoldLog()
        lease = await lock.acquire()
        log.took(lease)
        tasks = await start_waiters(client, lock, many, log, mode)
        before = calls(server, "evalsha", "delifeq")
        log.ends()
        assert await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert len(log.entries) == many + 1
        assert ascending(log.tokens)
        taken = len(set(log.owners))
        assert max(turns(log.owners)) == 10
        assert len(turns(log.owners)) == taken
        # Every turn but the last was full. Each cost one acquisition and one release, and little besides.
        assert taken <= many / 10 + 2
        assert calls(server, "evalsha", "delifeq") - before <= 3 * taken + 2
        assert server.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0


@both
async def test_local_hand_over_costs_no_round_trip(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=5)
        lease = await lock.acquire()
        owner, tokens = lease.owner, [lease.token]
        for _ in range(5):
            waiting = acquire_in_background(mode, lock)
            await wait_for_local_waiters(client, 1)
            await eventually_async(lambda: server.command("ZCARD", KEY + ":q") == 1)
            before = calls(server, "evalsha", "delifeq", "set", "del")
            assert await lease.release()
            assert not lease.valid
            lease = await asyncio.wait_for(waiting, SOON)
            # The new holder leaves the server's queue, and waits for no answer to that.
            assert calls(server, "evalsha", "delifeq", "set", "del") - before <= 1
            await eventually_async(lambda: server.command("ZCARD", KEY + ":q") == 0)
            assert lease.owner == owner
            assert server.command("GET", KEY) == owner.encode()
            tokens.append(lease.token)
        assert ascending(tokens)
        # The turn is over: the next one takes it from the server.
        waiting = acquire_in_background(mode, lock)
        await wait_for_local_waiters(client, 1)
        assert await lease.release()
        lease = await asyncio.wait_for(waiting, SOON)
        assert lease.owner != owner
        assert lease.token > tokens[-1]
        assert await lease.release()
        assert server.command("EXISTS", KEY) == 0


@FAIR
@both
async def test_local_hand_over_wakes_the_next_waiter_at_once(mode: str, fair: bool, server: Server) -> None:
    """The next holder may queue before or after the present one acquired."""
    async with connected(mode, server.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=3, fair=fair)
        for waiters in (1, 2):
            lease = await lock.acquire()
            tasks = [acquire_in_background(mode, lock) for _ in range(waiters)]
            await wait_for_local_waiters(client, waiters)
            for _ in range(waiters):
                assert await lease.release()
                done, _ = await asyncio.wait(tasks, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
                assert done, "it was handed over, and nobody has it"
                (task,) = done
                tasks.remove(task)
                lease = task.result()
            assert await lease.release()
        assert server.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0


@both
async def test_lease_after_local_hand_over_is_renewed_and_ends_before_its_key(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=1.0) as client:
        lock = client.lock("a", cohort=3)
        lease = await lock.acquire()
        waiting = acquire_in_background(mode, lock)
        await wait_for_local_waiters(client, 1)
        assert await lease.release()
        successor = await asyncio.wait_for(waiting, SOON)
        assert successor.owner == lease.owner
        end = time.monotonic() + 2.2
        while time.monotonic() < end:
            before: Any = server.command("PTTL", KEY)
            mine = successor.remaining() * 1000
            after: Any = server.command("PTTL", KEY)
            # A renewal may come between any two of these.
            assert 0 < mine <= max(before, after + 100)
            await asyncio.sleep(0.02)  # no synchronisation: it is watched for more than twice its ttl
        assert await successor.release()
        assert server.command("EXISTS", KEY) == 0


@both
async def test_release_that_hands_over_returns_true_once(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=3)
        lease = await lock.acquire()
        waiting = acquire_in_background(mode, lock)
        await wait_for_local_waiters(client, 1)
        assert [await lease.release(), await lease.release()] == [True, False]
        assert lease.remaining() == 0.0
        with pytest.raises(handfast.LeaseLost):
            lease.check()
        successor = await asyncio.wait_for(waiting, SOON)
        # The first lease has no effect on the second.
        assert not await lease.release()
        assert successor.valid
        assert one.command("GET", KEY) == successor.owner.encode()
        assert [await successor.release(), await successor.release()] == [True, False]


@both
async def test_reentrant_lock_is_handed_over_by_its_last_release(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lock = client.rlock("a", cohort=3)
        outer = await lock.acquire()
        inner = await lock.acquire()
        assert inner.token == outer.token
        waiting = acquire_in_background(mode, lock)
        await wait_for_local_waiters(client, 1)
        assert await inner.release()
        assert outer.valid
        assert not waiting.done()
        assert await outer.release()
        successor = await asyncio.wait_for(waiting, SOON)
        assert successor.owner == outer.owner
        assert successor.token > outer.token
        assert await successor.release()
        assert one.command("EXISTS", KEY) == 0


@both
async def test_cohort_without_tokens(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG, fence=False) as client:
        lock, log = client.lock("a", cohort=4), HoldLog()
        lease = await lock.acquire()
        log.took(lease)
        tasks = await start_waiters(client, lock, 20, log, mode)
        log.ends()
        assert await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert set(log.tokens) == {None}
        assert max(turns(log.owners)) == 5
        eventually(lambda: server.command("DBSIZE") == 0)


@plain
async def test_reserved_tokens_stay_below_later_ones_of_other_processes(server: Server) -> None:
    """Reserved tokens must not be handed out below tokens that other processes got since."""
    with Agent("threads", server.url, "a", cohort=4, ttl=LONG) as agent:
        async with handfast.aio.connect(server.url, ttl=LONG) as client:
            lock, tokens = client.lock("a", cohort=4), list[int]()
            for _ in range(5):
                lease = await lock.acquire()
                tokens.append(lease.token or 0)
                waiting = asyncio.create_task(lock.acquire())
                await wait_for_local_waiters(client, 1)
                await lease.release()
                lease = await asyncio.wait_for(waiting, SOON)
                tokens.append(lease.token or 0)
                # Three of its tokens are never given out.
                agent.acquire()
                await lease.release()
                tokens.append(await in_thread(lambda: agent.held().token))
                assert await in_thread(agent.release)
            assert ascending(tokens)


# -- no hand-over -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "call"),
    [
        ({"ttl": 20.0}, {}),
        ({"cohort": 2}, {}),
        ({"cohort": 0}, {}),
        ({"renew": False}, {}),
        ({"fence": False}, {}),
        ({"owner": "job-42"}, {}),
        ({}, {"ttl": 5.0}),
    ],
    ids=["ttl", "cohort", "none", "renew", "fence", "owner", "ttl of the call"],
)
@both
async def test_waiter_with_other_options_gets_the_lock_from_the_server(
    mode: str, other: Any, call: Any, one: Server
) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lease = await client.lock("a", cohort=3).acquire()
        waiting = acquire_in_background(mode, client.lock("a", **{"cohort": 3, **other}), **call)
        await wait_for_local_waiters(client, 1)
        assert await lease.release()
        successor = await asyncio.wait_for(waiting, SOON)
        assert successor.owner != lease.owner
        assert successor.token is None or successor.token > lease.token
        ttl = {**other, **call}.get("ttl", LONG)
        assert ttl - 1 < successor.remaining() <= ttl
        assert await successor.release()
        assert one.command("EXISTS", KEY) == 0


@both
async def test_clients_do_not_hand_over_to_each_other_locally(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client, connected(mode, one.url, ttl=LONG) as other:
        lease = await client.lock("a", cohort=3).acquire()
        waiting = acquire_in_background(mode, other.lock("a", cohort=3))
        await wait_for_local_waiters(other, 1)
        assert await lease.release()
        successor = await asyncio.wait_for(waiting, SOON)
        assert successor.owner != lease.owner
        assert successor.token > lease.token
        assert await successor.release()


# -- bounds: waiters of other processes ---------------------------------------------------------------------


@FAIR
@both
async def test_turn_is_no_longer_than_a_ttl(mode: str, fair: bool, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lock = client.lock("a", cohort=10**6, ttl=0.5, fair=fair)
        held: list[tuple[str, float, float]] = []
        ended = asyncio.Event()

        async def want() -> None:
            while not ended.is_set():
                lease = await acquire_in_background(mode, lock)
                since = time.monotonic()
                await asyncio.sleep(0.02)
                held.append((lease.owner, since, time.monotonic()))
                await lease.release()

        tasks = [asyncio.create_task(want()) for _ in range(3)]
        await eventually_async(lambda: len({owner for owner, _, _ in held}) >= 4, within=10, what="a few turns")
        ended.set()
        await asyncio.gather(*tasks)
        for owner in {owner for owner, _, _ in held}:
            times = [(since, until) for each, since, until in held if each == owner]
            # Every holder but the last has handed over. It read the clock before that, and the first one after its grant.
            assert all(until - times[0][0] <= 0.5 for _, until in times[:-1])
        assert ascending([int(since * 1e6) for _, since, _ in held])
        assert max(turns(owner for owner, _, _ in held)) > 3


class Greedy:
    """Tasks or threads of one client that acquire a lock all the time."""

    def __init__(self, mode: str, lock: Any, count: int) -> None:
        self.mode = mode
        self.lock = lock
        self.held: deque[tuple[float, str, int]] = deque()
        self.ended = threading.Event()
        self.tasks = [
            asyncio.create_task(self._task()) if mode == "asyncio" else in_thread(self._thread) for _ in range(count)
        ]

    async def _task(self) -> None:
        while not self.ended.is_set():
            lease = await self.lock.acquire()
            self.held.append((time.monotonic(), lease.owner, lease.token))
            await asyncio.sleep(0.001)
            await lease.release()

    def _thread(self) -> None:
        while not self.ended.is_set():
            lease = self.lock.inner.acquire()
            self.held.append((time.monotonic(), lease.owner, lease.token))
            time.sleep(0.001)
            lease.release()

    async def end(self) -> None:
        self.ended.set()
        await asyncio.wait_for(asyncio.gather(*self.tasks), 10)


@FAIR
@both
async def test_two_cohorts_take_turns(mode: str, fair: bool, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG) as one, connected(mode, server.url, ttl=LONG) as two:
        both_sides = [Greedy(mode, client.lock("a", cohort=4, fair=fair), 6) for client in (one, two)]
        await eventually_async(lambda: all(len(each.held) >= 40 for each in both_sides), within=20)
        for side in both_sides:
            await side.end()
        held = sorted((at, token, number) for number, side in enumerate(both_sides) for at, _, token in side.held)
        assert ascending([token for _, token, _ in held])
        # From where all threads of both had begun, which is after two turns of each, to where one of them had stopped.
        middle = [number for _, _, number in held[12:]][: min(len(side.held) for side in both_sides)]
        lengths = [len(list(group)) for _, group in itertools.groupby(middle)][4:]
        # A turn is five. On a busy machine the other side may not have queued yet when it ends: seldom, and once more.
        assert max(lengths) <= 15, lengths
        assert sum(length > 5 for length in lengths) <= 3, lengths
        eventually(lambda: server.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0)


@pytest.mark.parametrize("options", [{}, {"cohort": 4}], ids=["alone", "cohort"])
@pytest.mark.parametrize("mode", MODES)
@plain
async def test_waiter_of_another_process_is_not_starved_by_a_cohort(mode: str, options: Any, server: Server) -> None:
    """Also a waiter without `cohort=`."""
    with Agent(mode, server.url, "a", ttl=LONG, **options) as agent:
        async with connected(mode, server.url, ttl=LONG) as client:
            greedy = Greedy(mode, client.lock("a", cohort=4), 6)
            await eventually_async(lambda: len(greedy.held) > 10)
            tokens: list[int] = []
            between: list[int] = []
            for _ in range(10):
                before = len(greedy.held)
                agent.acquire()
                tokens.append((await in_thread(lambda: agent.held(SOON))).token)
                between.append(len(greedy.held) - before)
                assert await in_thread(agent.release)
                await eventually_async(lambda: greedy.held[-1][2] > tokens[-1])
            await greedy.end()
            if options:
                # Its claim ends the turn: the present turn, the next one, and one in case the machine is busy.
                assert sorted(between)[-2] <= 15, between
            assert ascending([token for _, _, token in greedy.held])
            assert not {*tokens} & {token for _, _, token in greedy.held}


@pytest.mark.parametrize("mode", MODES)
@plain
async def test_waiter_of_another_process_comes_after_one_turn(mode: str, server: Server) -> None:
    with Agent(mode, server.url, "a", ttl=LONG) as agent:
        async with connected(mode, server.url, ttl=LONG) as client:
            greedy = Greedy(mode, client.lock("a", cohort=4), 6)
            await eventually_async(lambda: len(greedy.held) > 10)
            for _ in range(10):
                agent.acquire()
                held = await in_thread(lambda: agent.held(SOON))
                assert await in_thread(agent.release)
                await eventually_async(lambda token=held.token: greedy.held[-1][2] > token)
            await greedy.end()
            assert ascending([token for _, _, token in greedy.held])
            assert max(turns(owner for _, owner, _ in greedy.held)) <= 5


# -- waiters that leave ---------------------------------------------------------------------------------------------


@FAIR
@pytest.mark.parametrize("others", [0, 1, 3])
@plain
async def test_waiter_cancelled_during_local_hand_over_does_not_keep_the_lock(
    fair: bool, others: int, server: Server
) -> None:
    async with handfast.aio.connect(server.url, ttl=LONG) as client:
        lock, tokens = client.lock("a", cohort=10, fair=fair), list[int]()
        for turn in range(12):
            lease = await lock.acquire()
            tokens.append(lease.token or 0)
            tasks = [asyncio.create_task(lock.acquire()) for _ in range(1 + others)]
            await wait_for_local_waiters(client, 1 + others)
            assert await lease.release()
            for _ in range(turn % 4):
                await asyncio.sleep(0)
            tasks[0].cancel()
            for task in tasks:
                try:
                    lease = await asyncio.wait_for(task, SOON)
                except asyncio.CancelledError:
                    assert task is tasks[0]
                else:
                    tokens.append(lease.token or 0)
                    assert await lease.release()
            await eventually_async(lambda: server.command("EXISTS", KEY) == 0, what="no key is left")
        assert ascending(tokens)
        assert server.command("EXISTS", KEY + ":q") == 0


@FAIR
@both
async def test_waiter_that_times_out_during_local_hand_over_has_the_lock_or_releases_it(
    mode: str, fair: bool, one: Server
) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=10, fair=fair)
        outcomes: set[bool] = set()
        for turn in range(20):
            lease = await lock.acquire()
            began = time.monotonic()
            short, successor = acquire_in_background(mode, lock, wait=0.02), acquire_in_background(mode, lock)
            await asyncio.sleep(max(0.0, began + 0.02 + (turn % 5 - 2) * 0.002 - time.monotonic()))  # around the end
            assert await lease.release()
            for task in (short, successor):
                try:
                    assert await (await asyncio.wait_for(task, SOON)).release()
                    outcomes.add(True)
                except NotAcquired:
                    assert task is short
                    outcomes.add(False)
            await eventually_async(lambda: one.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0, what="no key is left")
        assert outcomes == {True, False}


@plain
async def test_closed_client_with_waiters_leaves_no_key(one: Server) -> None:
    client = handfast.aio.connect(one.url, ttl=LONG)
    lock = client.lock("a", cohort=10)
    lease = await lock.acquire()
    tasks = [asyncio.create_task(lock.acquire()) for _ in range(3)]
    await wait_for_local_waiters(client, 3)
    assert lease.valid
    await client.close()
    for task in tasks:
        with pytest.raises(handfast.ConfigError, match="closed"):
            await task
    await eventually_async(lambda: one.command("EXISTS", KEY) == 0)


@FAIR
@both
async def test_siblings_notice_that_the_holder_lost_the_lock(mode: str, fair: bool, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lock = client.lock("a", cohort=10, ttl=0.9, fair=fair)
        lease = await lock.acquire()
        waiting = acquire_in_background(mode, lock)
        await wait_for_local_waiters(client, 1)
        server.command("DEL", KEY)
        successor = await asyncio.wait_for(waiting, 0.9 + 1.0)
        assert successor.owner != lease.owner
        assert successor.token > lease.token
        await eventually_async(lambda: not lease.valid, what="the first one knows that it has lost it")
        assert not await lease.release()
        assert server.command("GET", KEY) == successor.owner.encode()
        assert await successor.release()


@both
async def test_lost_hold_is_not_handed_over_behind_a_newer_one(mode: str, server: Server) -> None:
    """The key is gone, its holder does not know, a sibling has the lock. A third acquisition waits for the sibling."""
    async with connected(mode, server.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=10)
        lease = await lock.acquire()
        server.command("DEL", KEY)
        anew = await lock.acquire()
        assert anew.token > lease.token
        waiting = acquire_in_background(mode, lock)
        await wait_for_local_waiters(client, 1)
        assert lease.valid
        await lease.release()
        for _ in range(20):
            if waiting.done():
                assert waiting.result().token > anew.token, "an older token, and two holders"
            await asyncio.sleep(0.005)  # no synchronisation: time to go wrong in
        assert anew.valid
        assert await anew.release()
        successor = await asyncio.wait_for(waiting, SOON)
        assert successor.token > anew.token
        assert await successor.release()


@pytest.mark.parametrize("mode", MODES)
def test_lock_of_killed_cohort_is_free_after_its_ttl(mode: str, server: Server) -> None:
    with (
        Agent(mode, server.url, "a", cohort=10, ttl=0.6) as first,
        Agent(mode, server.url, "a", cohort=10, ttl=LONG) as successor,
    ):
        first.acquire()
        token = first.held().token
        successor.acquire()
        first.kill()
        killed = time.monotonic()
        # Nobody hands out the tokens that it had reserved.
        assert successor.held().token > token + 10
        assert time.monotonic() - killed < 0.6 + 1.0
        assert successor.release()


# -- a quorum ------------------------------------------------------------------------------------------------------


@both
async def test_cohort_on_a_quorum(mode: str, three: Servers) -> None:
    async with AsyncExitStack() as stack:
        options = {"ttl": LONG, "guard": False, "node_timeout": 0.5}
        client = await stack.enter_async_context(connected(mode, three.urls, **options))
        other = await stack.enter_async_context(connected(mode, three.urls, **options))
        lock, log = client.lock("a", cohort=4), HoldLog()
        for _ in range(3):
            lease = await lock.acquire()
            log.took(lease)
            tasks = await start_waiters(client, lock, 24, log, mode)
            before = calls(three[0], "evalsha")
            log.ends()
            assert await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert calls(three[0], "evalsha") - before < 24
            # One of another client in between.
            lease = await other.lock("a").acquire()
            log.took(lease)
            log.ends()
            assert await lease.release()
        assert ascending(log.tokens)
        assert max(turns(log.owners)) == 5
        for node in three:
            await eventually_async(lambda node=node: node.command("EXISTS", KEY) == 0)


@both
async def test_cohort_on_a_quorum_goes_on_without_a_minority(mode: str, three: Servers) -> None:
    async with connected(mode, three.urls, ttl=LONG, guard=False, node_timeout=0.5) as client:
        lock, log = client.lock("a", cohort=4), HoldLog()
        lease = await lock.acquire()
        log.took(lease)
        tasks = await start_waiters(client, lock, 24, log, mode)
        three[2].kill()
        log.ends()
        assert await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert len(log.entries) == 25
        assert ascending(log.tokens)
        for node in (three[0], three[1]):
            await eventually_async(lambda node=node: node.command("EXISTS", KEY) == 0)
