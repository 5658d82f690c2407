"""When each hold is due: for a renewal, for a retry, or because it is lost.

The watchdog's thread and the simulator both run this code. They differ in how they sleep and in how they run `renew`.
Holds are kept in slots of a few milliseconds, and a heap orders the slots, not the holds. So a lease that ends before
its renewal costs only an insertion into a set and a removal.

A new hold with a long ttl is unscheduled at first, because most leases are released before they are due. While a renewal
is under way, its hold is scheduled for its deadline. So a hold is marked lost in time even if all servers hang.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from handfast.core import renew
from handfast.core.config import LockConfig
from handfast.core.hold import HELD, LOST, Hold
from handfast.core.nodes import NodeGroup

__all__ = ["FOREVER", "Schedule"]

SLOTS_PER_SECOND: Final = 200
FOREVER: Final = float("inf")
STOOD_STILL: Final = "this machine's clock stood still, so it may have ended already"
UNSCHEDULED_TTL: Final = 0.6
"""Seconds. A new hold with at least this ttl is unscheduled at first."""
UNSCHEDULED_SHARE: Final = 1 / 12
"""The time after which unscheduled holds are scheduled, as a share of the shortest ttl among them. They are due for
renewal after four times as long."""


class Schedule:
    """All holds that must be renewed. Any thread may use it. `wake` is called if the processing thread must wake earlier
    than planned."""

    def __init__(self, lock: AbstractContextManager[Any], wake: Callable[[], None], now: Callable[[], float]) -> None:
        self.lock = lock
        self.now = now
        self._wake = wake
        self.unscheduled: dict[Hold, None] = {}
        """New holds, in order of arrival, so that the simulator can repeat a run. Only atomic steps change it, so it
        needs no lock."""
        self.shortest = FOREVER
        """The shortest ttl among unscheduled holds: it decides when they are scheduled. FOREVER if there is no plan."""
        self._look_at = FOREVER
        self._wakes_at = FOREVER
        self._slots: dict[int, dict[Hold, None]] = {}
        self._order: list[int] = []
        self._in_work: dict[Hold, None] = {}
        """Holds that were taken out of their slots and are not scheduled again yet."""

    # -- from any thread

    def add(self, hold: Hold) -> None:
        """Add a new hold."""
        ttl, now = hold.ttl, self.now()
        # After a wait in a queue, a hold may have little of its ttl left.
        if ttl < UNSCHEDULED_TTL or now > hold.renew_from + UNSCHEDULED_SHARE * ttl:
            self.reschedule(hold, renew.due(hold, hold.renew_from))
        else:
            self.unscheduled[hold] = None
            # Compare only after the insertion: before it, another thread may drop the plan.
            if ttl < self.shortest:
                self.shortest = ttl
                # Count from now, not from when the watchdog wakes: the process may be stopped in between.
                self._look_at = min(self._look_at, now + UNSCHEDULED_SHARE * ttl)
                self._wake()
        # Check after the insertion: a later standstill finds the hold in the schedule.
        if hold.standstills != hold.group.standstills:
            self.remove(hold)
            hold.mark_lost(STOOD_STILL)

    def remove(self, hold: Hold) -> None:
        """Remove a hold that was released or lost."""
        self.unscheduled.pop(hold, None)
        if hold.slot:
            with self.lock:
                holds = self._slots.get(hold.slot)
                if holds is not None:
                    holds.pop(hold, None)

    def reschedule(self, hold: Hold, at: float) -> None:
        """Reschedule the hold to `at`, and wake the watchdog if that is earlier than it planned."""
        slot = int(at * SLOTS_PER_SECOND) + 1
        with self.lock:
            self._in_work.pop(hold, None)
            if hold.slot != slot:
                old = self._slots.get(hold.slot)
                if old is not None:
                    old.pop(hold, None)
                hold.slot = slot
            holds = self._slots.get(slot)
            if holds is None:
                self._slots[slot] = {hold: None}
                heapq.heappush(self._order, slot)
            else:
                holds[hold] = None
            earlier = at < self._wakes_at
            if earlier:
                self._wakes_at = at
        if earlier:
            self._wake()

    def changed(self, hold: Hold) -> None:
        """Reschedule a hold after another thread has changed its deadline."""
        self.reschedule(hold, renew.due(hold, self.now()))

    def promised(self, hold: Hold, ttl: float) -> None:
        """Reschedule a hold before an extension by `ttl` is sent. If the new deadline is earlier, it applies at once,
        whether the nodes confirm it or not."""
        at = self.now() + hold.config.policy.validity(ttl)
        if at < hold.deadline:
            self.reschedule(hold, min(at, renew.due(hold, self.now())))

    def clock_stood_still(self, group: NodeGroup) -> list[Hold]:
        """Mark all holds of the group lost: their deadlines are too late by the time of the standstill. Returns them."""
        lost = [hold for hold in self.everything() if hold.group is group and hold.mark_lost(STOOD_STILL)]
        for hold in lost:
            self.remove(hold)
        return lost

    def renew_now(self, group: NodeGroup) -> None:
        """Make the holds of the group due now. A server of theirs has moved, and the new one may not know them."""
        for hold in self.everything():
            if hold.group is group and hold.state == HELD and hold.renew_until != 0.0:
                self.unscheduled.pop(hold, None)
                self.reschedule(hold, self.now())

    def everything(self) -> list[Hold]:
        """All holds in the schedule, each once."""
        with self.lock:
            slots = (hold for slot in self._slots.values() for hold in slot)
            return list(dict.fromkeys((*self.unscheduled, *self._in_work, *slots)))

    # -- in the watchdog's thread

    def take_due(self) -> dict[LockConfig, list[Hold]]:
        """Take out the holds that are due now, in batches that can share a write."""
        now = self.now()
        if now >= self._look_at:
            self._look_at = FOREVER
            self._schedule_new()
        due: dict[LockConfig, list[Hold]] = {}
        with self.lock:
            last = int(now * SLOTS_PER_SECOND)
            while self._order and self._order[0] <= last:
                holds = self._slots.pop(heapq.heappop(self._order))
                self._in_work.update(holds)
                for hold in holds:
                    # Holds of one config wait for the same copies, with the same timeout.
                    due.setdefault(hold.config, []).append(hold)
        return due

    def _schedule_new(self) -> None:
        """Schedule the unscheduled holds. If there are none, drop the plan until one is added."""
        holds = list(self.unscheduled)
        if not holds:
            plan, self.shortest = self.shortest, FOREVER
            # Another thread may have added a hold in between, relying on the plan. If so, keep the plan.
            holds = list(self.unscheduled)
            if holds:
                self.shortest = plan
        for hold in holds:
            self.unscheduled.pop(hold, None)
            if hold.state == HELD:
                self.reschedule(hold, renew.due(hold, hold.renew_from))

    def next_wake(self) -> float:
        """The time when the next hold is due. The caller sleeps until that time, or until `wake`."""
        with self.lock:
            at = self._order[0] / SLOTS_PER_SECOND if self._order else FOREVER
            if self.shortest < FOREVER:
                self._look_at = min(self._look_at, self.now() + self.shortest * UNSCHEDULED_SHARE)
                at = min(at, self._look_at)
            self._wakes_at = at
            return at

    def sort_out(self, holds: list[Hold]) -> list[Hold]:
        """Mark due holds lost whose deadline has passed. Returns the holds to renew."""
        now = self.now()
        to_renew: list[Hold] = []
        for hold in holds:
            if hold.state != HELD:
                self._in_work.pop(hold, None)
                continue
            self.reschedule(hold, hold.deadline)
            if renew.expire(hold, now):
                self.remove(hold)
            elif hold.renew_until is None or now < hold.renew_until:
                to_renew.append(hold)
        return to_renew

    def renewed(self, holds: list[Hold]) -> None:
        """Reschedule the holds after a round of renewals, and remove the lost ones."""
        now = self.now()
        for hold in holds:
            if hold.state == HELD:
                self.reschedule(hold, renew.due(hold, now))
            elif hold.state == LOST:
                self.remove(hold)
