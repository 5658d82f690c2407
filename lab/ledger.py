"""The record of one scenario: which order held the lock when, and what it wrote; and the score computed from it.

All times are seconds since the scenario began. A holder's process reports the span for which it holds the lock: from just
after the grant to just before the release. Two spans that overlap are two holders at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final, Literal

from lab.load import Tally
from lab.rung import Scenario, Verdict

__all__ = ["Holder", "Ledger", "Mark", "Score", "overlaps_of"]

Span = tuple[float, float]

FAILURES_SHOWN: Final = 5
"""A server that is down fails every order with the same message, so the list of events shows only the first ones."""


@dataclass
class Holder:
    order: str
    worker: str
    stripe: int
    since: float
    until: float
    end: Literal["released", "killed", "open"] = "open"
    overlap: bool = False

    def shown(self) -> dict[str, Any]:
        facts = asdict(self)
        return {"from": round(facts.pop("since"), 4), "to": round(facts.pop("until"), 4), **facts}


@dataclass(frozen=True)
class Mark:
    t: float
    text: str


@dataclass(frozen=True)
class Score:
    scenario: str
    stock: int
    sold: int
    oversold: int
    left: int
    lost: int
    refused: int
    stuck: float
    seconds: float
    rate: float
    p50: float
    p99: float
    verdict: Verdict
    expect: Verdict
    must_be_safe: bool
    as_expected: bool
    free: bool
    """A free sale: it ran without the scenario's own fault."""
    injected: bool
    """A viewer injected a fault."""
    stopped: bool
    """A viewer stopped the sale before its end."""
    evidence: list[str]
    holders: list[dict[str, Any]]
    overlaps: list[Span]
    stock_line: list[tuple[float, int]]
    marks: list[dict[str, Any]]
    load: dict[str, Any]

    @property
    def judged(self) -> bool:
        """The scenario ran as it is written. The story predicts nothing about any other run."""
        return not (self.free or self.injected or self.stopped)

    @property
    def broken(self) -> bool:
        """The rung promised not to oversell, and did."""
        return self.judged and self.must_be_safe and self.oversold > 0


@dataclass
class Ledger:
    """Collects the workers' events while the scenario runs."""

    stock: list[int]
    """The stock of each stripe at the beginning."""
    began: float
    """Start time on the monotonic clock, which all processes of a machine share."""
    finished: list[Holder] = field(default_factory=list)
    open: dict[tuple[str, int], Holder] = field(default_factory=dict)
    stock_line: list[tuple[float, int]] = field(default_factory=list)
    sales: list[float] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    outcomes: dict[str, str] = field(default_factory=dict)
    """The outcome of each order in words: what it wrote, or why it wrote nothing."""
    failures: int = 0
    refused: int = 0

    def __post_init__(self) -> None:
        self.shelves = dict(enumerate(self.stock))
        self.stock_line.append((0.0, self.left))

    @property
    def left(self) -> int:
        return sum(self.shelves.values())

    @property
    def oversold(self) -> int:
        return max(0, len(self.sales) + self.left - sum(self.stock))

    def record(self, worker: str, event: dict[str, Any]) -> None:
        at = event["t"] - self.began
        match event["what"]:
            case "held":
                key = event["order"], event["stripe"]
                self.open[key] = Holder(event["order"], worker, event["stripe"], at, at)
            case "released":
                self._end(event["order"], event["stripe"], at, "released")
            case "wrote":
                before = self.left
                self.shelves.update({int(stripe): left for stripe, left in event["left"].items()})
                self.stock_line.append((at, self.left))
                if event["order"] is not None:
                    self.sales.append(at)
                    self.outcomes[event["order"]] = f'wrote "{self.left} left" where {before} were left'
            case "gone":
                self.killed(worker, at)
                self.marks.append(Mark(at, f"{worker} exited by itself"))
            case "refused":
                self.refused += 1
                self.outcomes[event["order"]] = f"was refused: {event['why']}"
                self.marks.append(Mark(at, f"{event['order']} was refused: {event['why']}"))
            case "failed":
                self.failures += 1
                self.outcomes[event["order"]] = f"failed: {event['why']}"
                if self.failures <= FAILURES_SHOWN:
                    self.marks.append(Mark(at, f"{event['order']} failed: {event['why']}"))
            case "late":
                self.outcomes.setdefault(event["order"], f"learned of its lost lease {event['why']}")
                self.marks.append(Mark(at, f"{event['order']} learned of its lost lease {event['why']}"))

    def _end(self, order: str, stripe: int, at: float, end: Literal["released", "killed"]) -> None:
        if holder := self.open.pop((order, stripe), None):
            holder.until, holder.end = at, end
            self.finished.append(holder)

    def killed(self, worker: str, at: float) -> None:
        """End the spans of a dead process: it no longer holds anything, even if its key still exists."""
        for holder in [each for each in self.open.values() if each.worker == worker]:
            self._end(holder.order, holder.stripe, at, "killed")

    def holders(self, now: float) -> list[Holder]:
        """All holders, sorted by start, with `overlap` up to date."""
        for holder in self.open.values():
            holder.until = now
        everyone = sorted([*self.finished, *self.open.values()], key=lambda holder: holder.since)
        for before, after in _pairs(everyone):
            before.overlap = after.overlap = True
        return everyone


