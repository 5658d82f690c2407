"""The state of the dashboard, and the news in each snapshot. No I/O and no clock: all times come with the snapshots.

A snapshot does not show what happens before the next one: of a lock that changes hands ten times, it shows one change.
Clients that are observed in this process (`Board.heard`) report every event.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from handfast.dashboard.reading import Seen, Snapshot
from handfast.events import Event
from handfast.operate.doctor import Check
from handfast.operate.locks import LockInfo, parse_owner

__all__ = ["Board", "Holding", "Row"]

RENEWED: Final = 0.1
"""Seconds by which the end of a lease must move to count as a renewal: a smaller move may be network delay."""
TAPE: Final = 300
LINES: Final = 5
"""Lines of one kind that one snapshot adds to the tape. One line counts the rest."""
LINES_RENEWED: Final = 2
"""Fewer for renewals: they are routine, and every lease has them."""
SAMPLES: Final = 1000
POINTS: Final = 300
HOLDERS: Final = 20
OVERDUE: Final = 0.5
"""Share of its span below which a lease should have been renewed."""
REMEMBERED: Final = 10_000
"""Names whose recent holders are kept."""
HEARD: Final = {
    "lost": "lost",
    "renewal_failed": "renewal failed",
    "not_acquired": "not acquired",
    "quarantined": "quarantined",
    "readmitted": "votes again",
}
"""Events of observed clients that a snapshot cannot show, and their word on the tape."""


@dataclass(slots=True)
class Row:
    """One lock in the table."""

    id: int
    info: LockInfo
    ends: float | None
    """When it ends unless renewed, in seconds since the epoch; None: without end."""
    began: float | None
    span: float
    """The longest time left that was seen for this holder: the full length of its bar."""
    seen: float
    """When it was seen last."""

    def shown(self) -> list[Any]:
        info = self.info
        ends, began = (None if at is None else round(at * 1000) for at in (self.ends, self.began))
        token = None if info.token is None else str(info.token)  # a number beyond 2**53 would not survive JavaScript
        votes = "".join(_vote(info, i) for i in range(len(info.votes)))
        owner = info.owner.short
        return [self.id, info.name, owner, token, ends, began, round(self.span * 1000), info.waiters, votes, info.state]


def _vote(info: LockInfo, index: int) -> str:
    """y: the owner has it; o: another owner; n: nobody; e: the node does not answer."""
    vote = info.votes[index]
    if vote.error:
        return "e"
    return "n" if vote.owner is None else "y" if vote.owner == info.owner.text else "o"


@dataclass(slots=True)
class Holding:
    """One holder of a lock, as far as it was seen."""

    owner: str
    token: int | None
    began: float | None
    ended: float | None = None
    end: str = ""
    """`released`, `handed over`, `lost`, or `ended` if the end was not seen."""


@dataclass(slots=True)
class News:
    """What is new in one snapshot."""

    rows: list[Row] = field(default_factory=list)
    renewed: list[Row] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)
    tape: list[dict[str, Any]] = field(default_factory=list)
    point: list[float] = field(default_factory=list)


class Board:
    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = list(nodes)
        self.rows: dict[str, Row] = {}
        self.tape: deque[dict[str, Any]] = deque(maxlen=TAPE)
        self.points: deque[list[float]] = deque(maxlen=POINTS)
        """Time in ms, hand-overs and acquisitions for each second."""
        self.holders: OrderedDict[str, deque[Holding]] = OrderedDict()
        """By name, in the order in which they were last seen; the latest holder first."""
        self.checks: list[Check] = []
        self.faults: dict[str, str] = {}
        self.readable = True
        self._arrived: dict[str, dict[str, float]] = {}
        self._waits: deque[float] = deque(maxlen=SAMPLES)
        self._holds: deque[float] = deque(maxlen=SAMPLES)
        self._next_id = 0
        self._last_at: float | None = None
        self._no_vote: set[str] = set()
        self._lines: dict[str, list[dict[str, Any]]] = {}
        """By kind: lines for the tape at the next snapshot."""

    # -- a snapshot

    def update(self, snapshot: Snapshot) -> News:
        news = News()
        self._compare_nodes(snapshot)
        self.readable = snapshot.readable
        if snapshot.readable:
            taken = self._compare_locks(snapshot, news)
            if self._last_at is not None and snapshot.at > self._last_at:
                passed = snapshot.at - self._last_at
                news.point = [round(snapshot.at * 1000), *(round(count / passed, 2) for count in taken)]
                self.points.append(news.point)
            self._last_at = snapshot.at
        news.tape = self._flush_lines(snapshot.at)
        return news

    def _compare_nodes(self, snapshot: Snapshot) -> None:
        for node in snapshot.faults.keys() - self.faults.keys():
            self._note("node down", snapshot.at, node, snapshot.faults[node])
        for node in self.faults.keys() - snapshot.faults.keys():
            self._note("node up", snapshot.at, node)
        self.faults = dict(snapshot.faults)

    def _compare_locks(self, snapshot: Snapshot, news: News) -> tuple[int, int]:
        """Returns how many locks were handed over, and how many were acquired."""
        handed_over = acquired = 0
        for name in self.rows.keys() - snapshot.locks.keys():
            ended = self.rows.pop(name)
            self._ended(ended, snapshot.at)
            news.gone.append(ended.id)
        for name, seen in snapshot.locks.items():
            row = self.rows.get(name)
            if row is None:
                news.rows.append(self._appeared(name, seen))
                acquired += 1
            elif _same(row.info, seen.info):
                self._went_on(row, seen, news)
            else:
                self._changed_hands(row, seen)
                news.rows.append(row)
                handed_over += 1
        self._arrived = snapshot.waiters
        return handed_over, acquired + handed_over

    def _appeared(self, name: str, seen: Seen) -> Row:
        row = self.rows[name] = Row(self._next_id, seen.info, *_times(seen), seen.at)
        self._next_id += 1
        self._begun(row, seen, 0)
        return row

    def _changed_hands(self, row: Row, seen: Seen) -> None:
        ends, began, span = _times(seen)
        self._close(row.info.name, "handed over", began or seen.at)
        waited_for = row.info.waiters
        row.info, row.ends, row.began, row.span, row.seen = seen.info, ends, began, span, seen.at
        self._begun(row, seen, waited_for)

    def _begun(self, row: Row, seen: Seen, waited_for: int) -> None:
        """The lock has a new holder. `waited_for`: the number of its waiters when it was last seen."""
        info = row.info
        known = self.holders.pop(info.name, None) or deque(maxlen=HOLDERS)
        self.holders[info.name] = known
        if len(self.holders) > REMEMBERED:
            self.holders.popitem(last=False)
        known.appendleft(Holding(info.owner.text, info.token, row.began))
        arrived = self._arrived.get(info.name, {}).get(info.owner.text)
        if arrived is not None and row.began is not None:
            self._waits.append(max(0.0, row.began - arrived))
        if self._last_at is not None:  # what was there before is no news
            self._note("acquired", seen.at, info.name, info.owner.short, info.token)
            if info.waiters and not waited_for:
                self._note("contended", seen.at, info.name, f"{info.waiters} waiting")

    def _went_on(self, row: Row, seen: Seen, news: News) -> None:
        """The lock has the same holder as before."""
        before, info = row.info, seen.info
        ends, _, left = _times(seen)
        moved = (ends is None) != (row.ends is None) or (
            ends is not None and row.ends is not None and abs(ends - row.ends) > RENEWED
        )
        if moved:
            if ends is not None and row.ends is not None and ends > row.ends:
                self._note("renewed", seen.at, info.name, info.owner.short, info.token)
            row.ends, row.span = ends, max(row.span, left)
        if info.waiters and not before.waiters:
            self._note("contended", seen.at, info.name, f"{info.waiters} waiting")
        for old, new in zip(before.votes, info.votes, strict=True):
            if old.owner is None and not old.error and new.owner == info.owner.text:
                self._note("healed", seen.at, info.name, new.node)
        row.info, row.seen = info, seen.at
        if _looks(before) != _looks(info):
            news.rows.append(row)
        elif moved:
            news.renewed.append(row)

    def _ended(self, row: Row, at: float) -> None:
        """The lock is free now. A lease that was renewed had most of its ttl left at every snapshot."""
        info, end, ended_at = row.info, "released", at
        if row.ends is not None and row.ends <= at:
            overdue = row.ends - row.seen < row.span * OVERDUE
            end, ended_at = ("lost", row.ends) if overdue else ("ended", at)
        self._note(end, at, info.name, info.owner.short, info.token)
        self._close(info.name, end, ended_at)

    def _close(self, name: str, end: str, at: float) -> None:
        holders = self.holders.get(name)
        if holders:
            holding = holders[0]
            holding.ended, holding.end = at, end
            if holding.began is not None:
                self._holds.append(max(0.0, at - holding.began))

    # -- other news

    def heard(self, events: Iterable[tuple[float, Event]]) -> None:
        """Events of clients in this process. Their times are exact."""
        for at, event in events:
            if event.kind == "waiting_ended" and event.outcome == "acquired":
                self._waits.append(event.seconds)
            if event.kind in HEARD:
                said = event.outcome or f"{event.seconds:.1f} s"
                self._note(HEARD[event.kind], at, event.name or event.node, said, event.token)

    def examined(self, checks: Sequence[Check], at: float) -> None:
        """The findings of the doctor."""
        self.checks = list(checks)
        reached = {check.node for check in checks if check.name == "guard"}
        no_vote = {check.node: check.found for check in checks if check.name == "guard" and check.level != "ok"}
        for node in no_vote.keys() - self._no_vote:
            self._note("quarantined", at, node, no_vote[node])
        for node in (self._no_vote & reached) - no_vote.keys():
            self._note("votes again", at, node)
        self._no_vote = (self._no_vote - reached) | no_vote.keys()

    def statistics(self) -> dict[str, Any]:
        return {"wait": _percentiles(self._waits), "hold": _percentiles(self._holds)}

    # -- the tape

    def _note(self, kind: str, at: float, name: str, text: str = "", token: int | None = None) -> None:
        self._lines.setdefault(kind, []).append(_tape_line(kind, at, name, text, token))

    def _flush_lines(self, at: float) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for kind, noted in self._lines.items():
            most = LINES_RENEWED if kind == "renewed" else LINES
            lines += noted[:most]
            if len(noted) > most:
                lines.append(_tape_line(kind, at, "", f"{len(noted) - most} more", None))
        self._lines = {}
        self.tape.extend(lines)
        return lines


def _tape_line(kind: str, at: float, name: str, text: str, token: int | None) -> dict[str, Any]:
    return {
        "kind": kind,
        "at": round(at * 1000),
        "name": name,
        "text": text,
        "token": None if token is None else str(token),
    }


def _same(before: LockInfo, now: LockInfo) -> bool:
    """Whether these are the same acquisition. Without a token, the owners are compared."""
    return before.owner == now.owner and (before.token == now.token or before.token is None or now.token is None)


def _looks(info: LockInfo) -> tuple[Any, ...]:
    """What a row shows, except times."""
    return (info.state, info.token, info.waiters, *(_vote(info, i) for i in range(len(info.votes))))


def _times(seen: Seen) -> tuple[float | None, float | None, float]:
    """When it ends, when it began, and how long it has left."""
    info = seen.info
    ends = None if info.ttl is None else seen.at + info.ttl
    began = None if info.since is None else seen.at - info.since
    return ends, began, info.ttl or 0.0


def _percentiles(samples: Iterable[float]) -> dict[str, float | int]:
    """Of the last samples, by nearest rank."""
    ordered = sorted(samples)
    if not ordered:
        return {"n": 0}
    return {"n": len(ordered)} | {
        f"p{p}": round(ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 4) for p in (50, 95, 99)
    }


def holder_shown(holding: Holding) -> dict[str, Any]:
    """For the page of one lock."""
    times = {"began": holding.began, "ended": holding.ended}
    shown = {word: None if at is None else round(at * 1000) for word, at in times.items()}
    owner = parse_owner(holding.owner)
    token = None if holding.token is None else str(holding.token)
    return {**shown, "owner": owner.short, "text": owner.text, "token": token, "end": holding.end}
