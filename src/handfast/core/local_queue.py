"""Who waits for what in this process, in order of arrival.

There is one wait queue for each lock that somebody waits for. Only its head talks to the servers. All others sleep
until it is their turn, so ten thousand waiting tasks are one waiter to a server. A waiter that leaves, for whatever
reason, wakes the next one if it was the head.

A cohort's lock may also be handed over from its holder to the head of its queue, without a word to any server
(`hand_over`).

Several threads may use the same queues. Every change is made under `WaitQueues.lock`. Nothing is awaited or sent
while the lock is held.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from weakref import WeakValueDictionary

from handfast.core.config import LockRequest, Timing
from handfast.core.hold import CohortTurn, Hold
from handfast.core.io import CappedTimeout, Fault
from handfast.core.nodes import NodeGroup
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol.commands import Identity

MOST_WANTED: Final = 1000
"""Locks that are remembered as wanted by others."""

__all__ = ["Acquisition", "WaitQueue", "WaitQueues", "Waiter"]

LONG_WAIT: Final = 30.0
"""Seconds after which a wait is logged, with the holder."""
REPORT_EVERY: Final = 60.0
"""Seconds between two such lines about one lock."""


class Acquisition:
    """One call of acquire: what it wants, until when it waits, and what it may have left on the servers."""

    __slots__ = ("began", "hold", "left_behind", "request", "sent", "timing", "touched", "until", "wait", "who")

    def __init__(self, request: LockRequest, timing: Timing, wait: float | None, began: float) -> None:
        self.request = request
        self.timing = timing
        self.wait = wait
        self.began = began
        self.until = None if wait is None else began + wait
        self.who: Identity | None = None
        self.touched = 0
        """Nodes, as bits, where a vote or a claim of it may be that was not taken back."""
        self.left_behind: tuple[Hold, ...] = ()
        """What could not be taken back on its own connections: the watchdog has to do it."""
        self.sent = began
        """When its last attempt was sent."""
        self.hold: Hold | None = None
        """What it came to."""

    def identify(self, nonce: Callable[[], bytes]) -> Identity:
        """Its identity on the servers: a new one after what it left there was taken back."""
        if self.who is None:
            owner = self.request.owner
            if owner is None:
                owner = self.request.config.owner_start + nonce()
                self.who = Identity(owner, owner)
            else:
                self.who = Identity.explicit(owner, nonce())
        return self.who

    def timeout(self, seconds: float, now: float) -> float:
        """`seconds`, but no longer than it waits."""
        if not self.wait or self.until is None:
            return seconds
        return CappedTimeout(seconds, max(0.0, self.until - now))

    def earlier(self, at: float) -> float:
        """That moment, or the end of its waiting."""
        return at if self.until is None else min(at, self.until)

    def remains(self) -> Hold:
        """A hold that stands for what it may have left on the servers."""
        assert self.who is not None
        hold = Hold(self.request, self.who, self.timing.ttl, 0.0, self.began, 0, 0)
        hold.give_up()
        hold.may_arrive_late = True
        return hold


class Waiter:
    """One acquisition's place in a wait queue."""

    __slots__ = ("acquisition", "announced", "caller", "given", "queue", "wakeup")

    def __init__(self, queue: WaitQueue, acquisition: Acquisition, wakeup: Any, caller: Any) -> None:
        self.queue = queue
        self.acquisition = acquisition
        self.wakeup = wakeup
        self.caller = caller
        """The thread or task."""
        self.given: Hold | None = None
        """What a sibling has handed over to it."""
        self.announced = False
        """Listeners were told that it waits."""

    @property
    def report_at(self) -> float:
        """When its wait is to be logged: it has waited for long, and no other waiter's line has told the same lately."""
        return max(self.acquisition.began + LONG_WAIT, self.queue.reported_at + REPORT_EVERY)

    def usable(self, now: float) -> Hold | None:
        """What a sibling has handed over, if it is still good. What is not is forgotten: it ends by itself."""
        if self.given is not None and not self.given.held_at(now):
            self.given = None
        return self.given


class WaitQueue:
    """All waiters for one lock."""

    __slots__ = ("explain", "head", "holder", "key", "reported_at", "waiters")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        """In order of arrival; any of them can leave at once."""
        self.head: Waiter | None = None
        self.holder: Hold | None = None
        """What a waiter of this queue got last, if it may still be held."""
        self.explain: Callable[[float], NotAcquired | ConfigError] | None = None
        """Makes the error for a wait that timed out, from what the head has heard from the servers."""
        self.reported_at = float("-inf")
        """When the last long wait was logged."""


