"""One lock among many processes: how fast, how evenly and at what cost it moves from one to the next.

A *hand-off* is an acquisition by another process than the previous one. The timed rounds have an empty critical section:
first among 8 processes, then among 2 and among 64 in turns, so that the ratio of these two compares rounds of the same
minute. There are two more rounds among 8 processes. In one, the critical section takes a millisecond, the server counts
commands, and Jain's index says how evenly the turns were distributed. In the other, one process holds the lock while the
others wait; every command that arrives at the server during that time is polling.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench import handfast_adapter, quorum_floor, waiting_candidates
from bench.candidate import Urls
from bench.handfast_adapter import NAME
from bench.handoff_figures import HandoffFigure, HandoffStanding, NotExclusive, Round
from bench.handoff_floor import FLOOR
from bench.measure import turns
from bench.outcome import Outcome, ratio
from bench.plan import Plan
from bench.traffic import AllTraffic
from bench.worker import Hold, WaitingCandidate, Work
from bench.workers import Workers, WorkersFailed

FEW, SOME, MANY = 2, 8, 64
MAIN_PART = 0.5
"""The share of the case's time that the timed rounds of 8 processes may use."""
LONGER = 3
"""How much longer the rounds of 64 processes are: each has an eighth of the turns, and its first turns are cold."""
WARM_UP_SECONDS = 0.05
SECTION, LONG_SECTION = 0.001, 0.01
LONG_ROUNDS = 8
"""How much longer the rounds with a long critical section are, so that each process has many turns."""
QUIET_SECONDS, SETTLE_SECONDS = 0.02, 0.2


class Race:
    """The workers of some candidates, in one size or several. Each candidate has its own lock, and they run in turns."""

    def __init__(self, urls: Urls, field: Sequence[WaitingCandidate], *sizes: int) -> None:
        self.urls = urls
        self.url = " ".join(urls)
        self.candidates = {candidate.what: candidate for candidate in field}
        self.standings = [
            HandoffStanding(candidate.what, candidate.peer, processes=size) for size in sizes for candidate in field
        ]
        self.teams: dict[tuple[str, int], Workers] = {}

    def run(self, plan: Plan, deadline: float, *, details: bool) -> None:
        contended = plan.contended
        with contextlib.ExitStack() as stack:
            for standing in self.standings:
                with self.judged(standing):
                    workers = stack.enter_context(self.workers(standing, standing.processes))
                    self.teams[standing.what, standing.processes] = workers
                    self.round(standing, WARM_UP_SECONDS)
            rounds = contended.rounds if details else contended.rounds // 2
            schedule = replace(plan, rounds=rounds, peer_rounds=contended.peer_rounds)
            for standing in turns(self.standings, schedule, deadline):
                with self.judged(standing):
                    seconds = contended.peer_seconds if standing.peer else contended.seconds
                    seconds *= LONGER if standing.processes == MANY else 1
                    standing.rounds.append(self.round(standing, seconds))
            if details:
                self.details(contended.details_seconds)

    def details(self, seconds: float) -> None:
        with AllTraffic(self.urls) as traffic:
            for standing in self.standings:
                if standing.failure is None:
                    with self.judged(standing):
                        self.count(standing, seconds, traffic)
                        self.wait(standing, seconds, traffic)

    def workers(self, standing: HandoffStanding, size: int) -> Workers:
        lock = f"bench:handoff:{standing.processes}:{standing.what}"
        return Workers(self.candidates[standing.what], size, self.url, lock)

    def floor_of(self, standing: HandoffStanding) -> HandoffStanding | None:
        """The floor with the same number of processes."""
        floors = [each for each in self.standings if each.what == FLOOR.what and each.processes == standing.processes]
        return floors[0] if floors and floors[0].failure is None else None

    @contextlib.contextmanager
    def judged(self, standing: HandoffStanding) -> Iterator[None]:
        """A candidate that fails is out, and its processes end, because they may be polling."""
        try:
            yield
        except (WorkersFailed, NotExclusive) as error:
            standing.failure = str(error) if isinstance(error, WorkersFailed) else f"{type(error).__name__}: {error}"
            if workers := self.teams.get((standing.what, standing.processes)):
                workers.close()
            if standing.what.startswith(NAME) or standing.what == FLOOR.what:
                print(getattr(error, "trace", "") or standing.failure, file=sys.stderr)

    def round(self, standing: HandoffStanding, seconds: float, section: float = 0.0) -> Round:
        return Round.of(*self.teams[standing.what, standing.processes].work(seconds, section))

    def count(self, standing: HandoffStanding, seconds: float, traffic: AllTraffic) -> None:
        traffic.since_last_asked()
        result = self.round(standing, seconds, SECTION)
        sent = traffic.since_last_asked() / len(self.urls)
        standing.commands_per_handoff = round(sent / result.handoffs, 2) if result.handoffs else None
        jains = [result.jain]
        if not standing.peer:
            jains += [self.round(standing, seconds).jain, self.round(standing, LONG_ROUNDS * seconds, LONG_SECTION).jain]
        standing.jain = round(min(jains), 4)

    def wait(self, standing: HandoffStanding, seconds: float, traffic: AllTraffic) -> None:
        """The last round of some workers: they are still waiting when they end."""
        workers = self.teams[standing.what, standing.processes]
        with self.workers(standing, 1) as holder, contextlib.closing(workers):
            holder.order(Hold())
            holder.answers()
            traffic.since_last_asked()
            workers.order(Work(until=0, hold=0.0))
            _settle(traffic, standing.processes)
            start = time.monotonic()
            time.sleep(seconds)
            sent = traffic.since_last_asked()
            standing.waiting_commands_per_s = round(sent / (time.monotonic() - start), 1)


