"""The clocks and the randomness of a real machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial

__all__ = ["Nonces", "now", "uniform", "wall"]

# CLOCK_MONOTONIC may stand still in suspend; a lease does not.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since some fixed point, suspend included where the system can tell."""

uniform = random.SystemRandom().random


def wall() -> int:
    """Wall clock in µs."""
    return time.time_ns() // 1000


class Nonces:
    """128 random bits each, read from the system in blocks: a read for each would double the cost of an owner.

    Each driver has its own, and no driver outlives a fork: a child would repeat its parent.
    """

    def __init__(self) -> None:
        self._left: list[bytes] = []

    def take(self) -> bytes:
        try:
            return self._left.pop()
        except IndexError:
            text = os.urandom(4096).hex().encode()
            self._left = [text[i : i + 32] for i in range(32, len(text), 32)]
            return text[:32]
