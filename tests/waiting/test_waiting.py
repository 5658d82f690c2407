"""Waiters of one process: in order of arrival, one waiter to the server, reported, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import handfast.aio
from handfast import ConfigError, Contended, NoQuorum, watchdog
from handfast.core.local_queue import Waiter, WaitQueue
from handfast.core.queue import ServerQueue
from handfast.events import Event
from handfast.testing import Server
from tests.support.eventually import comes_true, eventually, eventually_async
from tests.support.sync_and_async import both, connected, plain
from tests.support.waiters import (
    FAIR,
    FOREIGN,
    FOREIGN_KEY,
    KEY,
    KINDS,
    STALLED,
    attempt_in_background,
    commands_executed,
    held_by_another_program,
    resolve,
    wait_for_queued_waiters,
    wait_for_waiters,
)
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = pytest.mark.slow

CROWD = {"asyncio": 10_000, "threads": 500}
FAULTS: dict[str, Callable[[Server], None]] = {
    "held": lambda server: None,
    "killed": Server.kill,
    "paused": Server.pause,
}


@pytest.fixture
def _small_stacks() -> Iterator[None]:
    before = threading.stack_size(256 * 1024)
    yield
    threading.stack_size(before)


def handfast_connections(server: Server) -> int:
    """Connections of handfast."""
    clients = server.command("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    return clients.count(b"name=handfast ")


def queues_of(client: Any) -> Any:
    return client._queues.by_key


# -- the local queue ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_waiters_get_the_lock_in_order_of_arrival(mode: str, kind: str, server: Server) -> None:
    came: list[int] = []

    async def turn(i: int) -> None:
        got = await attempt_in_background(lock, wait=STALLED)
        assert got.lease, got.error
        came.append(i)
        await got.lease.release()

    async with connected(mode, server.url) as client:
        began: list[Event] = []
        client.listen(lambda event: began.append(event) if event.kind == "waiting_began" else None)
        lock = client.lock("a", **KINDS[kind])
        first = await lock.acquire()
        waiters: list[asyncio.Task[None]] = []
        for i in range(12):
            waiters.append(asyncio.create_task(turn(i)))
            await eventually_async(lambda: len(began) == len(waiters))
        await first.release()
        await asyncio.gather(*waiters)
        assert came == list(range(12))


@pytest.mark.usefixtures("_small_stacks")
@both
async def test_many_waiters_of_a_process_are_one_waiter_to_the_server(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lock = client.lock("a", **FOREIGN)
        with held_by_another_program(server):
            waiters = [attempt_in_background(lock, wait=30)]
            await wait_for_queued_waiters(lock, 1, server)
            connections = handfast_connections(server)
            waiters += [attempt_in_background(lock, wait=30) for _ in range(CROWD[mode] - 1)]
            await wait_for_waiters(lock, CROWD[mode])
            before = commands_executed(server)
            await asyncio.sleep(0.3)  # a time to be silent in
            assert commands_executed(server) - before == Counter()
            assert handfast_connections(server) <= connections
        lease = (await waiters[0]).lease
        rest = waiters[1:-1]
        if mode == "asyncio":
            random.Random(7).shuffle(rest)
            for each in rest:
                each.cancel()
            await asyncio.wait(rest)
            await lease.release()
            assert (await waiters[-1]).lease.valid
        else:  # threads cannot be cancelled, but closing ends their waits
            await client.close()
            assert {type((await each).error) for each in rest} == {ConfigError}
        assert handfast_connections(server) <= connections + 1  # the watchdog's


@FAIR
@pytest.mark.parametrize("leaver", [0, 2, 4], ids=["first", "middle", "last"])
@pytest.mark.parametrize(("mode", "how"), [("threads", "late"), ("asyncio", "late"), ("asyncio", "cancelled")])
@plain
async def test_next_waiter_is_right_when_one_leaves(mode: str, how: str, leaver: int, fair: bool, one: Server) -> None:
    async with connected(mode, one.url) as client, connected(mode, one.url) as other:
        lock = client.lock("a", fair=fair)
        lease = await other.lock("a", fair=fair, ttl=20.0).acquire()
        waiters = []
        for i in range(5):
            waiters.append(attempt_in_background(lock, wait=1.0 if how == "late" and i == leaver else 10))
            # The server knows the first waiter before the client's own queue does.
            await eventually_async(lambda: bool(queues_of(client)))
            await wait_for_waiters(lock, i + 1)
        left = waiters.pop(leaver)
        if how == "cancelled":
            left.cancel()
            await asyncio.wait([left])
            assert left.cancelled()
        else:
            assert isinstance((await left).error, Contended)
        await wait_for_waiters(lock, 4)
        for each in waiters:
            assert not each.done()
            await lease.release()
            lease = (await asyncio.wait_for(each, STALLED)).lease
        await lease.release()
        assert not queues_of(client)
        await eventually_async(lambda: one.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0)


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_waiters_that_leave_at_any_moment_do_not_affect_others(mode: str, kind: str, one: Server) -> None:
    """A third gives up at its deadline, a third is cancelled (tasks only), a third waits until it has the lock.

    They leave while the lock is handed from one to the next, so all must wait before the first of them leaves. On a busy
    machine that may take several tries, each with more time.
    """
    for seconds in (1.0, 4.0, 16.0):
        if await _waiters_leave(mode, kind, one, seconds):
            return
    pytest.fail("the first waiter had left before the last one came")


async def _waiters_leave(mode: str, kind: str, one: Server, seconds: float) -> bool:
    """False if one has left before all waited: nothing is known then."""
    dice = random.Random(f"{mode} {kind}")
    came: list[int] = []
    inside = 0

    async def waiter(i: int, want: asyncio.Future[Any]) -> None:
        nonlocal inside
        await asyncio.wait([want])
        if want.cancelled():
            return
        lease = (await want).lease
        if lease is None:
            assert i % 3 == 0
            return
        assert inside == 0
        inside += 1
        came.append(i)
        await asyncio.sleep(dice.uniform(0.03, 0.09))
        inside -= 1
        assert await lease.release()

    async with connected(mode, one.url) as client, connected(mode, one.url) as other:
        lock = client.lock("a", **KINDS[kind])
        first = await other.lock("a", ttl=20.0, **KINDS[kind]).acquire()
        waiters: list[asyncio.Task[None]] = []
        began = time.monotonic()
        for i in range(24):
            leaves = began + seconds * dice.uniform(0.9, 1.2) - time.monotonic()
            want = attempt_in_background(lock, wait=max(0.0, leaves) if i % 3 == 0 else 60)
            if i % 3 == 1 and mode == "asyncio":
                asyncio.get_running_loop().call_later(leaves, want.cancel)
            waiters.append(asyncio.create_task(waiter(i, want)))
            waits = asyncio.create_task(wait_for_waiters(lock, i + 1))
            await asyncio.wait([waits, *waiters], return_when=asyncio.FIRST_COMPLETED)
            if not waits.done():
                waits.cancel()
                break
        all_wait = waits.done() and time.monotonic() < began + 0.9 * seconds
        await first.release()
        await asyncio.wait_for(asyncio.gather(*waiters), 30)
        if not all_wait:
            return False
        assert came == sorted(came)
        assert set(range(2, 24, 3)) <= set(came)
        assert len(came) < 24, "some have left"
        assert not queues_of(client)
        await eventually_async(lambda: one.command("EXISTS", KEY, KEY + ":q", KEY + ":c") == 0)
        return True


# -- ends ---------------------------------------------------------------------------------------------------------------


@FAIR
@pytest.mark.parametrize("fault", FAULTS)
@both
async def test_closing_a_client_ends_all_its_waits(mode: str, fault: str, fair: bool) -> None:
    with Server() as server:
        async with connected(mode, server.url) as other, connected(mode, server.url) as client:
            lease = await other.lock("a", fair=fair, ttl=20.0).acquire()
            lock = client.lock("a", fair=fair)
            waiters = []
            for _ in range(3):
                waiters.append(attempt_in_background(lock, wait=10))
                await wait_for_waiters(lock, len(waiters))
            await wait_for_queued_waiters(lock, 3, server)
            FAULTS[fault](server)
            await client.close()
            all_got = await asyncio.wait_for(asyncio.gather(*waiters), STALLED)
            assert {type(got.error) for got in all_got} == {ConfigError}
            assert "closed while it waited" in str(all_got[0].error)
            assert not queues_of(client)
            if fault == "held":
                await eventually_async(lambda: server.command("EXISTS", KEY + ":q", KEY + ":c") == 0)
                assert await lease.release()
            server.resume()


def test_client_closed_while_its_first_lock_is_granted_keeps_nothing(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread closes the client after the grant and before its watchdog has started."""
    attach = watchdog.attach
    granted, closed = threading.Event(), threading.Event()

    def late(*args: Any) -> Any:
        granted.set()
        closed.wait(0.3)  # or not at all, if closing waits for this thread
        return attach(*args)

    eventually(lambda: handfast_connections(one) == 0)
    monkeypatch.setattr(watchdog, "attach", late)
    client = handfast.connect(one.url, ttl=20.0)
    with ThreadPoolExecutor(1) as pool:
        with held_by_another_program(one):
            want = pool.submit(client.lock("a", **FOREIGN).acquire, wait=5)
            eventually(client.lock("a", **FOREIGN).waiters)
        assert granted.wait(2)
        client.close()
        closed.set()
        if want.exception(2) is None:
            assert not want.result().valid
        else:
            assert isinstance(want.exception(), ConfigError)
    eventually(lambda: one.command("EXISTS", FOREIGN_KEY) == 0)
    eventually(lambda: handfast_connections(one) == 0)


