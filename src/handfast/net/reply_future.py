"""What a task waits on for the answer of a node.

A task may await any object that behaves like a future. asyncio's own would have the loop call the task in its next
turn, through a handle made for the purpose; here the connections that have read the replies resume the tasks
themselves, one after the other, in the same turn. That is one poll of the loop and a good part of the cost of an
exchange less. Whoever is resumed runs where its loop would have run it: on the loop's thread,
in its own context, inside no other task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

__all__ = ["ReplyFuture", "Waker", "reply_futures_of"]


class Waker(Protocol):
    """Who resumes the tasks."""

    loop: asyncio.AbstractEventLoop
    woken: list[ReplyFuture]

    def wake_soon(self) -> None:
        """There is somebody in `woken` now."""


class ReplyFuture:
    """A future for one waiting task. Each waker has a kind of its own: see `reply_futures_of`."""

    __slots__ = ("_asyncio_future_blocking", "callback", "context", "over", "reply")

    _loop: asyncio.AbstractEventLoop
    _waker: Waker

    def __init__(self) -> None:
        self._asyncio_future_blocking = True
        self.over = False
        """Answered, or given up: no further answer is welcome."""
        self.callback: Callable[[ReplyFuture], Any] | None = None
        """Lets the task go on; to be called in its `context`. None if the task has not come to wait."""

    def set_result(self, reply: Any) -> None:
        """Answer it. The task goes on when the waker comes to it."""
        self.reply = reply
        self.over = True
        woken = self._waker.woken
        if not woken:
            self._waker.wake_soon()
        woken.append(self)

    # -- what asyncio.Task asks of a future ------------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[ReplyFuture], Any], *, context: Context) -> None:
        self.callback = callback
        self.context = context

    def done(self) -> bool:
        return self.over

    result = staticmethod(bool)
    """Whoever yields the future to its task looks at `reply` itself; this is only called to see whether it raises."""

    def cancel(self, msg: object = None) -> bool:
        """False, always: a task that hears this cancels itself when it goes on. One that was told not to (uncancel, since
        Python 3.13) finds no reply."""
        if not self.over:
            self.over = True
            if self.callback is not None:
                # Not at once: whoever cancels is a task of its own.
                self._loop.call_soon(self.callback, self, context=self.context)
        return False


def reply_futures_of(waker: Waker) -> type[ReplyFuture]:
    """A kind of reply future that knows its waker without being told each time."""
    return type("ReplyFuture", (ReplyFuture,), {"__slots__": (), "_waker": waker, "_loop": waker.loop})
