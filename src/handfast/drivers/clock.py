"""The clocks and the randomness of a real machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from itertools import chain

__all__ = ["MachineClock", "nonces", "now", "uniform", "wall"]

# CLOCK_MONOTONIC may stand still in suspend; a lease does not.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since some fixed point, suspend included where the system can tell."""

uniform = random.SystemRandom().random


def wall() -> int:
    """Wall clock in µs."""
    return time.time_ns() // 1000


def nonces() -> Callable[[], bytes]:
    """128 random bits each, read from the system in blocks: a read for each would double the cost of an owner.

    Each driver has its own, and no driver outlives a fork: a child would repeat its parent.
    """
    blocks = iter(partial(os.urandom, 4096), b"")
    return chain.from_iterable(map(_cut, blocks)).__next__  # nothing of Python's own is called for most of them


def _cut(block: bytes) -> list[bytes]:
    text = block.hex().encode()
    return [text[i : i + 32] for i in range(0, len(text), 32)]


class MachineClock:
    """The part of the effects that is the same for all real drivers."""

    now = staticmethod(now)
    wall = staticmethod(wall)
    random = staticmethod(uniform)
