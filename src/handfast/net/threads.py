"""`core.io.IO` on blocking sockets. No await in this driver ever suspends, so an operation runs straight through."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, Final, TypeVar

from handfast.core.io import SILENT, Collector, Payloads
from handfast.core.votes import OneReply
from handfast.net import clock
from handfast.net.threads_connections import ThreadConnections
from handfast.net.wakeup import ThreadWakeup

__all__ = ["DONE", "ThreadAccess", "ThreadIO", "run"]

T = TypeVar("T")
LONGEST: Final = 1e6
"""The longest wait in seconds. The system's timers overflow after 24 days."""


class Done:
    """An awaitable that is complete: awaiting it does not suspend."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


DONE: Final = Done()


class ThreadIO(ThreadConnections, clock.MachineClock):
    """Connections that perform operations of the core, one at a time."""

    wakeup = ThreadWakeup

    async def connect(self, need: int, within: float) -> None:
        self.connect_now(need, within)

    def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> Awaitable[None]:
        self.round_trip(payloads, collector, timeout)
        return DONE

    @types.coroutine
    def ask(self, payload: bytes, timeout: float) -> Generator[Any, None, Any]:
        """See IO.ask."""
        collected = OneReply()
        self.round_trip(payload, collected, timeout)
        self._step_aside.once()
        return collected.reply if collected.decided else SILENT
        yield

    @types.coroutine
    def wait(self, wakeup: ThreadWakeup, until: float | None) -> Generator[Any, None, None]:
        """See IO.wait."""
        wakeup.wake_socket = self._wake_socket
        while not wakeup.is_set:
            left = None if until is None else until - clock.now()
            if left is not None and left <= 0:
                break
            self._wait(left if left is None or left < LONGEST else LONGEST)
        wakeup.wake_socket = None
        wakeup.is_set = False
        self._spinner.rest()
        self._step_aside.waited()
        return
        yield

    def subscribe(self, timeout: float) -> Awaitable[None]:
        self.subscribe_now(timeout)
        return DONE

    async def sleep(self, until: float) -> None:
        time.sleep(max(0.0, until - clock.now()))  # noqa: ASYNC251 - this driver blocks, that is its point


class ThreadAccess:
    """How threads reach the nodes: each operation borrows connections from a pool (thread_pool.py)."""

    now = staticmethod(clock.now)
    wakeup = ThreadWakeup
    caller = staticmethod(threading.get_ident)

    @types.coroutine
    def wait(self, wakeup: ThreadWakeup, until: float | None) -> Generator[Any, None, None]:
        left = -1 if until is None else max(0.0, until - clock.now())
        wakeup.sleep(min(left, LONGEST))
        wakeup.is_set = False
        return
        yield

    def borrow(self) -> ThreadIO:
        """See Access."""
        raise NotImplementedError

    def give_back(self, io: Any) -> None:
        """See Access."""
        raise NotImplementedError


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation of the core over a ThreadIO to its end."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("an operation of the blocking driver suspended")