def _settle(traffic: AllTraffic, waiters: int) -> None:
    """Waits until all waiters have asked for the lock and have been queued. Waiters that poll are never quiet."""
    over, asked, latest = time.monotonic() + SETTLE_SECONDS, 0, 0
    while (asked < waiters or latest) and time.monotonic() < over:
        time.sleep(QUIET_SECONDS)
        latest = traffic.since_last_asked()
        asked += latest


@dataclass(frozen=True)
class Handoffs:
    nodes: int = 1
    weight: float = 5.0

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome:
        own = waiting_candidates.handfast_candidates(plan.node_timeout)
        outcome = Outcome("higher", own_row=waiting_candidates.UNFENCED)
        best: dict[tuple[str, int], HandoffFigure] = {}

        def enter(race: Race) -> None:
            for standing in race.standings:
                _enter(outcome, race, standing)
                if standing.failure is None:
                    best[standing.what, standing.processes] = standing.figure()

        now = time.monotonic()
        main = Race(urls, [FLOOR, *own, *waiting_candidates.PEERS], SOME)
        main.run(plan, now + MAIN_PART * (deadline - now), details=True)
        enter(main)
        leaders = [candidate for candidate in (FLOOR, own[1]) if candidate.what not in outcome.skipped]
        ends = Race(urls, leaders, FEW, MANY)
        ends.run(plan, deadline, details=False)
        enter(ends)
        outcome.named = _named(best)
        return outcome


def _enter(outcome: Outcome, race: Race, standing: HandoffStanding) -> None:
    """Adds one candidate's line to the outcome, beside the floor of the same size."""
    size = standing.processes
    title = standing.what if size == SOME else f"{standing.what}, {size} processes"
    if standing.failure is not None:
        outcome.skipped[title] = standing.failure
        return
    figure, floor = standing.figure(), race.floor_of(standing)
    if standing is floor:
        outcome.floors[title] = figure
        if size == SOME:
            outcome.floor = title, figure
        return
    outcome.rows[title] = figure
    if floor is not None:
        outcome.ratios[title] = round(figure.handoffs_per_s / floor.figure().handoffs_per_s, 3)
        both = zip(standing.rounds, floor.rounds, strict=False)
        paired = [mine.handoffs_per_s / its.handoffs_per_s for mine, its in both if its.handoffs_per_s]
        outcome.paired[title] = round(statistics.median(paired or [0.0]), 3)


Best = dict[tuple[str, int], HandoffFigure]


def _speed(best: Best, what: str, size: int) -> float | None:
    return best[what, size].handoffs_per_s if (what, size) in best else None


def _latency(best: Best, what: str) -> float | None:
    return best[what, SOME].p50_us if (what, SOME) in best else None


def _named(best: Best) -> dict[str, float | None]:
    unfenced, default, floor = waiting_candidates.UNFENCED, waiting_candidates.DEFAULT, FLOOR.what
    own = best.get((default, SOME))
    return {
        "handoff": ratio(_speed(best, unfenced, SOME), _speed(best, floor, SOME)),
        "handoff_default": ratio(_speed(best, default, SOME), _speed(best, floor, SOME)),
        "jain_default": own.jain if own else None,
        "commands_per_handoff": own.commands_per_handoff if own else None,
        "waiting_commands_per_s": own.waiting_commands_per_s if own else None,
        "handoff_latency": ratio(_latency(best, default), _latency(best, floor)),
        "handoff_64_over_2": ratio(_speed(best, default, MANY), _speed(best, default, FEW)),
        # The floor's own ratio: what this machine loses by running so many processes, whatever they do.
        "handoff_floor_64_over_2": ratio(_speed(best, floor, MANY), _speed(best, floor, FEW)),
    }


@dataclass(frozen=True)
class QuorumHandoffs:
    """The same among 8 processes on five nodes, with default options."""

    nodes: int = 5
    weight: float = 3.0

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome:
        handfast_adapter.prepare(urls)
        own = [each for each in waiting_candidates.handfast_candidates(plan.node_timeout) if each.what == NAME]
        outcome, best = Outcome("higher"), {}
        race = Race(urls, [quorum_floor.FLOOR, *own], SOME)
        race.run(plan, deadline, details=True)
        for standing in race.standings:
            _enter(outcome, race, standing)
            if standing.failure is None:
                best[standing.what, standing.processes] = standing.figure()
        figure = best.get((NAME, SOME))
        outcome.named = {
            "handoff_quorum": ratio(_speed(best, NAME, SOME), _speed(best, FLOOR.what, SOME)),
            "jain_quorum": figure.jain if figure else None,
            "commands_per_handoff_quorum": figure.commands_per_handoff if figure else None,
            "handoff_quorum_latency": ratio(_latency(best, NAME), _latency(best, FLOOR.what)),
        }
        return outcome
