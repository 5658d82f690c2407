"""Holds by the time at which they must be looked at next.

They lie in slots of a few milliseconds, and a heap orders the slots, not the holds: leases that come and go between two
renewals cost a set insertion and a removal.
"""

from __future__ import annotations

import heapq
import threading
from typing import Final

from handfast.core.hold import Hold
from handfast.core.terms import Settings

__all__ = ["FOREVER", "Roster"]

SLOTS_PER_SECOND: Final = 200
FOREVER: Final = float("inf")


class Roster:
    """Used by any thread, under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.wakes_at = FOREVER
        """Until when whoever looks after it sleeps; to be woken for what is due earlier."""
        self._slots: dict[int, set[Hold]] = {}
        self._order: list[int] = []
        self._tended: set[Hold] = set()
        """Taken out of their slots and not filed again yet."""

    def file(self, hold: Hold, at: float) -> bool:
        """Have it looked at then, and not when it was said before; True if that is earlier than expected."""
        slot = int(at * SLOTS_PER_SECOND) + 1
        with self.lock:
            self._tended.discard(hold)
            if hold.slot != slot:
                old = self._slots.get(hold.slot)
                if old is not None:
                    old.discard(hold)
                hold.slot = slot
            holds = self._slots.get(slot)
            if holds is None:
                self._slots[slot] = {hold}
                heapq.heappush(self._order, slot)
            else:
                holds.add(hold)
            early = at < self.wakes_at
            if early:
                self.wakes_at = at
        return early

    def remove(self, hold: Hold) -> None:
        with self.lock:
            holds = self._slots.get(hold.slot)
            if holds is not None:
                holds.discard(hold)

    def tended(self, hold: Hold) -> None:
        """Nothing more is to be done for it."""
        self._tended.discard(hold)

    def due(self, now: float) -> dict[Settings, list[Hold]]:
        """Take out what must be looked at now, in batches that can share a write."""
        due: dict[Settings, list[Hold]] = {}
        with self.lock:
            last = int(now * SLOTS_PER_SECOND)
            while self._order and self._order[0] <= last:
                holds = self._slots.pop(heapq.heappop(self._order))
                self._tended |= holds
                for hold in holds:
                    # Same settings: same copies to wait for, same patience.
                    due.setdefault(hold.settings, []).append(hold)
        return due

    def next(self) -> float:
        """When the first is due. Under the lock."""
        return self._order[0] / SLOTS_PER_SECOND if self._order else FOREVER

    def everybody(self) -> set[Hold]:
        """Under the lock, or in a child after a fork."""
        return {*self._tended, *(hold for slot in self._slots.values() for hold in slot)}
