"""One interface for every lock under test, of handfast and of the peers.

A `Contender` is one user with its own connections. It gets a `Grant`. `until` is the time until which its holder may
believe in the grant, by what its library reports or documents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import handfast
import handfast.aio
from handfast.testing.history import now

__all__ = ["Contender", "Grant", "Refused", "open_contender"]


class Refused(Exception):
    """The lock was not acquired, for a reason that its library gives."""


class Grant(Protocol):
    @property
    def owner(self) -> str: ...

    @property
    def token(self) -> int | None: ...

    def until(self) -> float:
        """When it ends, as far as its holder knows; a past time if it is over."""
        ...

    async def check(self, need: float) -> bool:
        """The last check before an irreversible step."""
        ...

    async def renew(self) -> None:
        """Renew by hand, if the library does not renew by itself."""
        ...

    async def release(self) -> None: ...


class Contender(Protocol):
    async def acquire(self, name: str, wait: float) -> Grant:
        """Raises Refused, or the library's error in an outage."""
        ...

    async def close(self) -> None: ...


class HandfastGrant:
    """A lease of either client; only `release` differs."""

    def __init__(self, lease: handfast.Lease | handfast.aio.Lease) -> None:
        self.lease = lease
        self.owner, self.token = lease.owner, lease.token
        self._lost_at = math.inf
        lease._hold.when_lost(self._lost)

    def _lost(self) -> None:
        self._lost_at = min(self._lost_at, now())

    def until(self) -> float:
        return min(self.lease._hold.deadline, self._lost_at)

    async def check(self, need: float) -> bool:
        try:
            self.lease.check(need)
        except handfast.LeaseLost:
            return False
        return True

    async def renew(self) -> None:
        """Nothing to do: the watchdog renews."""

    async def release(self) -> None:
        said = self.lease.release()
        if not isinstance(said, bool):
            await said


class Handfast:
    """handfast: the blocking client, or the asyncio one."""

    def __init__(self, aio: bool, urls: Sequence[str], ttl: float, options: dict[str, Any]) -> None:
        connect: Any = handfast.aio.connect if aio else handfast.connect
        self.client: Any = connect(urls[0] if len(urls) == 1 else list(urls), ttl=ttl, **options)
        self._aio = aio

    async def acquire(self, name: str, wait: float) -> HandfastGrant:
        lock = self.client.lock(name)
        try:
            lease = await lock.acquire(wait=wait) if self._aio else lock.acquire(wait=wait)
        except handfast.NotAcquired as error:
            raise Refused(f"{type(error).__name__}: {error}") from error
        return HandfastGrant(lease)

    async def close(self) -> None:
        if self._aio:
            await self.client.close()
        else:
            self.client.close()


def open_contender(kind: str, urls: Sequence[str], ttl: float, options: dict[str, Any]) -> Contender:
    """`threads` and `asyncio` are handfast's modes; all other kinds are peers."""
    if kind in ("threads", "asyncio"):
        return Handfast(kind == "asyncio", urls, ttl, options)
    from tests.chaos import peers

    return peers.KINDS[kind].open(urls, ttl)
