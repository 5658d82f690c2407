"""The future that a task awaits for the replies of the nodes.

A task may await any object that behaves like a future. A future of asyncio resumes its task in the next turn of the loop,
through a handle made for the purpose. A ReplyFuture is resumed by the connections that have read the replies, in the
same turn. That saves one poll of the loop and a good part of the cost of an exchange. A resumed task runs where its loop
would have run it: on the loop's thread, in its own context, inside no other task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Protocol

__all__ = ["ReplyFuture", "Waker"]


class Waker(Protocol):
    """Resumes the tasks: the connections."""

    loop: asyncio.AbstractEventLoop
    woken: list[ReplyFuture]

    def wake_soon(self) -> None:
        """Resume the tasks in `woken` soon."""


class ReplyFuture:
    """A future for one waiting task.

    It is the collector of a request to a single node as well: the node's reply is its result.
    """

    # Slots also for what never changes: see docs/decisions.md, Attributes that are read often are slots.
    __slots__ = (
        "_asyncio_future_blocking", "_loop", "_waker", "callback", "checked", "context", "over", "reply", "width",
    )  # fmt: skip

    until = float("inf")
    decided = False

    def __init__(self, waker: Waker) -> None:
        self._waker = waker
        self._loop = waker.loop
        self._asyncio_future_blocking = True
        self.width = 1
        self.checked = False
        self.over = False
        """The future has its reply, or its task has stopped waiting. It takes no reply any more."""
        self.callback: Callable[[ReplyFuture], Any] | None = None
        """Resumes the task; must be called in `context`. None until the task waits."""

    def set_result(self, reply: Any) -> None:
        """Set the reply. The waker resumes the task."""
        self.reply = reply
        self.over = True
        woken = self._waker.woken
        if not woken:
            self._waker.wake_soon()
        woken.append(self)

    @property
    def waiter(self) -> Any:
        return self

    def add(self, node: int, reply: Any) -> bool:
        """See Collector."""
        if not self.over:
            self.set_result(reply)
        return False

    # -- what asyncio.Task asks of a future ------------------------------------------------------------------------

    def add_done_callback(self, callback: Callable[[ReplyFuture], Any], *, context: Context) -> None:
        self.callback = callback
        self.context = context

    def done(self) -> bool:
        return self.over

    result = staticmethod(bool)
    """The task calls this only to see whether it raises. The operation reads `reply` itself."""

    def cancel(self, msg: object = None) -> bool:
        """Always return False, so that asyncio cancels the task at its next step. A task that was uncancelled in the
        meantime (Python 3.13) goes on and finds no reply."""
        if not self.over:
            self.over = True
            if self.callback is not None:
                # Not at once: the task that cancels is still running.
                self._loop.call_soon(self.callback, self, context=self.context)
        return False
