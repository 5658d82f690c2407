"""Metrics and traces of clients, made from their events (`client.listen`).

`handfast.observe.prometheus` and `handfast.observe.opentelemetry` export the measurements. Each needs an extra, and the
user imports it. This module has the shared part: which event changes which metric, and the values of labels. A label has
few values: a lock's name becomes a label only if the user chooses that, and a reason is one word.
"""

from __future__ import annotations

import fnmatch
import os
import re
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from handfast.events import Event

if TYPE_CHECKING:
    from handfast import aio, sync

__all__ = ["BUCKETS", "METRICS", "Metric", "Metrics", "Names"]

Names = bool | str | Sequence[str] | Callable[[str], str] | None
"""What becomes of a lock's name in a metric. None or False: nothing, the metrics have no label for it. True: each name is
a label. A pattern such as "order:*", or several: a name that matches stands as the pattern, all others as "other". A
function: it gets the name and returns the label."""

BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Seconds: from an acquisition without contention to a job that takes minutes."""
OTHER: Final = "other"


class Metric(NamedTuple):
    name: str
    kind: Literal["counter", "histogram", "level"]
    """A level goes up and down."""
    about: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    of_lock: bool = True
    """It has the label for the lock's name, if there is one."""


ACQUISITIONS = Metric("acquisitions", "counter", "Acquisitions that have ended, by outcome.", ("outcome",))
WAIT = Metric("wait", "histogram", "How long an acquisition took that had to wait, by outcome.", ("outcome",), "s")
HOLD = Metric("hold", "histogram", "How long a lease was held.", unit="s")
HELD = Metric("held", "level", "Leases that are held now.")
WAITING = Metric("waiting", "level", "Threads and tasks that wait for a lock now.")
RENEWALS = Metric("renewals", "counter", "Renewals that the servers confirmed.")
RENEWAL_FAILURES = Metric("renewal.failures", "counter", "Leases whose renewal began to fail.")
LOSSES = Metric("losses", "counter", "Leases that ended before they were released, by reason.", ("reason",))
NODE_UP = Metric("node.up", "level", "1 if the node answered when it was last asked, else 0.", ("node",), of_lock=False)
NODE_QUARANTINED = Metric(
    "node.quarantined",
    "level",
    "1 while the node has no vote, because it lost its data or is new.",
    ("node",),
    of_lock=False,
)
NODE_FAILURES = Metric("node.failures", "counter", "How often the node went down.", ("node",), of_lock=False)
QUARANTINES = Metric("node.quarantines", "counter", "How often the node was quarantined.", ("node",), of_lock=False)
METRICS: Final = (
    ACQUISITIONS, WAIT, HOLD, HELD, WAITING, RENEWALS, RENEWAL_FAILURES, LOSSES,
    NODE_UP, NODE_QUARANTINED, NODE_FAILURES, QUARANTINES,
)  # fmt: skip

OUTCOMES: Final = {
    "acquired": "acquired",
    "Contended": "contended",
    "NoQuorum": "no_quorum",
    "CancelledError": "cancelled",
    "KeyboardInterrupt": "cancelled",
    "SystemExit": "cancelled",
}
"""The outcome of an acquisition or a wait, as a label. Every other error is "error"."""
REASONS: Final = (
    ("no majority confirmed a renewal", "not_renewed"),
    ("the deadline passed", "not_renewed"),
    ("its deadline had passed when it was released", "released_late"),
    ("it had ended before it was released", "released_late"),
    ("the ttl ended and it was not renewed", "ttl_ended"),
    ("max_hold was reached", "max_hold"),
    ("now held by", "taken"),
    ("its key is gone", "key_gone"),
    ("no longer holds it", "key_gone"),
    ("not for this lease any more", "key_gone"),
    ("does not hold the key", "key_gone"),
    ("clock stood still", "clock_stood_still"),
    ("the client was closed", "closed"),
)
"""The reason of a loss, as a label: the first whose text is in the reason. On a quorum the reason tells what each node
said, so a key that another owner has comes before one that is gone."""


