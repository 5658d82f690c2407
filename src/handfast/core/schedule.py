"""When each hold must be looked at next: to be renewed, to be tried again, or to be declared lost.

The watchdog's thread and the simulator run the same code; they differ in how they sleep and in how they run `renew`.
Holds lie in slots of a few milliseconds, and a heap orders the slots, not the holds: leases that come and go between
two renewals cost a set insertion and a removal.

A new hold with a long ttl is first kept unscheduled. Most leases are released before anybody has to look at them.
While a renewal is under way its hold is scheduled for its deadline, so LOST comes on time though all servers hang.
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
"""From this ttl on a hold stays unscheduled at first: a look now and then is soon enough for it."""
UNSCHEDULED_SHARE: Final = 1 / 12
"""Of the shortest ttl among unscheduled holds: the time between two looks. Renewal comes four times as late."""


class Schedule:
    """Used by any thread. `wake` is called when the thread that processes it must look earlier than planned."""

    def __init__(self, lock: AbstractContextManager[Any], wake: Callable[[], None], now: Callable[[], float]) -> None:
        self.lock = lock
        self.now = now
        self._wake = wake
        self.unscheduled: dict[Hold, None] = {}
        """New holds, in order of arrival, so that a history can be repeated. Only atomic steps touch it, so
        it needs no lock."""
        self.shortest = FOREVER
        """The shortest ttl that the looks at unscheduled holds are planned for; FOREVER if none is planned."""
        self._look_at = FOREVER
        self._wakes_at = FOREVER
        self._slots: dict[int, dict[Hold, None]] = {}
        self._order: list[int] = []
        self._in_work: dict[Hold, None] = {}
        """Taken out of their slots and not scheduled again yet."""

    # -- from any thread

    def add(self, hold: Hold) -> None:
        """Watch over a new hold."""
        ttl, now = hold.ttl, self.now()
        # A hold that was waited for may have little of its ttl left.
        if ttl < UNSCHEDULED_TTL or now > hold.renew_from + UNSCHEDULED_SHARE * ttl:
            self.reschedule(hold, renew.due(hold, hold.renew_from))
        else:
            self.unscheduled[hold] = None
            # After the hold was added: the plan may be given up until then.
            if ttl < self.shortest:
                self.shortest = ttl
                # Counted from now: the process may be stopped before its watchdog wakes.
                self._look_at = min(self._look_at, now + UNSCHEDULED_SHARE * ttl)
                self._wake()
        # Afterwards: a standstill that is noticed from here on finds the hold here.
        if hold.standstills != hold.group.standstills:
            self.remove(hold)
            hold.mark_lost(STOOD_STILL)

    def remove(self, hold: Hold) -> None:
        """It was released, or is lost."""
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
        """Another thread has changed its deadline."""
        self.reschedule(hold, renew.due(hold, self.now()))

    def promised(self, hold: Hold, ttl: float) -> None:
        """An extension by `ttl` is about to be sent. Where that brings the deadline forward, the new deadline counts from
        now on, whether anybody answers or not."""
        at = self.now() + hold.config.policy.validity(ttl)
        if at < hold.deadline:
            self.reschedule(hold, min(at, renew.due(hold, self.now())))

    def clock_stood_still(self, group: NodeGroup) -> list[Hold]:
        """The deadlines of these holds are too late by as long as this machine's clock stood still. Returns the lost."""
        lost = [hold for hold in self.everything() if hold.group is group and hold.mark_lost(STOOD_STILL)]
        for hold in lost:
            self.remove(hold)
        return lost

    def everything(self) -> list[Hold]:
        """All holds that are watched, each once."""
        with self.lock:
            slots = (hold for slot in self._slots.values() for hold in slot)
            return list(dict.fromkeys((*self.unscheduled, *self._in_work, *slots)))

    # -- in the watchdog's thread

    def take_due(self) -> dict[LockConfig, list[Hold]]:
        """Take out what must be looked at now, in batches that can share a write."""
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
                    # Same config: same copies to wait for, same timeout.
                    due.setdefault(hold.config, []).append(hold)
        return due

    def _schedule_new(self) -> None:
        """Schedule what is still held. Without holds no further look is planned until one is added."""
        holds = list(self.unscheduled)
        if not holds:
            plan, self.shortest = self.shortest, FOREVER
            # A hold may have been added since, relying on the plan. The plan is never given up after this look.
            holds = list(self.unscheduled)
            if holds:
                self.shortest = plan
        for hold in holds:
            self.unscheduled.pop(hold, None)
            if hold.state == HELD:
                self.reschedule(hold, renew.due(hold, hold.renew_from))

    def next_wake(self) -> float:
        """When to look next; the caller sleeps until then, or until `wake`."""
        with self.lock:
            at = self._order[0] / SLOTS_PER_SECOND if self._order else FOREVER
            if self.shortest < FOREVER:
                self._look_at = min(self._look_at, self.now() + self.shortest * UNSCHEDULED_SHARE)
                at = min(at, self._look_at)
            self._wakes_at = at
            return at

    def sort_out(self, holds: list[Hold]) -> tuple[list[Hold], list[Hold]]:
        """Of holds that are due: those to renew, and those that were lost by now."""
        now = self.now()
        to_renew: list[Hold] = []
        lost: list[Hold] = []
        for hold in holds:
            if hold.state != HELD:
                self._in_work.pop(hold, None)
                continue
            self.reschedule(hold, hold.deadline)
            if renew.expire(hold, now):
                self.remove(hold)
                lost.append(hold)
            elif hold.renew_until is None or now < hold.renew_until:
                to_renew.append(hold)
        return to_renew, lost

    def renewed(self, holds: list[Hold]) -> list[Hold]:
        """A round of renewal has ended: plan the next look at each. Returns those that were lost."""
        now = self.now()
        lost = [hold for hold in holds if hold.state == LOST]
        for hold in holds:
            if hold.state == HELD:
                self.reschedule(hold, renew.due(hold, now))
        for hold in lost:
            self.remove(hold)
        return lost
