"""A thread or task that would wait for itself is told at once; one that waits for long says for whom."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.topologies import long_only
from tests.support.eventually import eventually

import handfast
import handfast.aio
from handfast import HandfastError
from handfast.testing import Server

NAMES = pytest.mark.parametrize("inner", ["orders", ["invoices", "orders"]], ids=["same name", "among several"])


@NAMES
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: a nested `with` of one name hangs for ever")
def test_thread_that_would_wait_for_itself_is_told_at_once(one: Server, inner: str | Sequence[str]) -> None:
    """Raised before any waiting begins, as an error of handfast that is no NotAcquired: to try again is no use."""
    client = handfast.connect(one.url)
    decided = threading.Event()
    client.listen(lambda event: decided.set())

    def nest() -> None:
        with client.lock("orders"), client.lock(inner):
            pass

    with ThreadPoolExecutor(1) as pool:
        nested = pool.submit(nest)
        nested.add_done_callback(lambda _: decided.set())
        assert decided.wait(10)
        client.close()  # a thread that waits is sent away
        with pytest.raises(HandfastError, match=r"this thread already holds orders; use rlock\(\)") as caught:
            nested.result(10)
    assert not isinstance(caught.value, handfast.NotAcquired)


@NAMES
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: a nested `async with` of one name hangs for ever")
def test_task_that_would_wait_for_itself_is_told_at_once(one: Server, inner: str | Sequence[str]) -> None:
    async def main() -> None:
        client = handfast.aio.connect(one.url)
        decided = asyncio.Event()
        client.listen(lambda event: decided.set())

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

    asyncio.run(main())


def test_nested_attempt_that_does_not_wait_is_contention_as_ever(client: handfast.Client) -> None:
    with client.lock("orders"):
        assert client.lock("orders").try_acquire() is None
        with pytest.raises(handfast.Contended):
            client.lock("orders", wait=0).acquire()


def test_waiting_for_a_lease_that_another_thread_releases_is_no_deadlock(client: handfast.Client) -> None:
    """A lease belongs to no thread: its taker may hand it to another one, and wait for that one to be done."""
    lease = client.lock("orders").acquire()
    begun = threading.Event()
    client.listen(lambda event: begun.set())
    with ThreadPoolExecutor(1) as pool:
        released = pool.submit(lambda: begun.wait(10) and lease.release())
        client.lock("orders", wait=10).acquire().release()
        assert released.result() is True


@long_only
@pytest.mark.timeout(180)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: a long wait does not say who holds the lock")
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
