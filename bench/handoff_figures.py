"""Computes figures from the timestamps of processes that shared a lock.

Every process notes when it has acquired the lock and when it is about to release it, by the clock that all processes of a
machine share. The merged notes show the order of the processes, how long each hand-off took, and whether two processes
held the lock at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from bench.measure import Standing
from bench.worker import Turns


class NotExclusive(Exception):
    """Two processes held the lock at the same time."""


@dataclass(frozen=True)
class Round:
    """The figures of one round, from the start of the last process to the first possible end of one."""

    handoffs_per_s: float
    p50_us: float | None
    """From just before release() to the return of the next process' acquire(); None if the lock never moved."""
    p99_us: float | None
    jain: float
    handoffs: int
    """Turns from beginning to end: the divisor for the commands of the round."""

    @classmethod
    def of(cls, workers: Sequence[Turns], until: int) -> Round:
        begin = max(worker.began for worker in workers)
        taken = sorted((got, gave, who) for who, m in enumerate(workers) for got, gave in zip(m.got, m.gave, strict=True))
        # Each process noted both times while it held the lock: if the intervals overlap, the leases did too.
        if together := sum(later[0] < earlier[1] for earlier, later in pairwise(taken)):
            raise NotExclusive(f"{together} times a process got the lock before the last one released it")
        changes = [(earlier[1], later[0]) for earlier, later in pairwise(taken) if earlier[2] != later[2]]
        waits = sorted(got - gave for gave, got in changes if begin <= got <= until)
        p50, p99 = (waits[int(part * (len(waits) - 1))] / 1000 if waits else None for part in (0.5, 0.99))
        counts = [sum(begin <= got <= until for got in worker.got) for worker in workers]
        # On a busy machine the last of 64 processes may begin after the end of a short round.
        per_s = len(waits) * 1e9 / (until - begin) if waits else 0.0
        return cls(per_s, p50, p99, jain(counts), len(changes))


def jain(counts: Sequence[int]) -> float:
    """Jain's fairness index: 1 if all counts are equal, 1/n if one of n has everything."""
    squares = len(counts) * sum(n * n for n in counts)
    return sum(counts) ** 2 / squares if squares else 0.0


@dataclass(frozen=True)
class HandoffFigure:
    processes: int
    handoffs_per_s: float
    p50_us: float | None
    p99_us: float | None
    jain: float | None = None
    commands_per_handoff: float | None = None
    waiting_commands_per_s: float | None = None
    """Of all waiters together, while another process holds the lock."""

    def cells(self) -> dict[str, str]:
        shown = {
            "p50 µs": (self.p50_us, ".0f"),
            "p99 µs": (self.p99_us, ".0f"),
            "hand-offs/s": (self.handoffs_per_s, ".0f"),
            "commands each": (self.commands_per_handoff, ".2f"),
            "Jain": (self.jain, ".3f"),
            "waiting, cmd/s": (self.waiting_commands_per_s, ".0f"),
        }
        return {heading: "" if value is None else format(value, form) for heading, (value, form) in shown.items()}


@dataclass
class HandoffStanding(Standing):
    """A candidate's rounds so far, with so many processes, and its other figures."""

    processes: int = 0
    rounds: list[Round] = field(default_factory=list)
    jain: float | None = None
    commands_per_handoff: float | None = None
    waiting_commands_per_s: float | None = None

    def figure(self) -> HandoffFigure:
        """Each figure comes from its best round, because noise only makes figures worse."""
        p50s = [r.p50_us for r in self.rounds if r.p50_us is not None]
        p99s = [r.p99_us for r in self.rounds if r.p99_us is not None]
        return HandoffFigure(
            self.processes,
            round(max(r.handoffs_per_s for r in self.rounds), 1),
            round(min(p50s), 1) if p50s else None,
            round(min(p99s), 1) if p99s else None,
            self.jain,
            self.commands_per_handoff,
            self.waiting_commands_per_s,
        )