def reason_of(text: str) -> str:
    return next((label for part, label in REASONS if part in text), OTHER)


def labeller(names: Names) -> Callable[[str], str] | None:
    """From a lock's name to its label; None if there is no such label."""
    if names is None or names is False:
        return None
    if names is True:
        return str
    if callable(names):
        return names
    patterns = (names,) if isinstance(names, str) else tuple(names)
    known = [(re.compile(fnmatch.translate(pattern)), pattern) for pattern in patterns]

    def label(name: str) -> str:
        return next((pattern for matches, pattern in known if matches.match(name)), OTHER)

    return label


class Metrics:
    """Turns the events of clients into measurements. A subclass says where these go.

    No caller of a client waits for another one here. Each event goes into a queue, and the first thread that gets the
    lock empties the queue. So an event that a destructor causes during this does no harm either.
    """

    def __init__(self, names: Names = None) -> None:
        self._label = labeller(names)
        self._due: deque[tuple[object, Event | None]] = deque()
        self._attended = threading.Lock()
        """Held by the thread that empties the queue, and during a fork: a child must not inherit half a change."""
        self._open: dict[Metric, dict[Hashable, list[tuple[str, ...]]]] = {HELD: {}, WAITING: {}}
        """Leases and waits that have begun and not ended, with the labels that they were counted under."""
        self._levels: dict[tuple[Metric, tuple[str, ...]], int] = {}
        _observers.add(self)

    def observe(self, client: sync.Client | aio.Client) -> Callable[[], None]:
        """Count the events of this client from now on, together with the clients observed before. Call the returned
        function to end that."""
        subject = object()
        down = client._reports.down()
        with self._attended:
            for address in client._addresses:
                if address.cluster is None:  # the servers of a cluster become known later
                    self._set(NODE_UP, int(address.label not in down), address.label)
        stop = client.listen(lambda event: self._on_event(subject, event))

        def end() -> None:
            stop()
            self._put(subject, None)

        self._empty_queue()
        return end

    def label_names(self, metric: Metric) -> tuple[str, ...]:
        """The names of a metric's labels, in the order in which their values are given."""
        return ("name", *metric.labels) if self._label is not None and metric.of_lock else metric.labels

    # -- where the measurements go

    def add(self, metric: Metric, labels: tuple[str, ...]) -> None:
        """Increase a counter by one."""
        raise NotImplementedError

    def record(self, metric: Metric, seconds: float, labels: tuple[str, ...]) -> None:
        """Add a value to a histogram."""
        raise NotImplementedError

    def level(self, metric: Metric, value: int, labels: tuple[str, ...]) -> None:
        """Change a level."""
        raise NotImplementedError

    # -- from events to measurements

    def _on_event(self, subject: object, event: Event) -> None:
        self._put(subject, event)

    def _put(self, subject: object, event: Event | None) -> None:
        self._due.append((subject, event))
        self._empty_queue()

    def _empty_queue(self) -> None:
        # Check again after each release: a thread that added an event while the lock was held does not come back for it.
        while self._due and self._attended.acquire(blocking=False):
            try:
                while self._due:
                    subject, event = self._due.popleft()
                    if event is None:
                        self._forget(subject)
                    else:
                        _COUNT[event.kind](self, subject, event)
            finally:
                self._attended.release()

    def _acquired(self, subject: object, event: Event) -> None:
        labels = self._of(event)
        self.add(ACQUISITIONS, (*labels, "acquired"))
        self._begin(HELD, (subject, event.name, event.token), labels)

    def _not_acquired(self, subject: object, event: Event) -> None:
        self.add(ACQUISITIONS, (*self._of(event), OUTCOMES.get(event.outcome, "error")))

    def _released(self, subject: object, event: Event) -> None:
        labels = self._of(event)
        self.record(HOLD, event.seconds, labels)
        self._end(HELD, (subject, event.name, event.token))

    def _lost(self, subject: object, event: Event) -> None:
        self._released(subject, event)
        self.add(LOSSES, (*self._of(event), reason_of(event.outcome)))

    def _renewed(self, subject: object, event: Event) -> None:
        self.add(RENEWALS, self._of(event))

    def _renewal_failed(self, subject: object, event: Event) -> None:
        self.add(RENEWAL_FAILURES, self._of(event))

    def _waiting_began(self, subject: object, event: Event) -> None:
        self._begin(WAITING, (subject, event.name, event.who), self._of(event))

    def _waiting_ended(self, subject: object, event: Event) -> None:
        self.record(WAIT, event.seconds, (*self._of(event), OUTCOMES.get(event.outcome, "error")))
        self._end(WAITING, (subject, event.name, event.who))

    def _node_down(self, subject: object, event: Event) -> None:
        self.add(NODE_FAILURES, (event.node,))
        self._set(NODE_UP, 0, event.node)

    def _node_up(self, subject: object, event: Event) -> None:
        self._set(NODE_UP, 1, event.node)

    def _quarantined(self, subject: object, event: Event) -> None:
        self.add(QUARANTINES, (event.node,))
        self._set(NODE_QUARANTINED, 1, event.node)

    def _readmitted(self, subject: object, event: Event) -> None:
        self._set(NODE_QUARANTINED, 0, event.node)

    # -- levels

    def _of(self, event: Event) -> tuple[str, ...]:
        return () if self._label is None else (self._label(event.name),)

    def _set(self, metric: Metric, value: int, *labels: str) -> None:
        self._levels[metric, labels] = value
        self.level(metric, value, labels)

    def _begin(self, metric: Metric, key: Hashable, labels: tuple[str, ...]) -> None:
        self._open[metric].setdefault(key, []).append(labels)
        self._set(metric, self._levels.get((metric, labels), 0) + 1, *labels)

    def _end(self, metric: Metric, key: Hashable) -> None:
        """Does nothing if it began before this client was observed."""
        begun = self._open[metric].pop(key, None)
        if begun is not None:
            labels = begun.pop()
            if begun:
                self._open[metric][key] = begun
            self._set(metric, self._levels[metric, labels] - 1, *labels)

    def _forget(self, subject: object) -> None:
        """A client is no longer observed: its leases and waits no longer count."""
        for metric, begun in self._open.items():
            for key in [key for key in begun if isinstance(key, tuple) and key[0] is subject]:
                while key in begun:
                    self._end(metric, key)

    def _forked(self) -> None:
        """In a child after a fork: the parent's leases are not the child's, and nobody waits."""
        self._attended.release()
        self._due.clear()
        for metric in self._open:
            self._open[metric].clear()
        for metric, labels in list(self._levels):
            if metric in self._open:
                self._set(metric, 0, *labels)


_COUNT: Final[dict[str, Callable[[Any, object, Event], None]]] = {
    "acquired": Metrics._acquired,
    "not_acquired": Metrics._not_acquired,
    "released": Metrics._released,
    "lost": Metrics._lost,
    "renewed": Metrics._renewed,
    "renewal_failed": Metrics._renewal_failed,
    "waiting_began": Metrics._waiting_began,
    "waiting_ended": Metrics._waiting_ended,
    "node_down": Metrics._node_down,
    "node_up": Metrics._node_up,
    "quarantined": Metrics._quarantined,
    "readmitted": Metrics._readmitted,
}

_observers: weakref.WeakSet[Metrics] = weakref.WeakSet()
_forking: list[Metrics] = []


def _before_fork() -> None:
    _forking[:] = _observers
    for observer in _forking:
        observer._attended.acquire()


def _after_fork_in_parent() -> None:
    for observer in _forking:
        observer._attended.release()
        observer._empty_queue()
    _forking.clear()


def _after_fork_in_child() -> None:
    for observer in _forking:
        observer._forked()
    _forking.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
