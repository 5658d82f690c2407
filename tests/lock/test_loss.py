"""What stops long work in a thread when its lease is lost."""

from __future__ import annotations

import asyncio
import pickle
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, LeaseLost, _interrupt
from handfast.testing import Server, lose
from tests.support.eventually import eventually
from tests.support.sync_and_async import both, connected, plain


def chain(error: BaseException) -> Iterator[BaseException]:
    """An error, its causes and its contexts."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def tells_of_the_loss(error: BaseException) -> bool:
    """A LeaseLost is among the causes and contexts, or a note says it."""
    notes = [note for each in chain(error) for note in getattr(each, "__notes__", [])]
    return any(isinstance(each, LeaseLost) for each in chain(error)) or any("lease lost" in note for note in notes)


# -- on_lost for threads ----------------------------------------------------------------------------------------------


def test_callback_is_called_once_with_the_loss(client: handfast.Client) -> None:
    """The callback gets the LeaseLost that the end of the block raises. It is called in whichever thread notices."""
    told: queue.Queue[LeaseLost] = queue.Queue()
    lock = client.lock("orders", on_lost=told.put)
    with pytest.raises(LeaseLost) as caught, lock as lease:
        lose(lease, "a test wanted it so")
    error = told.get(timeout=2)
    assert isinstance(error, LeaseLost)
    assert str(error) == str(caught.value)
    assert (error.name, error.token, error.reason) == ("orders", lease.token, "a test wanted it so")
    assert told.empty()


def test_callback_can_be_set_for_all_locks_of_client(one: Server) -> None:
    told: queue.Queue[LeaseLost] = queue.Queue()
    with handfast.connect(one.url, on_lost=told.put) as client:
        lease = client.lock("orders").acquire()
        lose(lease)
        assert told.get(timeout=2).name == "orders"


def test_callback_that_raises_is_logged_and_changes_nothing(
    client: handfast.Client, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(error: LeaseLost) -> None:
        raise ZeroDivisionError

    lock = client.lock("orders", on_lost=broken)
    with pytest.raises(LeaseLost), lock as lease:
        lose(lease)
    eventually(lambda: any("on_lost" in record.getMessage() for record in caplog.records))


def test_callback_that_exits_is_logged_and_later_ones_are_called(
    client: handfast.Client, caplog: pytest.LogCaptureFixture
) -> None:
    told: queue.Queue[str] = queue.Queue()

    def leave(error: LeaseLost) -> None:
        told.put(error.name)
        sys.exit(1)

    for name in ("first", "second"):
        lose(client.lock(name, on_lost=leave).acquire())
        assert told.get(timeout=5) == name
    eventually(lambda: caplog.text.count("on_lost= callback failed") == 2)


def test_interrupt_raises_lease_lost_in_the_holding_thread(client: handfast.Client) -> None:
    """The work stops at once; nothing after it in the block runs. A blocking C call would have to return first."""
    held: queue.Queue[handfast.Lease] = queue.Queue()
    told_to_end, came_through = threading.Event(), threading.Event()

    def work() -> None:
        with client.lock("orders", on_lost="interrupt") as lease:
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


def test_interrupt_does_not_reach_thread_that_left_block(client: handfast.Client) -> None:
    with client.lock("orders", on_lost="interrupt") as lease:
        pass
    with pytest.raises(RuntimeError):
        lose(lease)
    assert sum(range(100_000)) == 4_999_950_000


def test_interrupt_reaches_block_of_lease_and_of_rlock(client: handfast.Client) -> None:
    def work(lease: handfast.Lease) -> None:
        with lease:
            lose(lease, "a test wanted it so")
            eventually(lambda: False, 5, "the interrupt")

    for lock in (client.lock("orders", on_lost="interrupt"), client.rlock("orders", on_lost="interrupt")):
        with pytest.raises(LeaseLost) as caught:
            work(lock.acquire())
        assert caught.value.reason == "a test wanted it so"
        assert isinstance(caught.value.__cause__, LeaseLost)  # it shows where the body was
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_body_that_catches_interrupt_gets_lease_lost_at_its_end(client: handfast.Client) -> None:
    """What the body catches can be pickled."""
    kept: list[LeaseLost] = []

    def work() -> None:
        with client.lock("orders", on_lost="interrupt") as lease:
            try:
                lose(lease)
                eventually(lambda: False, 5, "the interrupt")
            except LeaseLost as error:
                kept.append(pickle.loads(pickle.dumps(error)))

    with pytest.raises(LeaseLost) as caught:
        work()
    assert [(type(error), error.name, str(error)) for error in kept] == [(LeaseLost, "orders", str(caught.value))]


@pytest.mark.parametrize("order", [("outer", "inner"), ("inner", "outer"), ("outer",), ("inner",)], ids="-".join)
def test_interrupts_of_nested_blocks_reach_their_own_block(client: handfast.Client, order: tuple[str, ...]) -> None:
    """The leases are lost while the thread is inside a call into C. Python keeps one pending exception for each thread,
    so the later interrupt replaces the earlier one."""
    leases: queue.Queue[dict[str, handfast.Lease]] = queue.Queue()
    gate = threading.Lock()
    gate.acquire()
    caught: list[str] = []

    def work() -> None:
        with client.lock("outer", on_lost="interrupt") as outer:
            try:
                with client.lock("inner", on_lost="interrupt") as inner:
                    leases.put({"outer": outer, "inner": inner})
                    gate.acquire()
                    eventually(lambda: False, 5, "an interrupt")
            except LeaseLost as error:
                caught.append(error.name)
                if error.name == "inner" and "outer" in order:
                    eventually(lambda: False, 5, "the interrupt of the outer block")

    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        held = leases.get(timeout=5)
        for name in order:
            lose(held[name])
        gate.release()
        error = working.exception(timeout=12)
        assert pool.submit(sum, range(100_000)).result() == 4_999_950_000, "an interrupt struck after its block"
    # The interrupt of the outer block may strike while the inner one ends.
    assert caught in (["outer"], ["inner"] if "inner" in order else [])
    assert (error is not None) == ("outer" in order)
    assert error is None or (isinstance(error, LeaseLost) and error.name == "outer")


def test_pending_interrupt_is_withdrawn_at_end_of_block(client: handfast.Client, one: Server) -> None:
    """The time is random, so there are many tries: each interrupt comes inside the block, or never."""
    to_lose: list[handfast.Lease] = []
    ends = threading.Event()

    def lose_each() -> None:
        while not ends.is_set():
            while to_lose:
                to_lose.pop()._hold.mark_lost("a test wanted it so")

    with ThreadPoolExecutor(1) as pool:
        losing = pool.submit(lose_each)
        for _ in range(50):
            lock = client.lock("orders", on_lost="interrupt", wait=5)
            try:
                with lock as lease:
                    to_lose.append(lease)
            except LeaseLost:
                pass  # it was in time
            assert sum(range(10_000)) == 49_995_000
            eventually(lambda: not to_lose)
            one.command("DEL", "handfast:{orders}")
        ends.set()
        losing.result(5)


Strike = Callable[[str, Callable[[], BaseException]], None]


@pytest.fixture
def strike(client: handfast.Client, monkeypatch: pytest.MonkeyPatch) -> Strike:
    """Lets an exception strike at a step of the end of a block: only once, as the real one."""

    def strike(step: str, error: Callable[[], BaseException]) -> None:
        owner: Any = client if step == "release" else _interrupt.ThreadBody
        name = {"before leave": "leave", "after leave": "leave", "release": "_release"}[step]
        usual = getattr(owner, name)

        def struck(*args: Any) -> Any:
            monkeypatch.setattr(owner, name, usual)
            if step == "after leave":
                usual(*args)
            raise error()

        monkeypatch.setattr(owner, name, struck)

    return strike


@pytest.fixture
def pending(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The exceptions that are set in this thread, in order, and None for each clearing. None of them strikes."""
    calls: list[Any] = []
    monkeypatch.setattr(_interrupt, "_raise_in", lambda thread, kind: calls.append(kind))
    return calls


