"""Effects by blocking sockets: no await in here ever suspends, so an operation runs straight through."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

from handfast.core.effects import Payloads, Poll
from handfast.drivers import clock
from handfast.wire.blocking import Lane

__all__ = ["ThreadDriver", "run"]

T = TypeVar("T")


class _Done:
    """What has already happened can be awaited without suspending."""

    __slots__ = ("result",)

    def __init__(self, result: Any = None) -> None:
        self.result = result

    def __await__(self) -> Generator[Any, None, Any]:
        return self.result
        yield


_DONE = _Done()


class ThreadDriver(Lane, clock.MachineClock):
    """A lane that performs effects; one operation at a time."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.nonce = clock.nonces()

    async def settle(self, need: int, within: float) -> None:
        self.connect(need, within)

    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Awaitable[None]:
        self.round_trip(payloads, poll, patience)
        return _DONE

    def ask(self, payload: bytes, patience: float) -> Awaitable[Any]:
        return _Done(self.question(payload, patience))

    async def sleep(self, until: float) -> None:
        time.sleep(max(0.0, until - clock.now()))  # noqa: ASYNC251 - this driver blocks, that is its point


def run(operation: Coroutine[Any, Any, T]) -> T:
    """Run an operation of the core over a ThreadDriver to its end."""
    try:
        operation.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("an effect of the blocking driver suspended")
