"""Effects by blocking sockets: no await in here ever suspends, so an operation runs straight through."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar

from handfast.core.effects import Fault, Payloads, Poll
from handfast.net import clock
from handfast.net.threads_fast import LONGEST, FastPath
from handfast.net.wakeup import ThreadWakeup

__all__ = ["DONE", "Done", "ThreadIO", "ThreadLobby", "run"]

T = TypeVar("T")


class Done:
    """What has already happened can be awaited without suspending."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result
        yield


DONE = Done()


class ThreadIO(FastPath, clock.MachineClock):
    """Connections that perform effects; one operation at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.wind_up()

    async def settle(self, need: int, within: float) -> None:
        self.connect(need, within)

    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Awaitable[None]:
        self.round_trip(payloads, poll, patience)
        return DONE

    @types.coroutine
    def park(self, bell: ThreadWakeup, until: float | None) -> Generator[Any, None, None]:
        """See Effects.park."""
        bell.wake_socket = self._wake_socket
        while not bell.is_set:
            left = None if until is None else until - clock.now()
            if left is not None and left <= 0:
                break
            self._wait(left if left is None or left < LONGEST else LONGEST)
        bell.wake_socket = None
        bell.is_set = False
        return
        yield

    def subscribe(self, patience: float) -> Awaitable[bytes | Fault]:
        return Done(self.subscribe_own_channel(patience))

    async def sleep(self, until: float) -> None:
        time.sleep(max(0.0, until - clock.now()))  # noqa: ASYNC251 - this driver blocks, that is its point


class ThreadLobby:
    """Where threads wait who need no connection for it."""

    now = staticmethod(clock.now)
    bell = ThreadWakeup
    who = staticmethod(threading.get_ident)

    def __init__(self, visit: Callable[..., Any]) -> None:
        self._visit = visit

    @types.coroutine
    def park(self, bell: ThreadWakeup, until: float | None) -> Generator[Any, None, None]:
        left = -1 if until is None else max(0.0, until - clock.now())
        bell.sleep(min(left, LONGEST))
        bell.is_set = False
        return
        yield

    @types.coroutine
    def visit(self, operation: Callable[..., Any], *args: Any) -> Generator[Any, None, Any]:
        return self._visit(operation, *args)
        yield


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation of the core over a ThreadIO to its end."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("an effect of the blocking driver suspended")
