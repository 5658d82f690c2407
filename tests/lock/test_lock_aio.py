"""What only asyncio has: cancellation, event loops, many tasks. test_contract has what both facades promise."""

# ruff: noqa: PT012 - the exit of an `async with` raises, so the block has a body.

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import handfast
from handfast import ConfigError, Contended, LeaseLost, NotAcquired, aio
from handfast.testing import Server, Servers
from tests.support.eventually import assert_on_time, eventually_async, renewal_of
from tests.support.sync_and_async import plain

LONG = 25.0
"""A ttl beyond every deadline in here: a key that is gone was released, not expired."""
QUICK = handfast.backoff.steady(0.002).jittered(0.5)


def key(name: str) -> str:
    return f"handfast:{{{name}}}"


def holder_of(server: Server, name: str) -> str | None:
    value = server.command("GET", key(name))
    return value.decode() if isinstance(value, bytes) else None


def free(server: Server, *names: str) -> Callable[[], bool]:
    return lambda: server.command("EXISTS", *map(key, names)) == 0


@asynccontextmanager
async def two(server: Server) -> AsyncIterator[tuple[aio.Client, aio.Client]]:
    async with aio.connect(server.url) as client, aio.connect(server.url) as rival:
        yield client, rival


# -- reentrant locks and decorators --------------------------------------------------------------------------------------


@plain
async def test_reentrant_lock_belongs_to_its_task(one: Server) -> None:
    async with aio.connect(one.url) as client, client.rlock("a") as outer:
        assert await asyncio.create_task(client.rlock("a").try_acquire()) is None
        assert holder_of(one, "a") == outer.owner


@plain
async def test_decorated_coroutine_holds_lock_named_by_its_arguments(server: Server) -> None:
    async with aio.connect(server.url) as client:

        @client.locked("report:{user_id}:{kind}", wait=0)
        async def report(user_id: int, kind: str = "daily") -> object:
            return server.command("EXISTS", key(f"report:{user_id}:{kind}"))

        assert [await report(7), await report(user_id=8, kind="x")] == [1, 1]
        async with client.lock("report:7:daily"):
            with pytest.raises(Contended):
                await report(7)
        with pytest.raises(ConfigError):
            client.locked("report:{nobody}")(report)


# -- loss -------------------------------------------------------------------------------------------------------------


@plain
async def test_lost_lease_cancels_body_and_exit_raises_lease_lost(one: Server) -> None:
    async with aio.connect(one.url) as client:
        seen: list[str] = []
        with pytest.raises(LeaseLost, match="not renewed") as caught:
            async with client.lock("a", ttl=0.15, renew=False):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    seen.append("cancelled")
                    raise
        assert seen == ["cancelled"]
        assert isinstance(caught.value.__cause__, asyncio.CancelledError)
        task = asyncio.current_task()
        assert task is not None
        # Nothing is left of handfast's cancellation: the task runs on as before.
        assert task.cancelling() == 0
        await asyncio.sleep(0)


@plain
async def test_lease_taken_by_another_owner_cancels_body_before_deadline(one: Server) -> None:
    async with aio.connect(one.url) as client:
        began = time.monotonic()
        with pytest.raises(LeaseLost, match="now held by a stranger"):
            async with client.lock("a", ttl=0.9):
                one.command("SET", key("a"), "a stranger")
                await asyncio.sleep(10)
        assert time.monotonic() - began < 0.8
        assert holder_of(one, "a") == "a stranger"


def test_body_is_cancelled_at_deadline_while_server_hangs() -> None:
    async def main(own: Server) -> float:
        async with aio.connect(own.url) as client:
            with pytest.raises(LeaseLost):
                async with client.lock("a", ttl=0.4) as lease:
                    await eventually_async(renewal_of(lease))
                    own.pause()
                    deadline = time.monotonic() + lease.remaining()
                    await asyncio.sleep(10)
            late = time.monotonic() - deadline
            own.resume()
            return late

    with Server() as own:
        assert_on_time(lambda: asyncio.run(main(own)))


