"""Wait until a condition holds, with a deadline, instead of a fixed sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

EVERY = 0.005
PATIENCE = 10.0
"""Seconds. No promise: a busy machine is never that late, and a defect is never in time."""


class HasRemaining(Protocol):
    def remaining(self) -> float: ...


def eventually(predicate: Callable[[], object], within: float = PATIENCE, what: str = "") -> None:
    """Return as soon as `predicate` holds; fail if it does not within that many seconds."""
    end = time.monotonic() + within
    while not predicate():
        if time.monotonic() > end:
            raise AssertionError(f"not so within {within:g} s: {what or predicate}")
        time.sleep(EVERY)


async def eventually_async(predicate: Callable[[], object], within: float = PATIENCE, what: str = "") -> None:
    """The same for asyncio: the event loop keeps running."""
    if not await comes_true(predicate, within):
        raise AssertionError(f"not so within {within:g} s: {what or predicate}")


async def comes_true(predicate: Callable[[], object], within: float) -> bool:
    """Whether `predicate` holds within that many seconds. Returns as soon as it does."""
    end = time.monotonic() + within
    while not predicate():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(EVERY)
    return True


def assert_on_time(attempt: Callable[[], float], within: float = 0.03, tries: int = 5) -> None:
    """One of so many tries is no later than that, and none is early or stalls.

    A busy machine is late now and then. A defect is late each time.
    """
    late: list[float] = []
    while not late or late[-1] > within:
        assert len(late) < tries, f"not within {within:g} s, but {late}"
        late.append(attempt())
        assert -0.01 < late[-1] < 0.5


def renewal_of(lease: HasRemaining, by: float = 0.02) -> Callable[[], bool]:
    """Whether the watchdog has renewed a lease since now, and its end is so many seconds later."""
    left = lease.remaining()
    ends = time.monotonic() + left  # in this order: a pause between the two must not look like a renewal

    def renewed() -> bool:
        now, left = time.monotonic(), lease.remaining()
        return left > 0 and now + left > ends + by

    return renewed
