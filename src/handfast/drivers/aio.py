"""Effects on an asyncio loop."""

from __future__ import annotations

import asyncio
from typing import Any

from handfast.drivers import clock
from handfast.wire.aio import AioLane

__all__ = ["AioDriver"]


class AioDriver(AioLane, clock.MachineClock):
    """A lane that performs effects for any number of operations at once."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.nonce = clock.nonces()

    async def sleep(self, until: float) -> None:
        await asyncio.sleep(max(0.0, until - clock.now()))
