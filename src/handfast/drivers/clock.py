"""The clocks and the randomness of a real machine."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Final

__all__ = ["nonce", "now", "uniform", "wall"]

# CLOCK_MONOTONIC may stand still in suspend; a lease does not.
now: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic
)
"""Seconds since some fixed point, suspend included where the system can tell."""

uniform = random.SystemRandom().random


def wall() -> int:
    """Wall clock in µs."""
    return time.time_ns() // 1000


_BLOCK: Final = 4096


class _Nonces:
    """128 random bits each, read from the system in blocks: a read for each would double the cost of an owner."""

    def __init__(self) -> None:
        self._fresh: list[bytes] = []

    def take(self) -> bytes:
        try:
            return self._fresh.pop()
        except IndexError:
            text = os.urandom(_BLOCK).hex().encode()
            fresh = [text[i : i + 32] for i in range(0, len(text), 32)]
            self._fresh = fresh
            return fresh.pop()

    def forget(self) -> None:
        """After a fork the child would repeat its parent."""
        self._fresh = []


_nonces = _Nonces()
nonce = _nonces.take
os.register_at_fork(after_in_child=_nonces.forget)