@pytest.mark.parametrize("step", ["before leave", "after leave", "release"])
def test_enclosing_block_gets_its_interrupt_if_another_one_strikes_at_the_end_of_the_inner_block(
    client: handfast.Client, step: str, strike: Strike, pending: list[Any]
) -> None:
    """Python keeps one exception for each thread, so the interrupt of the inner block has replaced it."""

    def inner_block(outer: handfast.Lease) -> None:
        with client.lock("inner", on_lost="interrupt").acquire() as inner:
            body: Any = inner._body
            lose(outer)
            lose(inner)
            strike(step, lambda: body.kind())

    def outer_block() -> None:
        with client.lock("outer", on_lost="interrupt") as outer:
            with pytest.raises(LeaseLost, match="inner: "):
                inner_block(outer)
            body: Any = outer._body
            assert body.kind is not None
            assert pending[-1] is body.kind
            assert _interrupt._open[threading.get_ident()] == [body]
            assert list(client._blocks.by_key) == list(outer._hold.keys)

    with pytest.raises(LeaseLost, match="outer: "):
        outer_block()
    assert threading.get_ident() not in _interrupt._open


@pytest.mark.parametrize("step", ["before leave", "after leave", "release"])
def test_inner_lease_is_released_if_interrupt_of_enclosing_block_strikes_at_its_end(
    client: handfast.Client, step: str, strike: Strike, pending: list[Any]
) -> None:
    inner = client.lock("inner", on_lost="interrupt").acquire()

    def blocks() -> None:
        with client.lock("outer", on_lost="interrupt") as outer:
            body: Any = outer._body
            with inner:
                lose(outer)
                strike(step, lambda: body.kind())

    with pytest.raises(LeaseLost, match="outer: "):
        blocks()
    eventually(lambda: client.lock("inner").holder() is None)
    assert not inner.valid
    assert pending
    assert threading.get_ident() not in _interrupt._open


