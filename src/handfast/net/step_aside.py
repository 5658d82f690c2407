"""Letting the next holder of a contended lock run first.

A server answers a release before it tells the next holder. If both processes share a CPU, the releaser wakes first and
makes its next claim, and the new holder has the lock but not the CPU. So after a reply on a contended lock, a thread
steps aside once: it lets the processes run that are ready on its CPU.

This pays while these processes contend as well. A process that computes keeps the CPU for milliseconds. So the time is
measured, and stepping aside is switched off for a while if it takes too long.
"""

from __future__ import annotations

import os
import time
from typing import Final

__all__ = ["StepAside"]

CONTENDED: Final = 0.02
"""Seconds after a wait for which a lock counts as contended."""
TOO_LONG: Final = 400e-6
"""Seconds. On average it takes a third of a turn of all contenders: 0.2 ms among eight processes on one CPU."""
PAUSE: Final = 0.05
"""Seconds for which it is switched off, doubled up to `LONGEST_PAUSE` while it still does not pay."""
LONGEST_PAUSE: Final = 1.0
WEIGHT: Final = 0.2
"""The weight of the latest time in the average."""

_clock = time.perf_counter


class StepAside:
    """Decides when to step aside, for one set of connections."""

    __slots__ = ("_average", "_contended_until", "_pause", "_resumes_at")

    def __init__(self) -> None:
        self._average = 0.0
        """Seconds that it took lately."""
        self._contended_until = 0.0
        self._pause = PAUSE
        self._resumes_at = 0.0 if hasattr(os, "sched_yield") else float("inf")

    def waited(self) -> None:
        """Note that a caller has waited for a lock."""
        self._contended_until = _clock() + CONTENDED

    def once(self) -> None:
        """Let other processes run, if the lock is contended and it pays."""
        began = _clock()
        if not self._resumes_at <= began < self._contended_until:
            return
        os.sched_yield()
        now = _clock()
        self._average += WEIGHT * (now - began - self._average)
        if self._average > TOO_LONG:
            self._switch_off(now)

    def _switch_off(self, now: float) -> None:
        paid = now - self._resumes_at > self._pause
        self._pause = PAUSE if paid else min(2 * self._pause, LONGEST_PAUSE)
        self._resumes_at = now + self._pause
        self._average = 0.0
