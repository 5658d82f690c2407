"""Effects on an asyncio loop."""

from __future__ import annotations

import asyncio

from handfast.drivers import clock
from handfast.wire.aio import AioLane

__all__ = ["AioDriver"]


class AioDriver(AioLane):
    """A lane that performs effects for any number of operations at once."""

    now = staticmethod(clock.now)
    wall = staticmethod(clock.wall)
    nonce = staticmethod(clock.nonce)
    random = staticmethod(clock.uniform)

    async def sleep(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - clock.now()))