def test_asyncio_refuses_interrupt_with_advice(one: Server) -> None:
    with pytest.raises(ConfigError, match="asyncio cancels the body"):
        handfast.aio.connect(one.url, on_lost="interrupt")
    with pytest.raises(ConfigError, match="asyncio cancels the body"):
        handfast.aio.connect(one.url).lock("orders", on_lost="interrupt")


@plain
async def test_asyncio_callback_is_called_in_its_loop(one: Server) -> None:
    """The body goes on, and the end of the block raises."""
    told: list[tuple[LeaseLost, asyncio.AbstractEventLoop]] = []
    went_on: list[bool] = []

    def note(error: LeaseLost) -> None:
        told.append((error, asyncio.get_running_loop()))

    async def body(client: handfast.aio.Client) -> None:
        async with client.lock("orders") as lease:
            lose(lease)
            await asyncio.wait_for(lease.lost.wait(), 2)
            went_on.append(True)

    async with handfast.aio.connect(one.url, on_lost=note) as client:
        with pytest.raises(LeaseLost) as caught:
            await body(client)
    assert went_on
    assert [(str(error), loop) for error, loop in told] == [(str(caught.value), asyncio.get_running_loop())]


def test_callback_can_close_client(one: Server) -> None:
    """It is called in a separate thread: the watchdog's thread would wait for itself."""
    client = handfast.connect(one.url)
    closed = threading.Event()

    def close(error: LeaseLost) -> None:
        client.close()
        closed.set()

    lose(client.lock("orders", on_lost=close).acquire())
    assert closed.wait(5)


@both
async def test_block_that_ends_while_its_loss_is_declared_raises_lease_lost(one: Server, mode: str) -> None:
    """Another thread may have taken the permit to end the lease, but may not have said so yet."""
    taken, go_on = threading.Event(), threading.Event()

    class Permit(bytearray):
        def pop(self, index: int = -1) -> int:
            value = super().pop(index)
            taken.set()
            go_on.wait(5)
            return value

    async def body(client: Any, thread: ThreadPoolExecutor) -> None:
        async with client.lock("orders") as lease:
            lease._hold._permit = Permit(1)
            thread.submit(lease._hold.mark_lost, "a test wanted it so")
            assert await asyncio.to_thread(taken.wait, 5)

    with ThreadPoolExecutor(1) as thread:
        async with connected(mode, one.url) as client:
            try:
                with pytest.raises(LeaseLost, match="a test wanted it so"):
                    await body(client, thread)
            finally:
                go_on.set()


# -- a body that raises something else --------------------------------------------------------------------------------


@pytest.mark.parametrize("block", ["of the lock", "of the lease"])
def test_error_of_body_mentions_loss(client: handfast.Client, block: str) -> None:
    """Either as a note or as a context; the error of the body stays the one that is raised."""
    lock = client.lock("orders")

    def body() -> None:
        with lock if block == "of the lock" else lock.acquire() as lease:
            lose(lease)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        body()
    assert tells_of_the_loss(caught.value)


def test_error_of_body_without_loss_mentions_none(client: handfast.Client) -> None:
    with pytest.raises(ZeroDivisionError) as caught, client.lock("orders"):
        raise ZeroDivisionError
    assert not tells_of_the_loss(caught.value)


@pytest.mark.parametrize("on_lost", ["cancel", "event"])
def test_error_of_asyncio_body_mentions_loss(one: Server, on_lost: str) -> None:
    """With `cancel` the body is cancelled first, and raises another error while it cleans up."""

    async def body(client: handfast.aio.Client) -> None:
        async with client.lock("orders") as lease:
            try:
                lose(lease)
                await asyncio.wait_for(lease.lost.wait(), 2)
            finally:
                raise ZeroDivisionError

    async def main() -> None:
        async with handfast.aio.connect(one.url, on_lost=on_lost) as client:
            with pytest.raises(ZeroDivisionError) as caught:
                await body(client)
        assert tells_of_the_loss(caught.value)

    asyncio.run(main())
