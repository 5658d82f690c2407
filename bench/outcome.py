"""What a case leaves behind for the report, and what a case is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from bench.candidate import Urls
from bench.handfast_adapter import NAME
from bench.plan import Plan


class Row(Protocol):
    """A dataclass of figures. Its fields go into the JSON; its cells, by heading, go into the table."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def cells(self) -> dict[str, str]: ...


@dataclass
class Outcome:
    """A case's figures and their ratios to the floor: of times (lower is better) or of throughput (higher is better)."""

    better: str
    floor: tuple[str, Row] | None = None
    floors: dict[str, Row] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    """Ratios of the best rounds."""
    paired: dict[str, float] = field(default_factory=dict)
    """Medians of the ratios of each round."""
    skipped: dict[str, str] = field(default_factory=dict)
    own_row: str = NAME
    """The row whose ratio is handfast's own."""
    named: dict[str, float | None] = field(default_factory=dict)
    """All ratios by their names in the report, if a case has others than that one."""

    def headline(self, case: str) -> dict[str, float | None]:
        return self.named or {case: self.ratios.get(self.own_row)}


class Case(Protocol):
    @property
    def nodes(self) -> int: ...

    @property
    def weight(self) -> float:
        """Its share of the run's time; an ordinary case has 1."""

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome: ...


def ratio(mine: float | None, other: float | None) -> float | None:
    return round(mine / other, 3) if mine and other else None
