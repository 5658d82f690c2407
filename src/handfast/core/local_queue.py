"""The wait queues of one process, in order of arrival.

There is one wait queue for each lock that has waiters. Only its head talks to the servers. All other waiters sleep until
it is their turn, so a server sees ten thousand waiting tasks as one waiter. If the head leaves, for whatever reason, it
wakes the next waiter.

A cohort's lock may also be handed over from its holder to the head of its queue, without contacting a server
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
from handfast.core.explain import not_acquired
from handfast.core.hold import CohortTurn, Hold
from handfast.core.io import CappedTimeout, Fault
from handfast.core.nodes import NodeGroup
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol.claims import Refused
from handfast.protocol.commands import Identity

MOST_WANTED: Final = 1000
"""How many locks a client remembers as wanted by others."""

__all__ = ["Acquisition", "WaitQueue", "WaitQueues", "Waiter"]

LONG_WAIT: Final = 30.0
"""Seconds after which a wait is logged, with the holder."""
REPORT_EVERY: Final = 60.0
"""Seconds between two log lines about one lock."""


class Acquisition:
    """One call of acquire: its request, the end of its wait, and where it may have left votes or claims."""

    __slots__ = (
        "answered",
        "began",
        "channel",
        "hold",
        "left_behind",
        "request",
        "sent",
        "standstills",
        "timing",
        "touched",
        "until",
        "wait",
        "who",
    )

    def __init__(self, request: LockRequest, timing: Timing, wait: float | None, began: float) -> None:
        self.request = request
        self.timing = timing
        self.wait = wait
        self.began = began
        self.until = None if wait is None else began + wait
        self.who: Identity | None = None
        self.touched = 0
        """Nodes, as bits, that may have a vote or a claim of this acquisition."""
        self.left_behind: tuple[Hold, ...] = ()
        """Votes and claims that could not be taken back on the acquisition's connections. The watchdog does it."""
        self.sent = began
        """When the last attempt was sent."""
        self.answered = began
        """When the refusal of the last attempt was read."""
        self.standstills = 0
        """The group's count of standstills when it was sent; see NodeGroup. Only single.py uses this."""
        self.channel = b""
        """The channel on which the claim waits for a hand-over, if it has one. Only single.py uses this."""
        self.hold: Hold | None = None
        """The hold, if the acquisition has succeeded."""

    def identify(self, nonce: Callable[[], bytes]) -> Identity:
        """The acquisition's identity on the servers. It gets a new one after `withdraw`."""
        if self.who is None:
            owner = self.request.owner
            if owner is None:
                owner = self.request.config.owner_start + nonce()
                self.who = Identity(owner, owner)
            else:
                self.who = Identity.explicit(owner, nonce())
        return self.who

    def timeout(self, seconds: float, now: float) -> float:
        """A timeout of `seconds`, but not past the end of the wait."""
        if not self.wait or self.until is None:
            return seconds
        return CappedTimeout(seconds, max(0.0, self.until - now))

    def earlier(self, at: float) -> float:
        """The earlier of `at` and the end of the wait."""
        return at if self.until is None else min(at, self.until)

    def remains(self) -> Hold:
        """A released hold, by which the watchdog removes the votes and claims that may be left on the servers."""
        assert self.who is not None
        hold = Hold(self.request, self.who, self.timing.ttl, 0.0, self.began, 0, 0)
        hold.give_up()
        hold.may_arrive_late = True
        return hold


class Waiter:
    """One acquisition's place in a wait queue."""

    __slots__ = ("acquisition", "announced", "caller", "given", "queue", "report_at", "wakeup")

    def __init__(self, queue: WaitQueue, acquisition: Acquisition, wakeup: Any, caller: Any) -> None:
        self.queue = queue
        self.acquisition = acquisition
        self.wakeup = wakeup
        self.caller = caller
        """The waiting thread or task."""
        self.given: Hold | None = None
        """The hold that a sibling has handed over to this waiter."""
        self.announced = False
        """Listeners have been called for this wait."""
        self.report_at = acquisition.began + LONG_WAIT
        """When to log this wait, unless another waiter for this lock was logged just before."""

    def usable(self, now: float) -> Hold | None:
        """The hold that a sibling has handed over, if it is still valid. An invalid one is dropped, and expires."""
        if self.given is not None and not self.given.held_at(now):
            self.given = None
        return self.given