@plain
async def test_body_that_catches_cancellation_still_raises_lease_lost(one: Server) -> None:
    async with aio.connect(one.url) as client:
        with pytest.raises(LeaseLost):
            async with client.lock("a", ttl=0.15, renew=False):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    pass
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@plain
async def test_exit_does_not_mask_error_of_body(one: Server) -> None:
    async with aio.connect(one.url) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.lock("a", ttl=0.15, renew=False):
                try:
                    await asyncio.sleep(10)
                finally:
                    raise ZeroDivisionError
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0


@plain
async def test_on_lost_event_does_not_cancel_body(one: Server) -> None:
    async with aio.connect(one.url, on_lost="event") as client:
        reached = False
        with pytest.raises(LeaseLost):
            async with client.lock("a", ttl=0.15, renew=False) as lease:
                await lease.lost.wait()
                await asyncio.sleep(0.02)  # a cancel would strike here
                reached = True
        assert reached
        # A lock may choose for itself.
        with pytest.raises(LeaseLost):
            async with client.lock("a", ttl=0.15, renew=False, on_lost="cancel"):
                await asyncio.sleep(10)


@plain
async def test_lease_without_block_cancels_no_task(one: Server) -> None:
    async with aio.connect(one.url) as client:
        lease = await client.lock("a", ttl=0.15, renew=False).acquire()
        await lease.lost.wait()
        await asyncio.sleep(0.02)


# -- cancels from outside ---------------------------------------------------------------------------------------------


@plain
async def test_outer_cancellation_ends_body_and_releases_lock(one: Server) -> None:
    async with aio.connect(one.url) as client:
        entered = asyncio.Event()

        async def body() -> None:
            async with client.lock("a", ttl=LONG):
                entered.set()
                await asyncio.sleep(10)

        task = asyncio.create_task(body())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await eventually_async(free(one, "a"))


@pytest.mark.parametrize("order", ["loss first", "cancel first", "in one turn of the loop"])
@plain
async def test_outer_cancellation_is_not_swallowed_by_simultaneous_loss(one: Server, order: str) -> None:
    async with aio.connect(one.url) as client:
        entered, struck = asyncio.Event(), asyncio.Event()
        sleep = asyncio.get_running_loop().create_future()

        async def body() -> None:
            async with client.lock("a", ttl=0.15, renew=False) as lease:
                entered.set()
                try:
                    await sleep
                except asyncio.CancelledError:
                    struck.set()
                    if order == "loss first":
                        await asyncio.sleep(10)  # cleaning up, when the cancel comes
                    elif order == "cancel first":
                        await asyncio.wait_for(lease.lost.wait(), 2)
                    raise

        task = asyncio.create_task(body())
        if order == "in one turn of the loop":
            # Called before the task runs: handfast's cancellation is under way, and the caller's joins it.
            sleep.add_done_callback(lambda _: task.cancel())
        await entered.wait()
        if order == "cancel first":
            task.cancel()
        await struck.wait()
        if order == "loss first":
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()


@plain
async def test_outer_timeout_is_not_reported_as_loss(one: Server) -> None:
    async with aio.connect(one.url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1), client.lock("a", ttl=LONG):
                await asyncio.sleep(10)
        await eventually_async(free(one, "a"))
        with pytest.raises(LeaseLost):
            async with asyncio.timeout(5), client.lock("a", ttl=0.15, renew=False):
                await asyncio.sleep(10)


@plain
async def test_timeout_around_acquire_ends_wait_and_leaves_holder_alone(one: Server) -> None:
    async with two(one) as (client, rival), client.lock("a", ttl=LONG) as lease:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.15):
                await rival.lock("a").acquire()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rival.lock("a").acquire(), 0.15)
        assert time.monotonic() - began < 1
        assert holder_of(one, "a") == lease.owner


