"""A thread or task that would wait for itself gets an error at once; a long wait logs the holder."""

from __future__ import annotations

import asyncio
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

import handfast
import handfast.aio
from handfast import HandfastError
from handfast.testing import Server
from tests.support.eventually import eventually
from tests.support.sync_and_async import plain
from tests.support.topologies import long_only

NAMES = pytest.mark.parametrize("inner", ["orders", ["invoices", "orders"]], ids=["same name", "among several"])


@NAMES
def test_thread_that_waits_for_its_own_lock_is_refused_at_once(one: Server, inner: str | Sequence[str]) -> None:
    """The error comes before any wait. It is no NotAcquired, because another try does not help."""
    client = handfast.connect(one.url)
    decided = threading.Event()
    client.listen(lambda event: decided.set() if event.kind == "waiting_began" else None)

    def nest() -> None:
        with client.lock("orders"), client.lock(inner):
            pass

    with ThreadPoolExecutor(1) as pool:
        nested = pool.submit(nest)
        nested.add_done_callback(lambda _: decided.set())
        assert decided.wait(10)
        client.close()  # closing ends the wait of a thread
        with pytest.raises(HandfastError, match=r"this thread already holds orders; use rlock\(\)") as caught:
            nested.result(10)
    assert not isinstance(caught.value, handfast.NotAcquired)


@NAMES
@plain
async def test_task_that_waits_for_its_own_lock_is_refused_at_once(one: Server, inner: str | Sequence[str]) -> None:
    client = handfast.aio.connect(one.url)
    decided = asyncio.Event()
    client.listen(lambda event: decided.set() if event.kind == "waiting_began" else None)

    async def nest() -> None:
        try:
            async with client.lock("orders"), client.lock(inner):
                pass
        finally:
            decided.set()

    nested = asyncio.create_task(nest())
    await asyncio.wait_for(decided.wait(), 10)
    await client.close()
    with pytest.raises(HandfastError, match=r"this task already holds orders; use rlock\(\)") as caught:
        await asyncio.wait_for(nested, 10)
    assert not isinstance(caught.value, handfast.NotAcquired)


def test_nested_attempt_without_wait_is_contention(client: handfast.Client) -> None:
    with client.lock("orders"):
        assert client.lock("orders").try_acquire() is None
        with pytest.raises(handfast.Contended):
            client.lock("orders", wait=0).acquire()


def test_waiting_for_a_lease_that_another_thread_releases_is_no_deadlock(client: handfast.Client) -> None:
    """A lease belongs to no thread: the thread that acquired it may pass it to another thread and wait for it."""
    lease = client.lock("orders").acquire()
    begun = threading.Event()
    client.listen(lambda event: begun.set() if event.kind == "waiting_began" else None)
    with ThreadPoolExecutor(1) as pool:
        released = pool.submit(lambda: begun.wait(10) and lease.release())
        client.lock("orders", wait=10).acquire().release()
        assert released.result() is True


def test_nested_lock_with_an_explicit_owner_re_enters(client: handfast.Client) -> None:
    with client.lock("orders", owner="job-42") as outer, client.lock("orders", owner="job-42", wait=5) as inner:
        assert inner.token == outer.token


def test_refused_self_deadlock_leaves_no_claim(client: handfast.Client, one: Server) -> None:
    def nest() -> None:
        with client.lock("orders"), client.lock("orders"):
            pass

    with pytest.raises(HandfastError, match="already holds"):
        nest()
    assert client.lock("orders").waiters() == []
    client.lock("orders", wait=0).acquire().release()


def test_generator_ended_by_another_thread_is_no_deadlock(client: handfast.Client) -> None:
    """Web frameworks begin a generator in one thread of a pool and end it in another. The thread that began it may get
    the next request, which waits for the same lock."""

    def dependency() -> Iterator[None]:
        with client.lock("orders"):
            yield

    begun = threading.Event()
    client.listen(lambda event: begun.set() if event.kind == "waiting_began" else None)
    generator = dependency()
    next(generator)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(lambda: begun.wait(10) and next(generator, "the end"))
        client.lock("orders", wait=10).acquire().release()
        assert ended.result() == "the end"


def test_blocking_wait_for_lock_of_another_task_is_refused(client: handfast.Client) -> None:
    """The blocking client in an event loop: the task that holds the lock can never continue."""
    told: list[str] = []

    async def hold(entered: asyncio.Event, leaves: asyncio.Event) -> None:
        with client.lock("orders"):
            entered.set()
            await leaves.wait()

    async def main() -> None:
        entered, leaves = asyncio.Event(), asyncio.Event()
        holding = asyncio.create_task(hold(entered, leaves))
        await entered.wait()
        try:
            client.lock("orders", wait=10).acquire()
        except HandfastError as error:
            told.append(str(error))
        leaves.set()
        await holding

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the blocking client warns in an event loop
        asyncio.run(main())
    assert told == ["this thread already holds orders; use rlock()"]


@long_only
@pytest.mark.timeout(180)
def test_long_wait_logs_the_holder_once_a_minute(client: handfast.Client, caplog: pytest.LogCaptureFixture) -> None:
    """The first line comes after 30 s, the next one a minute later."""
    caplog.set_level(logging.INFO, logger="handfast")
    lease = client.lock("orders").acquire()

    def lines() -> list[str]:
        texts = [record.getMessage() for record in caplog.records]
        return [text for text in texts if "orders" in text and lease.owner in text]

    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lambda: client.lock("orders").acquire().release())
        try:
            eventually(lambda: len(lines()) == 1, within=35)
            eventually(lambda: len(lines()) == 2, within=65)
        finally:
            lease.release()
            waits.result(10)