class WaitQueue:
    """All waiters for one lock."""

    __slots__ = ("explain", "head", "holder", "key", "reported_at", "waiters")

    def __init__(self, key: Any) -> None:
        self.key = key
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        """The waiters in order of arrival. Any of them can be removed in constant time."""
        self.head: Waiter | None = None
        self.holder: Hold | None = None
        """The last hold that a waiter of this queue got, if it may still be held."""
        self.explain: Callable[[float], NotAcquired | ConfigError] | None = None
        """Makes the error for a wait that timed out, from the servers' last replies to the head."""
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
        """There are listeners for waits."""
        self.tell = tell
        """Called at the beginning and at the end of each wait, with the waiter, the seconds and the outcome, which is
        empty at the beginning."""
        self.renew = renew
        """Starts the renewal of a hold of one name, while the other names of the lock are still missing."""
        self.forget = forget
        """Ends the renewal that `renew` has started."""
        self.abandon = abandon
        """Makes the watchdog release a hold whose caller is gone."""
        self.check_nested: Callable[[LockRequest, Any], None] | None = None
        """Called with the caller before a wait begins. Raises if the caller would wait for itself."""
        self.closed = False
        self.exiting = False
        """The process is exiting."""
        self.warned: set[str] = set()
        self.by_key: dict[Any, WaitQueue] = {}
        self.wanted: dict[Any, None] = {}
        """Locks that had other waiters when this client last released them."""
        self.turns: WeakValueDictionary[Any, CohortTurn] = WeakValueDictionary()
        """The last turn that this client has begun, for each cohort's lock."""

    def released(self, hold: Hold) -> None:
        """Remember whether other clients want the lock, for the next acquisition from a quorum."""
        if hold.handed_over:
            if len(self.wanted) >= MOST_WANTED:
                self.wanted.clear()
            self.wanted[hold.keys] = None
        elif self.wanted:
            self.wanted.pop(hold.keys, None)

    def is_wanted(self, request: LockRequest) -> bool:
        """Whether other clients wanted this lock at its last release: an attempt would most likely be refused."""
        return bool(self.wanted) and request.keys in self.wanted

    def has_waiters(self, request: LockRequest) -> bool:
        return request.keys in self.by_key

    def enter(self, acquisition: Acquisition, wakeup: Any, caller: Any) -> Waiter:
        """Add a waiter at the end of the queue."""
        if self.check_nested is not None:
            self.check_nested(acquisition.request, caller)
        waiter: Waiter | None = None
        key = acquisition.request.keys
        try:
            with self.lock:
                if self.closed:
                    self.check_open()
                queue = self.by_key.get(key)
                if queue is None:
                    queue = self.by_key[key] = WaitQueue(key)
                waiter = Waiter(queue, acquisition, wakeup, caller)
                queue.waiters[waiter] = None
                if queue.head is None:
                    queue.head = waiter
            return waiter
        except BaseException:
            # After an interrupt the waiter may be in the queue already, although its caller does not have it.
            if waiter is not None:
                self.leave(waiter)
            raise

    def enter_empty(self, acquisition: Acquisition, wakeup: Any, caller: Any) -> Waiter | None:
        """Add a waiter to an empty queue, as its head. None if the queue has waiters."""
        if self.by_key and acquisition.request.keys in self.by_key:
            return None
        waiter = self.enter(acquisition, wakeup, caller)
        if waiter.queue.head is waiter:
            return waiter
        self.leave(waiter)  # another thread was first
        return None

    def check_open(self) -> None:
        if self.closed:
            raise ConfigError("this client was closed while it waited for the lock")

    def leave(self, waiter: Waiter) -> Hold | None:
        """Remove a waiter. Returns the hold that a sibling handed over to it in vain. May be called twice."""
        queue = waiter.queue
        with self.lock:
            given, waiter.given = waiter.given, None
            # After an interrupt a waiter leaves twice: the first time it may not have woken the next head.
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
        """Give the hold to the head of its queue. Returns the new hold, or None if it must be released instead.

        This is limited to `cohort` hand-overs in a row, and to one ttl after the acquisition from the servers, for the
        sake of waiters in other processes.
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
        """Note an acquisition from the servers: it ends an older turn of the same cohort."""
        turn = hold.turn
        if turn is not None and not hold.handovers:
            last = self.turns.get(hold.keys)
            if last is not None and last is not turn:
                last.over = True
            self.turns[hold.keys] = turn

    # -- reports

    def began(self, waiter: Waiter) -> None:
        """Call the listeners: a wait begins."""
        if not waiter.announced:
            waiter.announced = True
            self.tell(waiter, 0.0, "")

    def ended(self, waiter: Waiter, now: float, outcome: str) -> None:
        """Call the listeners: a wait that they were told of has ended."""
        self.tell(waiter, now - waiter.acquisition.began, outcome)

    def waiting(self, request: LockRequest) -> list[Any]:
        """The threads or tasks that wait, the head first."""
        with self.lock:
            queue = self.by_key.get(request.keys)
            return [waiter.caller for waiter in queue.waiters] if queue is not None else []

    def acquisitions(self) -> list[Acquisition]:
        """The acquisitions of all waiters."""
        with self.lock:
            return [waiter.acquisition for queue in self.by_key.values() for waiter in queue.waiters]

    def close(self, *, exiting: bool = False) -> None:
        """Close the queues, and wake all waiters so that they raise."""
        with self.lock:
            self.closed, self.exiting = True, exiting
            waiters = [waiter for queue in self.by_key.values() for waiter in queue.waiters]
        for waiter in waiters:
            waiter.wakeup.set()

    def check(self, waiter: Waiter, now: float) -> None:
        """Raise if the waiter must not go on waiting."""
        if self.exiting:
            raise SystemExit  # the waiter is a daemon thread, and SystemExit ends it silently
        if self.closed:
            self.check_open()
        until = waiter.acquisition.until
        if until is not None and now >= until and waiter.usable(now) is None:
            raise self.timed_out(waiter, now)
        if now >= waiter.report_at:
            self._report(waiter, now)

    def _report(self, waiter: Waiter, now: float) -> None:
        """Log a long wait, REPORT_EVERY seconds after the last line about this lock."""
        queue = waiter.queue
        if queue.explain is not None:
            if now >= queue.reported_at + REPORT_EVERY:
                queue.reported_at = now
                self.warn(f"waiting for {now - waiter.acquisition.began:.0f} s for {queue.explain(now)}")
            waiter.report_at = queue.reported_at + REPORT_EVERY

    def timed_out(self, waiter: Waiter, now: float) -> NotAcquired | ConfigError:
        """The error for a wait that timed out, from the last known state: no time is left to ask the servers."""
        request, timing, queue = waiter.acquisition.request, waiter.acquisition.timing, waiter.queue
        if queue.explain is not None:
            return queue.explain(now)
        group: NodeGroup = request.group
        answers: list[Any] = [node.fault for node in group.nodes]
        holder = queue.holder
        if holder is not None and holder.held_at(now):
            left = round((holder.deadline - now) * 1000)
            answers = [Refused(left, holder.who.owner, False, 0, b"")] * group.n
        return not_acquired(request, [answer or Fault("timeout", "no answer") for answer in answers], timing.timeout)


def _alike(acquisition: Acquisition, hold: Hold) -> bool:
    """Whether the hold is what the acquisition wants: same keys, same ttl, same kind of token."""
    request = acquisition.request
    return request.config is hold.config and request.owner is None and acquisition.timing.ttl == hold.ttl
