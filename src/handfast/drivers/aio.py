"""Effects on an asyncio loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from handfast.drivers import clock
from handfast.wire.aio import AioBell, AioLane

__all__ = ["AioDriver"]


class AioDriver(AioLane, clock.MachineClock):
    """A lane that performs effects for any number of operations at once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.nonce = clock.nonces()

    def park(self, bell: AioBell, until: float | None) -> Awaitable[None]:
        return self.listen(bell, None if until is None else max(0.0, until - clock.now()))

    @staticmethod
    def who() -> str:
        task = asyncio.current_task()
        return task.get_name() if task is not None else "no task"

    def visit(self, operation: Callable[[AioDriver], Awaitable[Any]]) -> Awaitable[Any]:
        """See Lobby: tasks wait where they do everything else."""
        return operation(self)

    async def sleep(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - clock.now()))
