"""A task that waits for a reply: the reader of the reply resumes it, in its own context, and it can be cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import types
from collections.abc import Generator
from typing import Any

import pytest

from handfast.net.reply_future import ReplyFuture
from tests.support.sync_and_async import plain


class Desk:
    """A waker that resumes tasks on command."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.woken: list[ReplyFuture] = []
        self.called = 0

    def wake_soon(self) -> None:
        self.called += 1

    def wake(self) -> None:
        woken, self.woken = self.woken, []
        for waiter in woken:
            if waiter.callback is not None:
                waiter.context.run(waiter.callback, waiter)


@types.coroutine
def answer(waiter: ReplyFuture) -> Generator[ReplyFuture, None, Any]:
    yield waiter
    return waiter.reply


async def waiting(desk: Desk) -> tuple[ReplyFuture, asyncio.Task[Any]]:
    waiter = ReplyFuture(desk)
    task = asyncio.ensure_future(_answer(waiter))
    await asyncio.sleep(0)
    return waiter, task


async def _answer(waiter: ReplyFuture) -> Any:
    return await answer(waiter)


@plain
async def test_task_is_resumed_by_waker_at_once() -> None:
    desk = Desk()
    waiter, task = await waiting(desk)
    assert waiter.over is False
    waiter.set_result(b"OK")
    assert desk.called == 1
    assert not task.done()
    asyncio.get_running_loop().call_soon(desk.wake)
    assert await task == b"OK"


@plain
async def test_many_replies_cause_one_call_of_waker() -> None:
    desk = Desk()
    both = [await waiting(desk), await waiting(desk)]
    for number, (waiter, _) in enumerate(both):
        waiter.set_result(number)
    assert desk.called == 1
    asyncio.get_running_loop().call_soon(desk.wake)
    assert await asyncio.gather(*[task for _, task in both]) == [0, 1]


@plain
async def test_cancelled_task_is_cancelled_and_ignores_later_reply() -> None:
    desk = Desk()
    waiter, task = await waiting(desk)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert waiter.over


@plain
async def test_cancellation_between_reply_and_resumption_still_cancels() -> None:
    desk = Desk()
    waiter, task = await waiting(desk)
    waiter.set_result(b"OK")
    assert task.cancel()
    asyncio.get_running_loop().call_soon(desk.wake)
    with pytest.raises(asyncio.CancelledError):
        await task


@plain
async def test_task_resumes_in_its_own_context() -> None:
    desk = Desk()
    colour = contextvars.ContextVar("colour", default="none")
    waiter = ReplyFuture(desk)

    async def work() -> tuple[str, bool]:
        colour.set("red")
        await answer(waiter)
        return colour.get(), asyncio.current_task() is task

    task = asyncio.ensure_future(work())
    await asyncio.sleep(0)
    waiter.set_result(None)
    asyncio.get_running_loop().call_soon(desk.wake)
    assert await task == ("red", True)
    assert colour.get() == "none"


@plain
async def test_reply_on_another_loop_is_refused_by_asyncio() -> None:
    desk = Desk()
    waiter = ReplyFuture(desk)
    with pytest.raises(RuntimeError, match="different loop"):
        await asyncio.to_thread(asyncio.run, _answer(waiter))