@plain
async def test_timeout_that_races_with_grant_leaves_no_key(one: Server) -> None:
    async with aio.connect(one.url, ttl=LONG) as client:
        await (await client.lock("warm").acquire()).release()
        for i in range(60):
            # Spread over the time that an acquisition takes here.
            try:
                async with asyncio.timeout(i * 1e-5):
                    lease = await client.lock("a").acquire()
            except TimeoutError:
                pass
            else:
                await lease.release()
            await eventually_async(free(one, "a"), within=1)


class Interrupted:
    """Awaits a coroutine and cancels it at its k-th suspension: before it is woken, or at the same moment."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int, *, woken: bool, times: int) -> None:
        self.work = work
        self.at = at
        self.woken = woken
        self.times = times
        self.steps = 0

    def __await__(self) -> Generator[Any, Any, Any]:
        wrapped = self.work.__await__()
        blow: BaseException | None = None
        while True:
            try:
                future = wrapped.send(None) if blow is None else wrapped.throw(blow)
            except StopIteration as end:
                return end.value
            blow = None
            self.steps += 1
            if self.at <= self.steps < self.at + self.times:
                blow = asyncio.CancelledError()
                if self.woken:
                    try:
                        yield future
                    except BaseException as error:
                        blow = error
                elif future is not None:
                    future._asyncio_future_blocking = False
                    future.cancel()
            else:
                try:
                    yield future
                except BaseException as error:
                    blow = error


async def interrupted(work: Coroutine[Any, Any, Any], at: int, *, woken: bool, times: int) -> bool:
    """Whether it was cancelled; False if it ended in fewer steps."""
    driven = Interrupted(work, at, woken=woken, times=times)
    try:
        lease = await driven
    except asyncio.CancelledError:
        return True
    assert driven.steps < at, "it went on in spite of a cancel"
    await lease.release()
    return False


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("woken", [False, True])
@pytest.mark.parametrize("names", ["a", ["a", "b"]])
@pytest.mark.parametrize("fresh", [True, False])
def test_cancelled_acquire_leaves_no_key_at_any_await(
    one: Server, fresh: bool, names: str | list[str], woken: bool, times: int
) -> None:
    async def main() -> int:
        for at in range(1, 30):
            async with aio.connect(one.url, ttl=LONG) as client:
                if not fresh:
                    await (await client.lock("warm").acquire()).release()
                cut = await interrupted(client.lock(names).acquire(), at, woken=woken, times=times)
                # Before the client is closed, because that would release the holds in the schedule.
                await eventually_async(free(one, "a", "b"), within=1, what=f"free after a cancel at step {at}")
                # The client is as good as new.
                await (await client.lock(names).acquire(wait=2)).release()
            assert free(one, "a", "b")()
            if not cut:
                return at
        raise AssertionError("it never ended")

    assert asyncio.run(main()) >= 2


@pytest.mark.parametrize("woken", [False, True])
def test_acquire_cancelled_while_waiting_leaves_the_holder_alone(one: Server, woken: bool) -> None:
    async def renew(lease: aio.Lease) -> None:
        """Renew all the time, while others wait."""
        while True:
            await lease.extend()

    async def main() -> None:
        async with two(one) as (client, rival):
            async with client.lock("a", ttl=LONG) as lease:
                renewals = asyncio.create_task(renew(lease))
                for at in range(1, 4):  # later it waits for a push, which does not come
                    waiting = rival.lock("a", ttl=LONG, backoff=QUICK).acquire()
                    assert await interrupted(waiting, at, woken=woken, times=1)
                    assert holder_of(one, "a") == lease.owner
                    assert rival._queues.by_key == {}
                renewals.cancel()
                await asyncio.gather(renewals, return_exceptions=True)
            await eventually_async(free(one, "a"))

    asyncio.run(main())


@pytest.mark.parametrize("gap", [0, 1, 2])
@plain
async def test_two_cancellations_in_a_row_leave_no_key(one: Server, gap: int) -> None:
    for turns in range(12):
        async with aio.connect(one.url, ttl=LONG) as client:
            task = asyncio.create_task(client.lock("a").acquire())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            for _ in range(gap):
                await asyncio.sleep(0)
            task.cancel()
            done = await asyncio.gather(task, return_exceptions=True)
            if isinstance(done[0], aio.Lease):
                await done[0].release()
            del done, task
            await eventually_async(free(one, "a"), within=1, what=f"free after {turns} turns")


@plain
async def test_cancelled_acquire_on_a_quorum_leaves_no_key_on_any_node(three: Servers) -> None:
    async with aio.connect(three.urls, ttl=LONG) as client:
        await aio.bootstrap(client)
        await (await client.lock("warm").acquire()).release()
        for woken in (False, True):
            for at in range(1, 30):
                cut = await interrupted(client.lock("a").acquire(), at, woken=woken, times=1)
                for node in three:
                    await eventually_async(free(node, "a"), within=1, what=f"free after a cancel at step {at}")
                if not cut:
                    break
            assert at > 1


@pytest.mark.parametrize("woken", [False, True])
@plain
async def test_cancelled_release_still_frees_lock(one: Server, woken: bool) -> None:
    for at in range(1, 30):
        async with aio.connect(one.url, ttl=LONG) as client:
            lease = await client.lock("a").acquire()
            driven = Interrupted(lease.release(), at, woken=woken, times=1)
            try:
                await driven
            except asyncio.CancelledError:
                await eventually_async(free(one, "a"), within=1, what=f"free after a cancel at step {at}")
            else:
                assert free(one, "a")()
                return
    raise AssertionError("it never ended")


@plain
async def test_cancellation_during_exit_is_not_swallowed_and_frees_lock(one: Server) -> None:
    for turns in range(1, 6):
        async with aio.connect(one.url, ttl=LONG) as client:
            leaving = asyncio.Event()

            async def body(client: aio.Client = client, leaving: asyncio.Event = leaving) -> None:
                async with client.lock("a"):
                    leaving.set()

            task = asyncio.create_task(body())
            await leaving.wait()
            for _ in range(turns - 1):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            await eventually_async(free(one, "a"), within=1)


# -- event loops ------------------------------------------------------------------------------------------------------


@plain
async def test_blocked_event_loop_does_not_lose_the_lock(one: Server) -> None:
    async with two(one) as (client, rival):
        async with client.lock("a", ttl=0.3) as lease:
            time.sleep(0.8)  # noqa: ASYNC251 - blocks the loop for much longer than the ttl
            lease.check()
            assert await rival.lock("a").try_acquire() is None
        assert not lease.lost.is_set()


def test_client_belongs_to_one_event_loop(one: Server) -> None:
    client = aio.connect(one.url)
    lock = client.lock("a")

    async def use() -> None:
        await (await lock.acquire()).release()

    async def elsewhere() -> None:
        with pytest.raises(ConfigError, match="another event loop"):
            await lock.acquire()
        with pytest.raises(ConfigError, match="another event loop"):
            async with lock:
                raise AssertionError("a body ran unlocked")

    with asyncio.Runner() as first:
        first.run(use())
        with asyncio.Runner() as second:
            second.run(elsewhere())
        first.run(client.close())
    assert free(one, "a")()


def test_client_can_be_created_before_its_loop_runs(one: Server) -> None:
    client = aio.connect(one.url)

    async def main() -> None:
        async with client, client.lock("a"):
            pass

    asyncio.run(main())


# -- many tasks -------------------------------------------------------------------------------------------------------


@plain
async def test_two_hundred_tasks_hold_two_hundred_locks(one: Server) -> None:
    async with aio.connect(one.url) as client:
        all_in = asyncio.Barrier(200)

        async def hold(i: int) -> int:
            async with client.lock(f"n{i}") as lease:
                await all_in.wait()
                assert lease.valid
                assert lease.token is not None
                return lease.token

        await asyncio.gather(*[hold(i) for i in range(200)])
        assert one.command("KEYS", "handfast:*}") == []


@plain
async def test_two_hundred_tasks_exclude_each_other_on_one_lock(one: Server) -> None:
    async with aio.connect(one.url) as client:
        lock = client.lock("a", wait=30, backoff=handfast.backoff.steady(0.02).jittered(0.9))
        inside = count = 0
        tokens: list[int | None] = []

        async def work() -> None:
            nonlocal inside, count
            async with lock as lease:
                inside += 1
                assert inside == 1, "two in one lock"
                seen = count
                await asyncio.sleep(0)
                count = seen + 1
                tokens.append(lease.token)
                inside -= 1

        await asyncio.gather(*[work() for _ in range(200)])
        assert count == 200
        assert tokens == sorted(set(tokens))  # type: ignore[type-var]


# -- ends -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("turns", range(1, 8))
def test_closing_connecting_client_leaves_no_socket(one: Server, turns: int) -> None:
    async def main() -> None:
        client = aio.connect(one.url)
        task = asyncio.create_task(client.lock("a").acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        asyncio.run(main())
        gc.collect()
    assert not [str(warning.message) for warning in seen]
    assert free(one, "a")()


@pytest.mark.parametrize("turns", range(1, 8))
@plain
async def test_closing_connecting_client_raises_in_waiting_tasks(one: Server, turns: int) -> None:
    """Also if it is closed in the turn in which it would begin to connect."""
    client = aio.connect(one.url)
    task = asyncio.create_task(client.lock("a").acquire())
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.close()
    async with asyncio.timeout(1):
        await asyncio.wait([task])
    assert isinstance(task.exception(), (ConfigError, NotAcquired))
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("turns", range(4))
@plain
async def test_cancelled_connecting_task_is_replaced(one: Server, turns: int) -> None:
    """Some programs cancel all tasks and run on."""
    async with aio.connect(one.url) as client:
        task = asyncio.create_task(client.lock("a").acquire())
        ours: list[asyncio.Task[Any]] = []
        while not ours:
            await asyncio.sleep(0)
            ours = [each for each in asyncio.all_tasks() if each.get_name() == "handfast-connect"]
        for _ in range(turns):
            await asyncio.sleep(0)
        ours[0].cancel()
        async with asyncio.timeout(3):
            assert await (await task).release()


@pytest.mark.parametrize("fair", [False, True], ids=["plain", "fair"])
def test_closing_client_at_any_step_of_first_acquisition_leaves_no_key(one: Server, fair: bool) -> None:
    async def main(turns: int) -> None:
        client = aio.connect(one.url, ttl=LONG)
        task = asyncio.create_task(client.lock("a", fair=fair).acquire())
        for _ in range(turns):
            await asyncio.sleep(0)
        await client.close()
        await asyncio.gather(task, return_exceptions=True)

    for turns in range(40):
        asyncio.run(main(turns))
        assert one.command("EXISTS", "handfast:{a}", "handfast:{a}:q") == 0, f"closed in turn {turns}"


@pytest.mark.parametrize("turns", range(4))
@plain
async def test_cancelled_close_still_completes(one: Server, turns: int) -> None:
    client = aio.connect(one.url, ttl=LONG)
    lease = await client.lock("a").acquire()
    closing = asyncio.create_task(client.close())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    await client.close()
    assert not lease.valid
    assert free(one, "a")()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await eventually_async(lambda: "handfast-watchdog" not in [thread.name for thread in threading.enumerate()])


@plain
async def test_closed_client_leaves_no_tasks(one: Server) -> None:
    async with two(one) as (client, _), client.lock("a", ttl=1) as lease:
        await eventually_async(renewal_of(lease))
    assert asyncio.all_tasks() == {asyncio.current_task()}
