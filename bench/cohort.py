"""Acquisitions per second of one lock that a thousand tasks of one process want again and again.

Without `cohort=` the server grants every acquisition; with it the process hands a held lock over to its own next waiter.
Both use handfast's defaults, so they have fencing tokens. There is no floor: the two are compared with each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from bench.candidate import TTL, PairFailed, Urls
from bench.handfast_adapter import NAME, policies
from bench.measure import STUCK_SECONDS, Figure, Standing, quiet_heap, turns
from bench.outcome import Outcome, ratio
from bench.plan import Plan

TASKS = 1000
COHORT, PEER = f"{NAME} cohort", "redis-py asyncio"
WARM_UP_SECONDS, PEER_WARM_UP_SECONDS = 0.1, 0.4
"""Seconds before the timed part: the peer opens a hundred connections before its first task gets the lock."""
CANCEL_AGAIN_SECONDS = 0.2

Session = tuple[Callable[[str], Awaitable[Any]], Callable[[Any], Awaitable[object]]]
"""take(name) waits for the lock and returns the argument of give(), which releases it."""


@contextlib.asynccontextmanager
async def handfast_lock(url: str, node_timeout: float | None, **options: Any) -> AsyncIterator[Session]:
    import handfast.aio

    async with handfast.aio.connect(url, **policies(node_timeout)) as client:
        yield lambda name: client.lock(name, ttl=TTL, **options).acquire(), lambda lease: lease.release()


@contextlib.asynccontextmanager
async def redis_py(url: str) -> AsyncIterator[Session]:
    import redis.asyncio

    # See peers.py: the default pool raises, and this one makes a task wait for a connection.
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=100, timeout=None)
    async with redis.asyncio.Redis.from_pool(pool) as client:

        async def take(name: str) -> Any:
            lock = client.lock(name, timeout=TTL)  # One object per task: it keeps its token per thread.
            if not await lock.acquire():
                raise PairFailed("not acquired")
            return lock

        yield take, lambda lock: lock.release()


async def contend(session: Session, name: str, seconds: float) -> Figure:
    """Runs all tasks at once. p50 and p99 are the waits of the tasks that got the lock."""
    take, give = session
    clock, waited = time.perf_counter_ns, []

    async def again_and_again() -> None:
        while True:
            before = clock()
            held = await take(name)
            waited.append(clock() - before)
            await give(held)

    with quiet_heap():
        start = clock()
        tasks = [asyncio.create_task(again_and_again()) for _ in range(TASKS)]
        try:
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            figure = Figure.of(waited, len(waited), (clock() - start) / 1e9) if waited else None
        finally:
            hanging = await _ended(tasks)
    for task in done:
        task.result()
    if hanging or figure is None:
        raise PairFailed(f"{hanging} tasks did not end when cancelled" if hanging else "no task got the lock")
    return figure


async def _ended(tasks: list[asyncio.Task[None]]) -> int:
    """Cancels the tasks, again and again, because redis-py sometimes swallows it. Returns how many did not end."""
    over, pending = time.monotonic() + STUCK_SECONDS, set(tasks)
    while pending and time.monotonic() < over:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=CANCEL_AGAIN_SECONDS)
    return len(pending)


@dataclass(frozen=True)
class Cohort:
    nodes: int = 1
    weight: float = 1.5

    def run(self, urls: Urls, plan: Plan, deadline: float) -> Outcome:
        return asyncio.run(self._run(urls[0], plan, deadline))

    async def _run(self, url: str, plan: Plan, deadline: float) -> Outcome:
        candidates: dict[str, AbstractAsyncContextManager[Session]] = {
            COHORT: handfast_lock(url, plan.node_timeout, cohort=64),
            NAME: handfast_lock(url, plan.node_timeout),
            PEER: redis_py(url),
        }
        standings = [Standing(what, peer=what == PEER) for what in candidates]
        contended, number = plan.contended, count()
        schedule = replace(plan, rounds=contended.rounds, peer_rounds=contended.peer_rounds)
        async with contextlib.AsyncExitStack() as stack:
            sessions = {what: await stack.enter_async_context(opening) for what, opening in candidates.items()}
            # A new name for every round: a cancelled task of a peer may leave the lock held.
            go = partial(_round, sessions=sessions, names=(f"bench:cohort:{n}" for n in number))
            for standing in standings:
                await go(standing, seconds=PEER_WARM_UP_SECONDS if standing.peer else WARM_UP_SECONDS)
                standing.figures.clear()
            for standing in turns(standings, schedule, deadline):
                await go(standing, seconds=contended.peer_seconds if standing.peer else contended.seconds)
        return _outcome(standings)


async def _round(standing: Standing, sessions: dict[str, Session], names: Any, seconds: float) -> None:
    try:
        standing.figures.append(await contend(sessions[standing.what], next(names), seconds))
    except Exception as error:
        standing.fail(error)
        if not standing.peer:
            traceback.print_exception(error, file=sys.stderr)


def _outcome(standings: list[Standing]) -> Outcome:
    outcome, best = Outcome("higher", own_row=COHORT), {}
    for standing in standings:
        if standing.failure is not None:
            outcome.skipped[standing.what] = standing.failure
        else:
            figure = max(standing.figures, key=lambda figure: figure.pairs_per_s)
            outcome.rows[standing.what], best[standing.what] = figure, figure.pairs_per_s
    outcome.named = {
        "cohort_over_plain": ratio(best.get(COHORT), best.get(NAME)),
        "cohort_over_redis_asyncio": ratio(best.get(COHORT), best.get(PEER)),
    }
    if COHORT in best and NAME in best:
        cohort, plain = ([f.pairs_per_s for f in standing.figures] for standing in standings[:2])
        outcome.paired[COHORT] = round(statistics.median(c / p for c, p in zip(cohort, plain, strict=False)), 3)
    return outcome
