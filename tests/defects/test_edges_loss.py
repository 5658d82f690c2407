"""What stops long work in a thread when its lease is lost."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.support.eventually import eventually

import handfast
import handfast.aio
from handfast import ConfigError, LeaseLost
from handfast.testing import Server, lose


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, and what it came of."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def tells_of_the_loss(error: BaseException) -> bool:
    """A LeaseLost is among the causes and contexts, or a note says it."""
    notes = [note for each in chain(error) for note in getattr(each, "__notes__", [])]
    return any(isinstance(each, LeaseLost) for each in chain(error)) or any("lease lost" in note for note in notes)


# -- on_lost for threads ----------------------------------------------------------------------------------------------


@pytest.mark.xfail(strict=True, raises=ConfigError, reason="issue: on_lost= takes no callback for threads")
def test_callback_is_called_once_with_the_loss(client: handfast.Client) -> None:
    """The callback gets the LeaseLost that the end of the block raises. It is called in whichever thread notices."""
    told: queue.Queue[LeaseLost] = queue.Queue()
    lock = client.lock("orders", on_lost=told.put)  # type: ignore[arg-type]
    with pytest.raises(LeaseLost) as caught, lock as lease:
        lose(lease, "a test wanted it so")
    error = told.get(timeout=2)
    assert isinstance(error, LeaseLost)
    assert str(error) == str(caught.value)
    assert (error.name, error.token, error.reason) == ("orders", lease.token, "a test wanted it so")
    assert told.empty()


@pytest.mark.xfail(strict=True, raises=ConfigError, reason="issue: on_lost= takes no callback on connect()")
def test_callback_may_be_set_for_all_locks_of_a_client(one: Server) -> None:
    told: queue.Queue[LeaseLost] = queue.Queue()
    with handfast.connect(one.url, on_lost=told.put) as client:  # type: ignore[arg-type]
        lease = client.lock("orders").acquire()
        lose(lease)
        assert told.get(timeout=2).name == "orders"


@pytest.mark.xfail(strict=True, raises=ConfigError, reason="issue: on_lost= takes no callback for threads")
def test_callback_that_raises_is_logged_and_changes_nothing(
    client: handfast.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(error: LeaseLost) -> None:
        raise ZeroDivisionError

    lock = client.lock("orders", on_lost=broken)  # type: ignore[arg-type]
    with pytest.raises(LeaseLost), lock as lease:
        lose(lease)
    eventually(lambda: any("on_lost" in record.getMessage() for record in caplog.records))


@pytest.mark.xfail(strict=True, raises=ConfigError, reason="issue: on_lost='interrupt' is not known")
def test_interrupt_raises_lease_lost_in_the_holding_thread(client: handfast.Client) -> None:
    """The work stops where it is; nothing after it in the block runs. A blocking C call would have to return first."""
    held: queue.Queue[handfast.Lease] = queue.Queue()
    told_to_end, came_through = threading.Event(), threading.Event()

    def work() -> None:
        with client.lock("orders", on_lost="interrupt") as lease:  # type: ignore[arg-type]
            held.put(lease)
            while not told_to_end.is_set():
                told_to_end.wait(0.005)
            came_through.set()

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        try:
            eventually(lambda: working.done() or not held.empty())
            if not working.done():
                lose(held.get())
            assert isinstance(working.exception(timeout=2), LeaseLost | ConfigError)
        finally:
            told_to_end.set()
        with pytest.raises(LeaseLost):
            working.result()
        assert not came_through.is_set()


@pytest.mark.xfail(strict=True, raises=ConfigError, reason="issue: on_lost='interrupt' is not known")
def test_interrupt_spares_a_thread_that_has_left_the_block(client: handfast.Client) -> None:
    with client.lock("orders", on_lost="interrupt") as lease:  # type: ignore[arg-type]
        pass
    with pytest.raises(RuntimeError):
        lose(lease)
    assert sum(range(100_000)) == 4_999_950_000


# -- a body that raises something else --------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["of the lock", "of the lease"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: an error of the body hides that the lease was lost")
def test_error_of_a_thread_body_tells_of_the_loss(client: handfast.Client, block: str) -> None:
    """Either as a note or as a context; the error of the body stays the one that is raised."""
    lock = client.lock("orders")

    def body() -> None:
        with lock if block == "of the lock" else lock.acquire() as lease:
            lose(lease)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        body()
    assert tells_of_the_loss(caught.value)


def test_error_of_a_body_tells_of_no_loss_where_there_was_none(client: handfast.Client) -> None:
    with pytest.raises(ZeroDivisionError) as caught, client.lock("orders"):
        raise ZeroDivisionError
    assert not tells_of_the_loss(caught.value)


@pytest.mark.parametrize("on_lost", ["cancel", "event"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: an error of the body hides that the lease was lost")
def test_error_of_an_asyncio_body_tells_of_the_loss(one: Server, on_lost: str) -> None:
    """With `cancel` the body meets the cancellation first and raises something else while it cleans up."""

    async def body(client: handfast.aio.Client) -> None:
        async with client.lock("orders") as lease:
            try:
                lose(lease)
                await asyncio.wait_for(lease.lost.wait(), 2)
            finally:
                raise ZeroDivisionError

    async def main() -> None:
        async with handfast.aio.connect(one.url, on_lost=on_lost) as client:  # type: ignore[arg-type]
            with pytest.raises(ZeroDivisionError) as caught:
                await body(client)
        assert tells_of_the_loss(caught.value)

    asyncio.run(main())
