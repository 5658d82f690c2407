"""The order of waiters on one node survives steps of the server's clock."""

from __future__ import annotations

import asyncio

import handfast.aio
from handfast.testing import Server
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import plain

KEY = "handfast:{a}:q"
HOUR_US = 3_600_000_000


def queue(server: Server) -> list[bytes]:
    ids = server.command("ZRANGE", KEY, 0, -1)
    assert isinstance(ids, list)
    return ids


@plain
async def test_later_waiter_stays_behind_when_the_clock_is_set_back(one: Server) -> None:
    """The first waiter has a ticket from an hour ahead, as if the clock had been set back since."""
    async with (
        handfast.aio.connect(one.url) as holder,
        handfast.aio.connect(one.url) as first,
        handfast.aio.connect(one.url) as second,
    ):
        lease = await holder.lock("a").acquire()
        earlier = asyncio.create_task(first.lock("a").acquire())
        await eventually_async(lambda: len(queue(one)) == 1)
        (waiter,) = queue(one)
        one.command("ZINCRBY", KEY, HOUR_US, waiter)
        later = asyncio.create_task(second.lock("a").acquire())
        await eventually_async(lambda: len(queue(one)) == 2)
        assert queue(one)[0] == waiter
        await lease.release()
        await (await earlier).release()
        await (await later).release()
