"""`cohort=K`: a process hands a lock over to its own next waiter, up to K times, without a word to any server."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import AsyncExitStack
from typing import Any, Final

import pytest

import handfast
import handfast.aio
from handfast import NotAcquired
from handfast.testing import Server, Servers
from tests.support.eventually import eventually, eventually_async
from tests.support.stress_processes import Agent, in_thread
from tests.support.sync_and_async import MODES, Awaited, both, connected, plain

LONG: Final = 25.0
"""A ttl beyond every deadline in here: what comes sooner did not come by an expiry."""
SOON: Final = 2.0
"""Seconds within which what is passed on is seen, far less than LONG."""
KEY: Final = "handfast:{a}"
FAIR: Final = pytest.mark.parametrize("fair", [True, False], ids=["fair", "barging"])


def begin(mode: str, lock: Any, **options: Any) -> asyncio.Future[Any]:
    """An acquisition in the background: a task, or a thread of its own."""
    if mode == "asyncio":
        return asyncio.create_task(lock.acquire(**options))
    return in_thread(lambda: Awaited(lock.inner.acquire(**options)))


async def in_line(client: Any, count: int) -> None:
    """Until so many of this client wait."""
    queues = getattr(client, "inner", client)._queues

    def waiting() -> int:
        return sum(len(queue.waiters) for queue in list(queues.by_key.values()))

    await eventually_async(lambda: waiting() == count, what=f"{count} wait")


def calls(server: Server, *commands: str) -> int:
    """How often these commands were carried out."""
    said = [server.info(f"cmdstat_{command}") for command in commands]
    return sum(int(each.split("calls=")[1].split(",")[0]) for each in said if each)


def turns(owners: Iterable[str]) -> list[int]:
    """How many held the lock in a row under one owner, that is, between one word to the server and the next."""
    return [len(list(group)) for _, group in itertools.groupby(owners)]


def ascending(tokens: list[int]) -> bool:
    return tokens == sorted(set(tokens))


class Book:
    """What was held, in the order of holding; it also sees to it that nobody else holds it meanwhile."""

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


async def crowd(client: Any, lock: Any, count: int, book: Book, mode: str) -> list[asyncio.Future[None]]:
    """So many who want it, all in line behind one who has it now; the tasks end when all have had it."""

    async def task() -> None:
        lease = await lock.acquire()
        book.took(lease)
        await asyncio.sleep(0)
        book.ends()
        assert await lease.release()

    def thread() -> None:
        lease = lock.inner.acquire()
        book.took(lease)
        book.ends()
        assert lease.release()

    tasks: list[asyncio.Future[None]] = []
    for number in range(count):
        tasks.append(asyncio.create_task(task()) if mode == "asyncio" else in_thread(thread))
        if number == 0:
            # With one in line already, the others line up without an attempt of their own.
            await in_line(client, 1)
    await in_line(client, count)
    return tasks


# -- what is passed on ---------------------------------------------------------------------------------------------


@FAIR
@both
async def test_each_holder_has_its_own_token_and_a_turn_is_limited(mode: str, fair: bool, server: Server) -> None:
    many = 200 if mode == "asyncio" else 30
    async with connected(mode, server.url, ttl=LONG) as client:
        lock, book = client.lock("a", cohort=9, fair=fair), Book()
        lease = await lock.acquire()
        book.took(lease)
        tasks = await crowd(client, lock, many, book, mode)
        before = calls(server, "evalsha", "delifeq")
        book.ends()
        assert await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert len(book.entries) == many + 1
        assert ascending(book.tokens)
        taken = len(set(book.owners))
        assert max(turns(book.owners)) == 10
        assert len(turns(book.owners)) == taken
        # All of them, but the last, were used up; each cost one acquisition and one release, and little besides.
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
            waiting = begin(mode, lock)
            await in_line(client, 1)
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
        waiting = begin(mode, lock)
        await in_line(client, 1)
        assert await lease.release()
        lease = await asyncio.wait_for(waiting, SOON)
        assert lease.owner != owner
        assert lease.token > tokens[-1]
        assert await lease.release()
        assert server.command("EXISTS", KEY) == 0


@FAIR
@both
async def test_local_hand_over_wakes_the_next_waiter_at_once(mode: str, fair: bool, server: Server) -> None:
    """Whether its next holder came before or after the present one got it."""
    async with connected(mode, server.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=3, fair=fair)
        for waiters in (1, 2):
            lease = await lock.acquire()
            tasks = [begin(mode, lock) for _ in range(waiters)]
            await in_line(client, waiters)
            for _ in range(waiters):
                assert await lease.release()
                done, _ = await asyncio.wait(tasks, timeout=SOON, return_when=asyncio.FIRST_COMPLETED)
                assert done, "it was passed on, and nobody has it"
                (task,) = done
                tasks.remove(task)
                lease = task.result()
            assert await lease.release()
        assert server.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0


@pytest.mark.slow
@both
async def test_lease_after_local_hand_over_is_renewed_and_ends_before_its_key(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=0.4) as client:
        lock = client.lock("a", cohort=3)
        lease = await lock.acquire()
        waiting = begin(mode, lock)
        await in_line(client, 1)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.owner == lease.owner
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            before: Any = server.command("PTTL", KEY)
            mine = heir.remaining() * 1000
            after: Any = server.command("PTTL", KEY)
            # A renewal may come between any two of these.
            assert 0 < mine <= max(before, after + 100)
            await asyncio.sleep(0.02)  # no synchronisation: it is watched for more than twice its ttl
        assert await heir.release()
        assert server.command("EXISTS", KEY) == 0


@both
async def test_release_that_hands_over_returns_true_once(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=3)
        lease = await lock.acquire()
        waiting = begin(mode, lock)
        await in_line(client, 1)
        assert [await lease.release(), await lease.release()] == [True, False]
        assert lease.remaining() == 0.0
        with pytest.raises(handfast.LeaseLost):
            lease.check()
        heir = await asyncio.wait_for(waiting, SOON)
        # What was left of the first one's view changes nothing for the second.
        assert not await lease.release()
        assert heir.valid
        assert one.command("GET", KEY) == heir.owner.encode()
        assert [await heir.release(), await heir.release()] == [True, False]


@both
async def test_reentrant_lock_is_handed_over_by_its_last_release(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lock = client.rlock("a", cohort=3)
        outer = await lock.acquire()
        inner = await lock.acquire()
        assert inner.token == outer.token
        waiting = begin(mode, lock)
        await in_line(client, 1)
        assert await inner.release()
        assert outer.valid
        assert not waiting.done()
        assert await outer.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.owner == outer.owner
        assert heir.token > outer.token
        assert await heir.release()
        assert one.command("EXISTS", KEY) == 0


@both
async def test_cohort_without_tokens(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=LONG, fence=False) as client:
        lock, book = client.lock("a", cohort=4), Book()
        lease = await lock.acquire()
        book.took(lease)
        tasks = await crowd(client, lock, 20, book, mode)
        book.ends()
        assert await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 10)
        assert set(book.tokens) == {None}
        assert max(turns(book.owners)) == 5
        eventually(lambda: server.command("DBSIZE") == 0)


@plain
async def test_reserved_tokens_stay_below_later_ones_of_other_processes(server: Server) -> None:
    """Whoever reserves tokens must not hand them out below those that others have got since."""
    with Agent("threads", server.url, "a", cohort=4, ttl=LONG) as agent:
        async with handfast.aio.connect(server.url, ttl=LONG) as client:
            lock, tokens = client.lock("a", cohort=4), list[int]()
            for _ in range(5):
                lease = await lock.acquire()
                tokens.append(lease.token or 0)
                waiting = asyncio.create_task(lock.acquire())
                await in_line(client, 1)
                await lease.release()
                lease = await asyncio.wait_for(waiting, SOON)
                tokens.append(lease.token or 0)
                # Three of its tokens are never given out.
                agent.acquire()
                await lease.release()
                tokens.append(await in_thread(lambda: agent.held().token))
                assert await in_thread(agent.release)
            assert ascending(tokens)


# -- what is not passed on -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [{"ttl": 20.0}, {"cohort": 2}, {"cohort": 0}, {"renew": False}, {"fence": False}, {"owner": "job-42"}],
    ids=["ttl", "cohort", "none", "renew", "fence", "owner"],
)
@both
async def test_waiter_with_other_options_gets_the_lock_from_the_server(mode: str, other: Any, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lease = await client.lock("a", cohort=3).acquire()
        waiting = begin(mode, client.lock("a", **{"cohort": 3, **other}))
        await in_line(client, 1)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.owner != lease.owner
        assert heir.token is None or heir.token > lease.token
        assert heir.remaining() <= other.get("ttl", LONG)
        assert await heir.release()
        assert one.command("EXISTS", KEY) == 0


@both
async def test_waiter_with_another_ttl_gets_the_lock_from_the_server(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=3)
        lease = await lock.acquire()
        waiting = begin(mode, lock, ttl=5.0)
        await in_line(client, 1)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.owner != lease.owner
        assert 4.0 < heir.remaining() <= 5.0
        assert await heir.release()


@both
async def test_clients_do_not_hand_over_to_each_other_locally(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client, connected(mode, one.url, ttl=LONG) as other:
        lease = await client.lock("a", cohort=3).acquire()
        waiting = begin(mode, other.lock("a", cohort=3))
        await in_line(other, 1)
        assert await lease.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.owner != lease.owner
        assert heir.token > lease.token
        assert await heir.release()


# -- bounds: those of other processes wait too ---------------------------------------------------------------------


@pytest.mark.slow
@FAIR
@both
async def test_turn_is_no_longer_than_a_ttl(mode: str, fair: bool, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lock = client.lock("a", cohort=10**6, ttl=0.5, fair=fair)
        held: list[tuple[str, float, float]] = []
        ended = asyncio.Event()

        async def want() -> None:
            while not ended.is_set():
                lease = await begin(mode, lock)
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
            # The last one may have got it just before the end of the turn, and has looked at the clock after it.
            assert max(since for since, _ in times) - min(since for since, _ in times) <= 0.5 + 0.05
        assert ascending([int(since * 1e6) for _, since, _ in held])
        assert max(turns(owner for owner, _, _ in held)) > 3


class Greedy:
    """Some of one client who want a lock all the time."""

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
        # From where both were there to where one of them had stopped.
        middle = [number for _, _, number in held[12:]][: min(len(side.held) for side in both_sides)]
        lengths = [len(list(group)) for _, group in itertools.groupby(middle)]
        # A turn is five. On a busy machine the other side may not have queued yet when it ends: seldom, and once more.
        assert max(lengths) <= 15, lengths
        assert sum(length > 5 for length in lengths) <= 3, lengths
        eventually(lambda: server.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cohort": 4}], ids=["alone", "cohort"])
@pytest.mark.parametrize("mode", MODES)
@plain
async def test_waiter_of_another_process_is_not_starved_by_a_cohort(mode: str, options: Any, server: Server) -> None:
    """Also one that knows nothing of cohorts."""
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
                # It leaves word that it waits: the present turn, the next one, and one in case the machine was busy.
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


# -- those who go away ---------------------------------------------------------------------------------------------


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
            await in_line(client, 1 + others)
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
            short, heir = begin(mode, lock, wait=0.02), begin(mode, lock)
            await asyncio.sleep(max(0.0, began + 0.02 + (turn % 5 - 2) * 0.002 - time.monotonic()))  # around the end
            assert await lease.release()
            for task in (short, heir):
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
    await in_line(client, 3)
    assert lease.valid
    await client.close()
    for task in tasks:
        with pytest.raises(handfast.ConfigError, match="closed"):
            await task
    await eventually_async(lambda: one.command("EXISTS", KEY) == 0)


@pytest.mark.slow
@FAIR
@both
async def test_siblings_notice_that_the_holder_lost_the_lock(mode: str, fair: bool, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lock = client.lock("a", cohort=10, ttl=0.9, fair=fair)
        lease = await lock.acquire()
        waiting = begin(mode, lock)
        await in_line(client, 1)
        server.command("DEL", KEY)
        heir = await asyncio.wait_for(waiting, 0.9 + 1.0)
        assert heir.owner != lease.owner
        assert heir.token > lease.token
        await eventually_async(lambda: not lease.valid, what="the first one knows that it has lost it")
        assert not await lease.release()
        assert server.command("GET", KEY) == heir.owner.encode()
        assert await heir.release()


@both
async def test_lost_hold_is_not_handed_over_behind_a_newer_one(mode: str, server: Server) -> None:
    """The key is gone, its holder does not know it, a sibling has it, and a third one comes: it waits for that one."""
    async with connected(mode, server.url, ttl=LONG) as client:
        lock = client.lock("a", cohort=10)
        lease = await lock.acquire()
        server.command("DEL", KEY)
        anew = await lock.acquire()
        assert anew.token > lease.token
        waiting = begin(mode, lock)
        await in_line(client, 1)
        assert lease.valid
        await lease.release()
        for _ in range(20):
            if waiting.done():
                assert waiting.result().token > anew.token, "a token of before, and two who hold it"
            await asyncio.sleep(0.005)  # no synchronisation: time to go wrong in
        assert anew.valid
        assert await anew.release()
        heir = await asyncio.wait_for(waiting, SOON)
        assert heir.token > anew.token
        assert await heir.release()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_lock_of_killed_cohort_is_free_after_its_ttl(mode: str, server: Server) -> None:
    with (
        Agent(mode, server.url, "a", cohort=10, ttl=0.6) as first,
        Agent(mode, server.url, "a", cohort=10, ttl=LONG) as heir,
    ):
        first.acquire()
        token = first.held().token
        heir.acquire()
        first.kill()
        killed = time.monotonic()
        # The tokens that it had reserved are never given out by anybody.
        assert heir.held().token > token + 10
        assert time.monotonic() - killed < 0.6 + 1.0
        assert heir.release()


# -- a quorum ------------------------------------------------------------------------------------------------------


@both
async def test_cohort_on_a_quorum(mode: str, three: Servers) -> None:
    async with AsyncExitStack() as stack:
        options = {"ttl": LONG, "guard": False, "node_timeout": 0.5}
        client = await stack.enter_async_context(connected(mode, three.urls, **options))
        other = await stack.enter_async_context(connected(mode, three.urls, **options))
        lock, book = client.lock("a", cohort=4), Book()
        for _ in range(3):
            lease = await lock.acquire()
            book.took(lease)
            tasks = await crowd(client, lock, 24, book, mode)
            before = calls(three[0], "evalsha")
            book.ends()
            assert await lease.release()
            await asyncio.wait_for(asyncio.gather(*tasks), 10)
            assert calls(three[0], "evalsha") - before < 24
            # One of another client in between.
            lease = await other.lock("a").acquire()
            book.took(lease)
            book.ends()
            assert await lease.release()
        assert ascending(book.tokens)
        assert max(turns(book.owners)) == 5
        for node in three:
            await eventually_async(lambda node=node: node.command("EXISTS", KEY) == 0)


@both
async def test_cohort_on_a_quorum_goes_on_without_a_minority(mode: str, three: Servers) -> None:
    async with connected(mode, three.urls, ttl=LONG, guard=False, node_timeout=0.5) as client:
        lock, book = client.lock("a", cohort=4), Book()
        lease = await lock.acquire()
        book.took(lease)
        tasks = await crowd(client, lock, 24, book, mode)
        three[2].kill()
        book.ends()
        assert await lease.release()
        await asyncio.wait_for(asyncio.gather(*tasks), 20)
        assert len(book.entries) == 25
        assert ascending(book.tokens)
        for node in (three[0], three[1]):
            await eventually_async(lambda node=node: node.command("EXISTS", KEY) == 0)
