"""The clocks and the randomness of a real machine."""

from __future__ import annotations

import os
import random
import time
from binascii import hexlify
from collections.abc import Callable
from functools import partial

__all__ = ["MachineClock", "nonce", "now", "uniform", "wall"]


def _clock_that_runs_in_suspend() -> Callable[[], float]:
    """Return a clock that goes on while the machine is suspended, because leases go on as well.

    On Linux this is CLOCK_BOOTTIME, because CLOCK_MONOTONIC stops in suspend. On macOS it is CLOCK_MONOTONIC, because
    `time.monotonic()` reads another clock there, which stops. Other systems get the best clock that they have.
    """
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        if hasattr(time, name):
            return partial(time.clock_gettime, getattr(time, name))
    return time.monotonic


now: Callable[[], float] = _clock_that_runs_in_suspend()
"""Return the seconds since some fixed point. Time in suspend counts, if the system has such a clock."""

_steady = now
uniform = random.SystemRandom().random


def wall() -> int:
    """Return the wall clock in µs."""
    return time.time_ns() // 1000


def nonce() -> bytes:
    """Return 128 random bits as text."""
    return hexlify(os.urandom(16))


class MachineClock:
    """The clocks and the randomness of `core.io.IO`. All drivers but the simulator's share it."""

    now = staticmethod(_steady)
    wall = staticmethod(wall)
    random = staticmethod(uniform)
    nonce = staticmethod(nonce)