def _pairs(holders: list[Holder]) -> Iterable[tuple[Holder, Holder]]:
    """Pairs of holders that held the same stripe at the same time. `holders` must be sorted by start."""
    active: list[Holder] = []
    for holder in holders:
        active = [each for each in active if each.until > holder.since]
        yield from ((each, holder) for each in active if each.stripe == holder.stripe)
        active.append(holder)


def overlaps_of(holders: list[Holder]) -> list[Span]:
    """The spans in which two or more orders held the same stripe. Spans that touch are merged."""
    merged: list[Span] = []
    spans = ((after.since, min(before.until, after.until)) for before, after in _pairs(holders))
    for since, until in sorted(spans):
        if merged and since <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(until, merged[-1][1])
        else:
            merged.append((since, until))
    return [(round(since, 4), round(until, 4)) for since, until in merged]


def longest_gap(sales: list[float], since: float, until: float) -> float:
    """The longest time without a sale, between `since` and `until`."""
    moments = [since, *(at for at in sorted(sales) if since <= at <= until), until]
    return max(after - before for before, after in pairwise(moments))


def score(
    name: str,
    scenario: Scenario,
    ledger: Ledger,
    tally: Tally,
    database: tuple[int, set[str]],
    now: float,
    evidence: list[str],
    free: bool = False,
    injected: bool = False,
    stopped: bool = False,
) -> Score:
    """`database` is the stock that the database has left, and the ids of its orders."""
    left, orders = database
    stock = sum(ledger.stock)
    balance = len(orders) + left - stock  # pieces sold, or still for sale, beyond the stock
    sold_out_at = max(ledger.sales, default=0.0) if left == 0 else tally.ended
    last_sale = max((at for at in ledger.sales if at <= tally.ended), default=tally.began)
    standstill = left > 0 and tally.ended - last_sale > (tally.ended - tally.began) / 2
    verdict: Verdict = "oversold" if balance > 0 else "stuck" if standstill else "safe"
    selling = max(ledger.sales, default=0.0) - min(ledger.sales, default=0.0)
    holders = ledger.holders(now)
    killed = {holder.order for holder in holders if holder.end != "released"}  # while they held the lock
    return Score(
        scenario=name,
        stock=stock,
        sold=len(orders),
        oversold=max(0, balance),
        left=left,
        lost=len((killed | tally.confirmed) - orders),
        refused=ledger.refused,
        stuck=round(longest_gap(ledger.sales, tally.began, max(tally.began, sold_out_at)), 3),
        seconds=round(now, 3),
        rate=round((len(ledger.sales) - 1) / selling, 1) if selling else 0.0,
        p50=tally.percentile(50),
        p99=tally.percentile(99),
        verdict=verdict,
        expect=scenario.expect,
        must_be_safe=scenario.must_be_safe,
        as_expected=verdict == scenario.expect,
        free=free,
        injected=injected,
        stopped=stopped,
        evidence=evidence,
        holders=[holder.shown() for holder in holders],
        overlaps=overlaps_of(holders),
        stock_line=[(round(at, 4), pieces) for at, pieces in sorted(ledger.stock_line, key=lambda point: point[0])],
        marks=[asdict(mark) for mark in sorted(ledger.marks, key=lambda mark: mark.t)],
        load=tally.report(),
    )