class WaitQueues:
    """The wait queues of one client."""

    def __init__(
        self,
        lock: AbstractContextManager[Any],
        *,
        warn: Callable[[str], None],
        tell: Callable[[Waiter, float, str], None],
        renew: Callable[[Hold], None],
        forget: Callable[[Hold], None],
        abandon: Callable[[Hold], None],
    ) -> None:
        self.lock = lock
        self.warn = warn
        self.telling = False
        """Somebody listens."""
        self.tell = tell
        """Told of the beginning (no outcome) and the end of each wait: the waiter, the seconds, the outcome."""
        self.renew = renew
        """Keeps a hold alive that is part of a larger one still to come."""
        self.forget = forget
        """Ends that."""
        self.abandon = abandon
        """Has the watchdog release a hold that nobody can release any more."""
        self.check_nested: Callable[[LockRequest, Any], None] | None = None
        """Called with the caller before a wait begins. Raises if the caller would wait for itself."""
        self.closed = False
        self.exiting = False
        """The whole process ends."""
        self.warned: set[str] = set()
        self.by_key: dict[Any, WaitQueue] = {}
        self.wanted: dict[Any, None] = {}
        """Locks that others waited for when this client last released them."""
        self.turns: WeakValueDictionary[Any, CohortTurn] = WeakValueDictionary()
        """Of cohorts' locks: the last turn that this client has begun."""

    def released(self, hold: Hold) -> None:
        """Remember whether others want the lock."""
        if hold.handed_over:
            if len(self.wanted) >= MOST_WANTED:
                self.wanted.clear()
            self.wanted[hold.keys] = None
        elif self.wanted:
            self.wanted.pop(hold.keys, None)

    def is_wanted(self, request: LockRequest) -> bool:
        """An attempt would most likely be refused."""
        return bool(self.wanted) and request.keys in self.wanted

    def has_waiters(self, request: LockRequest) -> bool:
        return bool(self.by_key) and request.keys in self.by_key

    def enter(self, acquisition: Acquisition, wakeup: Any, caller: Any) -> Waiter:
        """To the end of the queue."""
        self._check_nested(acquisition, caller)
        waiter: Waiter | None = None
        try:
            with self.lock:
                self.check_open()
                queue = self._queue(acquisition)
                waiter = Waiter(queue, acquisition, wakeup, caller)
                queue.waiters[waiter] = None
                if queue.head is None:
                    queue.head = waiter
            return waiter
        except BaseException:
            self._undo_entry(waiter)
            raise

    def enter_empty(self, acquisition: Acquisition, wakeup: Any, caller: Any) -> Waiter | None:
        """To the head of a queue without waiters; None if somebody waits."""
        self._check_nested(acquisition, caller)
        waiter: Waiter | None = None
        try:
            with self.lock:
                self.check_open()
                queue = self._queue(acquisition)
                if queue.head is None:
                    queue.head = waiter = Waiter(queue, acquisition, wakeup, caller)
                    queue.waiters[waiter] = None
            return waiter
        except BaseException:
            self._undo_entry(waiter)
            raise

    def _check_nested(self, acquisition: Acquisition, caller: Any) -> None:
        if self.check_nested is not None:
            self.check_nested(acquisition.request, caller)

    def check_open(self) -> None:
        if self.closed:
            raise ConfigError("this client was closed while it waited for the lock")

    def _queue(self, acquisition: Acquisition) -> WaitQueue:
        key = acquisition.request.keys
        queue = self.by_key.get(key)
        if queue is None:
            queue = self.by_key[key] = WaitQueue(key)
        return queue

    def _undo_entry(self, waiter: Waiter | None) -> None:
        """After an interrupt: the waiter may stand in the queue already, and nobody else would know of it."""
        if waiter is not None:
            self.leave(waiter)

    def leave(self, waiter: Waiter) -> Hold | None:
        """Out of the queue. Returns what was handed over to it and not taken. Harmless if it has left already."""
        queue = waiter.queue
        with self.lock:
            given, waiter.given = waiter.given, None
            # A waiter that has left already does it again after an interrupt: perhaps it has woken nobody.
            was_head = queue.head is waiter or waiter not in queue.waiters
            queue.waiters.pop(waiter, None)
            queue.head = head = next(iter(queue.waiters), None)
            if head is None and self.by_key.get(queue.key) is queue:
                del self.by_key[queue.key]
        if was_head and head is not None:
            head.wakeup.set()
        return given

    # -- cohort

    def hand_over(self, hold: Hold, now: float) -> Hold | None:
        """Give what is held to the head of its queue. Returns the new hold, or None if it must be released instead.

        As often in a row as the cohort says, and for no longer than a ttl since it was acquired from the servers: waiters
        of other processes wait too.
        """
        queue, turn = self.by_key.get(hold.keys), hold.turn
        if queue is None or turn is None or turn.over or hold.handovers >= hold.config.cohort:
            return None
        if now >= turn.ends or hold.deadline - now < hold.ttl / 2:
            return None
        with self.lock:
            head = queue.head
            if head is None or head.given is not None or not _alike(head.acquisition, hold) or not hold.begin_release():
                return None
            hold.next_hold = head.given = passed = hold.successor()
            passed.granted_at = now
        hold.finish_release()
        head.wakeup.set()
        return passed

    def acquired(self, hold: Hold) -> None:
        """It was acquired from the servers: an older turn of the same cohort is over."""
        turn = hold.turn
        if turn is not None and not hold.handovers:
            last = self.turns.get(hold.keys)
            if last is not None and last is not turn:
                last.over = True
            self.turns[hold.keys] = turn

    # -- telling

    def began(self, waiter: Waiter) -> None:
        """The waiter has to wait."""
        if self.telling and not waiter.announced:
            waiter.announced = True
            self.tell(waiter, 0.0, "")

    def ended(self, waiter: Waiter, now: float, outcome: str) -> None:
        if waiter.announced:
            self.tell(waiter, now - waiter.acquisition.began, outcome)

    def waiting(self, request: LockRequest) -> list[Any]:
        """The threads or tasks that wait, the head first."""
        with self.lock:
            queue = self.by_key.get(request.keys)
            return [waiter.caller for waiter in queue.waiters] if queue is not None else []

    def acquisitions(self) -> list[Acquisition]:
        """All that wait."""
        with self.lock:
            return [waiter.acquisition for queue in self.by_key.values() for waiter in queue.waiters]

    def close(self, *, exiting: bool = False) -> None:
        """Nobody gets anything any more; wake all, to let them know."""
        with self.lock:
            self.closed, self.exiting = True, exiting
            waiters = [waiter for queue in self.by_key.values() for waiter in queue.waiters]
        for waiter in waiters:
            waiter.wakeup.set()

    def check(self, waiter: Waiter, now: float) -> None:
        """Raise why the waiter must not go on waiting, if there is a reason."""
        if self.exiting:
            raise SystemExit  # a daemon thread: it ends silently
        self.check_open()
        until = waiter.acquisition.until
        if until is not None and now >= until and waiter.given is None:
            raise self.timed_out(waiter, now)
        if now >= waiter.report_at and waiter.queue.explain is not None:
            waiter.queue.reported_at = now
            self.warn(f"waiting for {now - waiter.acquisition.began:.0f} s: {waiter.queue.explain(now)}")

    def timed_out(self, waiter: Waiter, now: float) -> NotAcquired | ConfigError:
        """The error for a wait that timed out, from the last known state: no time is left to ask the servers."""
        from handfast.core.explain import not_acquired
        from handfast.protocol.claims import Refused

        request, timing, queue = waiter.acquisition.request, waiter.acquisition.timing, waiter.queue
        if queue.explain is not None:
            return queue.explain(now)
        group: NodeGroup = request.group
        answers: list[Any] = [node.fault for node in group.nodes]
        holder = queue.holder
        if holder is not None and holder.held_at(now):
            left = round((holder.deadline - now) * 1000)
            answers = [Refused(left, holder.who.owner, False, 0, None)] * group.n
        return not_acquired(request, [answer or Fault("timeout", "no answer") for answer in answers], timing.timeout)


def _alike(acquisition: Acquisition, hold: Hold) -> bool:
    """What is held is what it wants, with the same ttl and the same kind of token."""
    request = acquisition.request
    return request.config is hold.config and request.owner is None and acquisition.timing.ttl == hold.ttl
