"""Waiting for a reply without going to sleep, while that pays.

Most of the time of a round trip on a near server is spent on falling asleep and being woken, not on Python or on the
network. So a blocking round trip first polls its sockets without sleeping, for about twice the time that recent replies
took and never for more than `LONGEST`. It needs a machine with a second CPU, because the server may run on this one.

Spinning does not pay with a far server, with busy CPUs, or if the server needs the CPU to which this process is pinned.
If other threads of this process compute, it takes the interpreter's lock from them. In these cases it is switched off for
a while, and tried again later. A contended lock is such a case: other processes need the CPUs.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Final

__all__ = ["Spinner"]

LONGEST: Final = 200e-6
"""Seconds. Spinning for longer costs more than sleeping."""
MARGIN: Final = 10e-6
MISSES: Final = 3
"""Spinning is switched off after so many rounds in a row without a reply in time."""
PAUSE: Final = 0.02
"""Seconds for which it is switched off, doubled up to `LONGEST_PAUSE` while it still does not pay."""
LONGEST_PAUSE: Final = 1.0
CROWDED: Final = 0.1
"""The share of a CPU that other threads of the process may use."""
WEIGHT: Final = 0.2
"""The weight of the latest reply in the average of recent replies."""

_clock = time.perf_counter
_cpu_of_thread = time.thread_time
_cpu_of_process = time.process_time


def _has_second_cpu() -> bool:
    return (os.cpu_count() or 1) > 1


class Spinner:
    """Decides when and how long to spin, for one set of connections."""

    __slots__ = ("_average", "_looks_at", "_misses", "_pause", "_resumes_at", "_seen")

    def __init__(self) -> None:
        self._average = LONGEST / 2
        """Seconds that recent replies took."""
        self._misses = 0
        self._pause = PAUSE
        self._resumes_at = 0.0 if _has_second_cpu() else float("inf")
        self._looks_at = 0.0
        """When to look again at what other threads do."""
        self._seen = (0, 0.0, 0.0)
        """At the last look: the thread, the time, and the CPU time of all other threads of the process."""

    def poll(self, poller: select.poll, seconds: float) -> list[tuple[int, int]]:
        """Like `poller.poll`, for a reply that is expected soon."""
        began = now = _clock()
        if began < self._resumes_at or (began >= self._looks_at and self._is_crowded(began)):
            return poller.poll(seconds * 1000)
        limit = min(LONGEST, 2 * self._average + MARGIN, seconds)
        while now - began < limit:
            events = poller.poll(0)
            now = _clock()
            if events:
                self._count(now - began, limit)
                return events
        self._miss(now)
        return poller.poll(max(0.0, seconds - (now - began)) * 1000)

    def rest(self) -> None:
        """Pause after a wait for a lock: other processes need the CPUs, and replies take longer."""
        self._resumes_at = max(self._resumes_at, _clock() + PAUSE)

    def _count(self, took: float, limit: float) -> None:
        self._average += WEIGHT * (min(took, LONGEST) - self._average)
        if took > 2 * limit:  # another thread had the interpreter's lock in between
            self._miss(_clock())
        else:
            self._misses, self._pause = 0, PAUSE

    def _is_crowded(self, now: float) -> bool:
        """Whether other threads of this process have used much CPU time since the last look. If so, switch off."""
        thread, since, used = self._seen
        self._seen = (threading.get_ident(), now, _cpu_of_process() - _cpu_of_thread())
        self._looks_at = now + PAUSE
        if self._seen[0] != thread or self._seen[2] - used <= CROWDED * (now - since):
            return False
        self._switch_off(now)
        return True

    def _miss(self, now: float) -> None:
        self._misses += 1
        if self._misses >= MISSES:
            self._misses = MISSES - 1  # after the pause, one more miss is enough
            self._switch_off(now)

    def _switch_off(self, now: float) -> None:
        self._resumes_at = now + self._pause
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self._average = LONGEST / 2
