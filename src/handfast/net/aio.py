"""`core.io.IO` on an asyncio event loop. All tasks of the loop share one `AsyncIO`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from handfast.net import clock
from handfast.net.aio_connections import AioConnections
from handfast.net.push_router import TaskWakeup

__all__ = ["AsyncIO"]


class AsyncIO(AioConnections, clock.MachineClock):
    """Runs operations of the core, any number at a time. It is the tasks' `core.io.Access` as well."""

    caller = staticmethod(asyncio.current_task)

    def wait(self, wakeup: TaskWakeup, until: float | None) -> Awaitable[None]:
        return self.wait_for(wakeup, None if until is None else max(0.0, until - clock.now()))

    def borrow(self) -> AsyncIO:
        """See Access. All tasks share the connections."""
        return self

    def give_back(self, io: AsyncIO) -> None: ...

    async def sleep(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - clock.now()))
