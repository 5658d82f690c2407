"""Loses a lease on demand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from .._client import BaseClient
from .._lease import BaseLease, BaseLock
from ..core.hold import LOST, Hold
from ..core.release import payloads
from ..core.votes import AllReplies

if TYPE_CHECKING:
    from ..watchdog import Watchdog

__all__ = ["lose"]

TIMEOUT: Final = 1.0
"""Seconds that the servers have to delete the lease. A slow server does not prevent the loss."""


def lose(what: BaseLease | BaseLock, reason: str = "a test wanted it so") -> None:
    """Lose a lease now, as if a majority of the servers had forgotten it. Given a lock, lose all leases of its client.

    Everything happens as in a real loss: `lost` is set, `check()` raises, the body of an `async with` is cancelled at its
    next await, the end of the block raises LeaseLost with this `reason`, and nothing is renewed or released. When this
    returns, the keys are deleted, so that another client may take the lock at once. A server that does not answer within
    a second keeps its key until the ttl ends.

    RuntimeError is raised if there is nothing to lose: a released lease, or a lock that its client does not hold.
    """
    client: BaseClient[Any, Any] = cast(Any, what)._client
    dog = client._dog
    if dog is None:
        raise RuntimeError(f"{what.name}: this client does not hold it")
    # Run this in the watchdog's thread, which also notices real losses. Its schedule has all holds.
    asyncio.run_coroutine_threadsafe(_lose(dog, what, reason), dog._loop).result(10 * TIMEOUT)


async def _lose(dog: Watchdog, what: BaseLease | BaseLock, reason: str) -> None:
    if isinstance(what, BaseLease):
        holds = [what._hold]
    else:
        holds = [hold for hold in dog.held(what.group) if hold.keys == what.keys]
        if not holds:
            raise RuntimeError(f"{what.name}: this client does not hold it")
    for hold in holds:
        if hold.mark_lost(reason):
            dog.schedule.remove(hold)
        elif hold.state != LOST:
            raise RuntimeError(f"{hold.name}: the lease was {hold.state} and cannot be lost any more")
    try:
        async with asyncio.timeout(TIMEOUT):
            for hold in holds:
                await _delete(dog, hold)
    except TimeoutError:
        pass


async def _delete(dog: Watchdog, hold: Hold) -> None:
    """Delete the keys, on the watchdog's connections: so this follows a renewal or a heal that is under way there."""
    group = hold.group
    registration = dog._registrations.get(group)
    if registration is None:
        return
    io = await dog._connected(registration.io_for(hold.key), group)
    if io.up < group.n:
        await io.connect(group.n, TIMEOUT)
    everybody = AllReplies(group.n, len(hold.names), lambda node, reply: 1)
    await io.broadcast(payloads(hold, hold.who, hold.token_floor), everybody, TIMEOUT)