def waits_only(events: list[Event]) -> Callable[[Event], None]:
    """A listener that keeps the events about waiting."""
    return lambda event: events.append(event) if event.kind.startswith("waiting") else None


@FAIR
@both
async def test_listeners_get_waits_and_a_failing_listener_changes_nothing(
    mode: str, fair: bool, one: Server, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[Event] = []

    def failing(event: Event) -> None:
        raise RuntimeError("of no interest")

    async with connected(mode, one.url) as client:
        client.listen(failing)
        end = client.listen(waits_only(events))
        lock = client.lock("a", fair=fair)
        lease = await lock.acquire()
        assert events == [], "a caller that got it at once did not wait"
        late = attempt_in_background(lock, wait=0.1)
        await eventually_async(lambda: len(events) == 1)
        lucky = attempt_in_background(lock, wait=10)
        assert isinstance((await late).error, Contended)
        await wait_for_waiters(lock, 1)
        await lease.release()
        lease = (await lucky).lease
        closed = attempt_in_background(lock, wait=10)
        await wait_for_waiters(lock, 1)
        await eventually_async(lambda: len(events) == 5)
        await client.close()
        assert isinstance((await closed).error, ConfigError)
        await eventually_async(lambda: len(events) == 6)
    began = [event for event in events if event.kind == "waiting_began"]
    ended = [event for event in events if event.kind == "waiting_ended"]
    assert [event.outcome for event in ended] == ["Contended", "acquired", "ConfigError"]
    assert [event.who for event in began] == [event.who for event in ended]
    assert len({event.who for event in began}) == 3
    assert {event.name for event in events} == {"a"}
    assert all(event.seconds == 0.0 and event.outcome == "" for event in began)
    assert 0.1 <= ended[0].seconds < 5.0
    assert "a listener failed at an event" in caplog.text
    end()
    async with connected(mode, one.url) as client:
        client.listen(waits_only(events))()
        lock = client.lock("a", fair=fair)
        lease = await lock.acquire()
        assert isinstance((await attempt_in_background(lock, wait=0.05)).error, Contended)
        await lease.release()
    assert len(events) == 6, "a listener that was removed gets no events"


@plain
async def test_cancelled_wait_is_reported_as_cancelled(one: Server) -> None:
    events: list[Event] = []
    async with handfast.aio.connect(one.url) as client:
        client.listen(waits_only(events))
        with held_by_another_program(one):
            waiters = [attempt_in_background(client.lock("a", **FOREIGN)) for _ in range(2)]
            await wait_for_waiters(client.lock("a", **FOREIGN), 2)
            for each in waiters:
                each.cancel()
            await asyncio.wait(waiters)
    assert [event.outcome for event in events] == ["", "", "CancelledError", "CancelledError"]


@FAIR
@both
async def test_holder_shows_who_holds_the_lock(mode: str, fair: bool) -> None:
    with Server() as server:
        async with connected(mode, server.url) as client, connected(mode, server.url) as rival:
            lock, theirs = client.lock("a", fair=fair), rival.lock("a", fair=fair)
            assert await resolve(lock.holder()) is None
            lease = await lock.acquire()
            for view in (lock, theirs):
                holder = await resolve(view.holder())
                assert (holder.owner, holder.token) == (lease.owner, lease.token)
                assert holder.remaining == pytest.approx(10.0, abs=0.5)
            await lease.release()
            assert await resolve(theirs.holder()) is None
            server.command("SET", KEY, "a stranger")
            assert (await resolve(lock.holder()))[:2] == ("a stranger", None)
            server.kill()
            with pytest.raises(NoQuorum):
                await resolve(lock.holder())


@FAIR
@both
async def test_waiters_are_shown_in_order_across_clients(mode: str, fair: bool, one: Server) -> None:
    async with connected(mode, one.url, label="us") as client, connected(mode, one.url, label="them") as rival:
        lock, theirs = client.lock("a", fair=fair), rival.lock("a", fair=fair)
        assert await resolve(lock.waiters()) == []
        lease = await lock.acquire()
        waiting = [attempt_in_background(lock, wait=10)]
        await wait_for_waiters(lock, 1)
        waiting.append(attempt_in_background(theirs, wait=10))
        await wait_for_waiters(theirs, 2)
        waiting.append(attempt_in_background(lock, wait=10))
        await wait_for_waiters(lock, 3)
        waiters = await resolve(lock.waiters())
        assert [who.split(":")[2] for who in waiters] == ["us", "them", "us"]
        assert [who.split(":")[2] for who in await resolve(theirs.waiters())] == ["us", "them"]
        await lease.release()
        lease = (await waiting[0]).lease
        assert lease.owner == waiters[0]
        assert (await resolve(theirs.holder())).owner == lease.owner
        await wait_for_waiters(lock, 2)
        assert (await resolve(theirs.waiters()))[0] == waiters[1]
        await client.close()
        await rival.close()
        await asyncio.gather(*waiting)


@both
async def test_unfenced_holder_has_no_token(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        await (await client.lock("a").acquire()).release()
        lock = client.lock("a", fence=False)
        lease = await lock.acquire()
        holder = await resolve(lock.holder())
        assert (holder.owner, holder.token) == (lease.owner, None)


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("kind", KINDS)
@both
async def test_many_waits_leave_nothing_behind(mode: str, kind: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lock = client.lock("a", **KINDS[kind])
        gc.collect()

        async def wait_and_leave() -> None:
            """Two of six waiters get it; the others give up or are cancelled."""
            lease = await lock.acquire(wait=2)
            patient = {attempt_in_background(lock, wait=10)}
            await wait_for_waiters(lock, 1)  # waiters that come before there is a queue have connections of their own
            others = [attempt_in_background(lock, wait=wait) for wait in (0.02, 0.01, 0.02, 0.03)]
            patient.add(attempt_in_background(lock, wait=10))
            if mode == "asyncio":
                others[0].cancel()
            await asyncio.wait(others)
            while patient:
                await lease.release()
                done, patient = await asyncio.wait(patient, return_when=asyncio.FIRST_COMPLETED)
                lease = (await done.pop()).lease
            await lease.release()

        def of_the_queues() -> list[object]:
            return [each for each in gc.get_objects() if isinstance(each, Waiter | WaitQueue | ServerQueue)]

        def belongings() -> tuple[int, int, int, int]:
            tasks = len(asyncio.all_tasks())
            return threading.active_count(), len(os.listdir("/proc/self/fd")), tasks, len(queues_of(client))

        older = len(of_the_queues())
        for _ in range(3):
            await wait_and_leave()
        await asyncio.sleep(0)
        # A busy machine may need more threads and connections at once than ever before. A leak needs more each time.
        for _ in range(5):
            before, connections = belongings(), handfast_connections(one)
            for _ in range(12):
                await wait_and_leave()
            if await comes_true(lambda: belongings() <= before, within=1):  # noqa: B023
                break
        else:
            pytest.fail(f"more each time: {belongings()} after {before}")
        assert before[3] == 0
        gc.collect()
        assert len(of_the_queues()) <= older  # other tests of this process may have left some
        # Seven threads may use the client at once, and the watchdog.
        assert handfast_connections(one) <= (connections if mode == "asyncio" else 8)
        await eventually_async(lambda: one.command("KEYS", "*") in ([], [KEY.encode() + b":f"]))
