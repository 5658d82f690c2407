"""The clocks and the randomness of a real machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial

__all__ = ["MachineClock", "nonces", "now", "uniform", "wall"]


def _clock_that_runs_in_suspend() -> Callable[[], float]:
    """A lease does not stand still while the machine is suspended, so its clock must not.

    On Linux that is CLOCK_BOOTTIME: CLOCK_MONOTONIC stands still. On macOS it is CLOCK_MONOTONIC: `time.monotonic()`
    reads another clock there, which stands still. Elsewhere the best that there is.
    """
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name):
            return partial(time.clock_gettime, getattr(time, name))
    return time.monotonic


now: Callable[[], float] = _clock_that_runs_in_suspend()
"""Seconds since some fixed point, suspend included where the system can tell."""

_steady = now
uniform = random.SystemRandom().random


def wall() -> int:
    """Wall clock in µs."""
    return time.time_ns() // 1000


def nonces() -> Callable[[], bytes]:
    """128 random bits each, read from the system in blocks: a read for each would double the cost of an owner.

    Each driver has its own, and no driver outlives a fork: a child would repeat its parent.
    """
    left: list[bytes] = []

    def take(pop: Callable[[], bytes] = left.pop) -> bytes:
        try:
            return pop()
        except IndexError:
            text = os.urandom(4096).hex().encode()
            left.extend([text[i : i + 32] for i in range(0, len(text), 32)])
            return pop()

    return take


class MachineClock:
    """The part of the effects that is the same for all real drivers."""

    now = staticmethod(_steady)
    wall = staticmethod(wall)
    random = staticmethod(uniform)

    def wind_up(self) -> None:
        """What is of the instance: a nonce; and the clock, which Python would have to look up in the class each time."""
        self.now = _steady
        self.nonce = nonces()
