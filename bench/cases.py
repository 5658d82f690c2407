"""The table CASES of what is measured, and the cases of uncontended acquire + release pairs."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from bench import afloors, floors
from bench.candidate import AsyncSession, Pair, Urls
from bench.cohort import Cohort
from bench.handfast_adapter import handfast_async, handfast_sync
from bench.handoff import Handoffs, QuorumHandoffs
from bench.measure import (
    STUCK_SECONDS,
    WARM_UP_PAIRS,
    WARM_UP_PAIRS_PER_TASK,
    Figure,
    Standing,
    Stuck,
    async_round,
    sync_round,
    time_limit,
    turns,
)
from bench.outcome import Case, Outcome
from bench.peers import ASYNC_PEERS, PEERS
from bench.plan import Plan


def _fail(standing: Standing, error: BaseException) -> None:
    standing.fail(error)
    # A peer's failure is a line in the report; handfast's own failure needs its traceback.
    if not standing.peer:
        traceback.print_exception(error, file=sys.stderr)


def _outcome(better: str, floor_names: set[str], standings: Sequence[Standing]) -> Outcome:
    outcome = Outcome(better)
    lower = better == "lower"

    def value(figure: Figure) -> float:
        return figure.p50_us if lower else figure.pairs_per_s

    choose = min if lower else max
    best: dict[str, Figure] = {}
    for standing in standings:
        if standing.failure is not None:
            outcome.skipped[standing.what] = standing.failure
        else:
            best[standing.what] = choose(standing.figures, key=value)
    outcome.floors.update({what: figure for what, figure in best.items() if what in floor_names})
    outcome.rows.update({what: figure for what, figure in best.items() if what not in floor_names})
    if outcome.floors:
        # If there are several floors, the best one counts.
        kind = choose(outcome.floors, key=lambda what: value(best[what]))
        outcome.floor = kind, best[kind]
        rounds = {standing.what: [value(figure) for figure in standing.figures] for standing in standings}
        for what in outcome.rows:
            outcome.ratios[what] = round(value(best[what]) / value(best[kind]), 3)
            # A peer has fewer rounds; zip pairs each of them with the floor's round of the same turn.
            turns_of_both = zip(rounds[what], rounds[kind], strict=False)
            outcome.paired[what] = round(statistics.median(mine / floor for mine, floor in turns_of_both), 3)
    return outcome


@dataclass(frozen=True)
class SyncPairs:
    """acquire + release by one thread; the ratio is of median times."""

    nodes: int
    kind: str = "published"
    """The floors' own protocol, with a token ("fenced"), or what users write ("default")."""
    weight: float = 1.0

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome:
        raw = floors.floors(self.nodes, self.kind == "fenced")
        # No peer has a fencing token, so the peers are compared with the plain floor only.
        peers = [] if self.kind != "published" else [peer for peer in PEERS if self.nodes in peer.nodes]
        standings: list[Standing] = []
        pairs: dict[str, Pair] = {}
        with contextlib.ExitStack() as stack:
            for candidate in (*raw, handfast_sync(self.kind, plan.node_timeout), *peers):
                standing = Standing(candidate.what, peer=candidate in peers)
                standings.append(standing)
                try:
                    with time_limit(STUCK_SECONDS):
                        session = stack.enter_context(candidate.open(urls))
                        pair = session(f"bench:{candidate.what}")
                    sync_round(pair, WARM_UP_PAIRS, plan.peer_seconds)
                    pairs[candidate.what] = pair
                except (Exception, Stuck) as error:
                    _fail(standing, error)
            for standing in turns(standings, plan, deadline):
                seconds = plan.peer_seconds if standing.peer else STUCK_SECONDS
                try:
                    standing.figures.append(sync_round(pairs[standing.what], plan.sync_pairs, seconds))
                except (Exception, Stuck) as error:
                    _fail(standing, error)
        return _outcome("lower", {floor.what for floor in raw}, standings)


@dataclass(frozen=True)
class AsyncPairs:
    """acquire + release by many tasks of one loop, each on its own name; the ratio is of pairs per second."""

    nodes: int
    kind: str = "published"
    """The floors' own protocol, with a token ("fenced"), or what users write ("default")."""
    weight: float = 1.0

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome:
        return asyncio.run(self._run(urls, plan, deadline))

    async def _run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome:
        raw = afloors.floors(self.nodes, self.kind == "fenced")
        peers = [] if self.kind != "published" else [peer for peer in ASYNC_PEERS if self.nodes in peer.nodes]
        standings: list[Standing] = []
        sessions: dict[str, tuple[AsyncSession, int]] = {}
        async with contextlib.AsyncExitStack() as stack:
            for candidate in (*raw, handfast_async(self.kind, plan.node_timeout), *peers):
                standing = Standing(candidate.what, peer=candidate in peers)
                standings.append(standing)
                try:
                    async with asyncio.timeout(STUCK_SECONDS):
                        session = await stack.enter_async_context(candidate.open(urls))
                    await async_round(session, candidate.what, candidate.tasks, WARM_UP_PAIRS_PER_TASK, plan.peer_seconds)
                    sessions[candidate.what] = session, candidate.tasks
                except Exception as error:
                    _fail(standing, error)
            for standing in turns(standings, plan, deadline):
                session, tasks = sessions[standing.what]
                seconds = plan.peer_seconds if standing.peer else STUCK_SECONDS
                try:
                    figure = await async_round(session, standing.what, tasks, plan.pairs_per_task[self.nodes], seconds)
                    standing.figures.append(figure)
                except Exception as error:
                    _fail(standing, error)
        return _outcome("higher", {floor.what for floor in raw}, standings)


CASES: dict[str, Case] = {
    "sync_1": SyncPairs(1),
    "sync_5": SyncPairs(5),
    "async_1": AsyncPairs(1),
    "async_5": AsyncPairs(5),
    "default_sync_1": SyncPairs(1, "default"),
    "default_sync_5": SyncPairs(5, "default"),
    "default_async_1": AsyncPairs(1, "default"),
    "default_async_5": AsyncPairs(5, "default"),
    "sync_1_fenced": SyncPairs(1, "fenced"),
    "sync_5_fenced": SyncPairs(5, "fenced"),
    "async_1_fenced": AsyncPairs(1, "fenced"),
    "async_5_fenced": AsyncPairs(5, "fenced"),
    "handoff": Handoffs(),
    "handoff_quorum": QuorumHandoffs(),
    "cohort": Cohort(),
}
