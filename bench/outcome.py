"""What a case leaves behind for the report, and what a case is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from bench.candidate import Urls
from bench.handfast_adapter import NAME
from bench.plan import Plan


class Row(Protocol):
    """A dataclass of figures: its fields go into the JSON, its cells, by their headings, into the table."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def cells(self) -> dict[str, str]: ...


@dataclass
class Outcome:
    """A case's figures, with ratios to the floor: of times (lower is better) or of throughput (higher is)."""

    better: str
    floor: tuple[str, Row] | None = None
    floors: dict[str, Row] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    """Of the best rounds."""
    paired: dict[str, float] = field(default_factory=dict)
    """The median of round by round."""
    skipped: dict[str, str] = field(default_factory=dict)
    own_row: str = NAME
    """The row whose ratio is handfast's own."""
    named: dict[str, float | None] = field(default_factory=dict)
    """Where a case has other ratios than that one, or more: all of them, by the names they are reported under."""

    def headline(self, case: str) -> dict[str, float | None]:
        return self.named or {case: self.ratios.get(self.own_row)}


class Case(Protocol):
    @property
    def nodes(self) -> int: ...

    @property
    def weight(self) -> float:
        """Its share of the run's budget, where an ordinary case has 1."""

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome: ...


def ratio(mine: float | None, other: float | None) -> float | None:
    return round(mine / other, 3) if mine and other else None
