"""The clocks and the randomness of a real machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial

__all__ = ["MachineClock", "nonce", "now", "uniform", "wall"]


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


def nonce() -> bytes:
    """128 random bits."""
    return os.urandom(16).hex().encode()


class MachineClock:
    """The part of an IO that is the same for all real drivers."""

    now = staticmethod(_steady)
    wall = staticmethod(wall)
    random = staticmethod(uniform)
    nonce = staticmethod(nonce)
