"""One round of one candidate, the order in which rounds take turns, and the best of them.

Noise on a shared machine mostly adds time, so the figure of a candidate is its best round. Noise comes and goes
over seconds, so the rounds of all candidates alternate. A second figure is the median over the rounds of
(this round / the floor's round). A floor measured against itself keeps that figure within a few per cent, where
one lucky round spoils the best.
The garbage collector stays on, as in any user's process. But every round starts with a clean, frozen heap, so a
candidate does not pay for the garbage or the heap of the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from bench.candidate import AsyncSession, Pair
from bench.plan import Plan

LEAST_ROUNDS = 2
STUCK_SECONDS = 8.0
"""Seconds after which a round counts as failed, so that it does not take the time of the others."""
WARM_UP_PAIRS = 50
WARM_UP_PAIRS_PER_TASK = 2


class Stuck(BaseException):
    """Not an Exception: libraries that swallow those must not swallow this."""


@dataclass(frozen=True)
class Figure:
    p50_us: float
    p99_us: float
    pairs_per_s: float
    cpu_us: float
    """CPU time of this process for each pair."""

    @classmethod
    def of(cls, nanoseconds: list[int], pairs: int, seconds: float, cpu_seconds: float = 0.0) -> Figure:
        ordered = sorted(nanoseconds)
        p50, p99 = (ordered[int(share * (len(ordered) - 1))] / 1000 for share in (0.5, 0.99))
        return cls(round(p50, 1), round(p99, 1), round(pairs / seconds, 1), round(cpu_seconds / max(1, pairs) * 1e6, 1))

    def cells(self) -> dict[str, str]:
        return {
            "p50 µs": f"{self.p50_us:.0f}",
            "p99 µs": f"{self.p99_us:.0f}",
            "pairs/s": f"{self.pairs_per_s:.0f}",
            "CPU µs": f"{self.cpu_us:.0f}",
        }


@dataclass
class Standing:
    """A candidate's standing in one case: its rounds so far, or why it is out."""

    what: str
    peer: bool = False
    figures: list[Figure] = field(default_factory=list)
    failure: str | None = None

    def fail(self, error: BaseException) -> None:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        said = " ".join(str(error).split())
        self.failure = f"{type(error).__name__}: {said}"[:300]


E = TypeVar("E", bound=Standing)


def turns(standings: Sequence[E], plan: Plan, deadline: float) -> Iterator[E]:
    """The candidates in the order of their rounds. The order shifts, so that no candidate always follows the same one."""
    for number in range(plan.rounds):
        if number >= LEAST_ROUNDS and time.monotonic() > deadline:
            return
        shift = number % len(standings)
        for standing in [*standings[shift:], *standings[:shift]]:
            if standing.failure is None and not (standing.peer and number >= plan.peer_rounds):
                yield standing


@contextlib.contextmanager
def quiet_heap() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupts a blocking call that hangs (main thread only)."""

    def stop(*_: object) -> None:
        raise Stuck(f"still not done after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def sync_round(pair: Pair, pairs: int, seconds: float = STUCK_SECONDS) -> Figure:
    """Up to `pairs` pairs; fewer if `seconds` pass first."""
    clock, taken = time.perf_counter_ns, []
    with quiet_heap(), time_limit(STUCK_SECONDS):
        start, cpu = clock(), time.process_time()
        over = start + int(seconds * 1e9)
        before = start
        for _ in range(pairs):
            pair()
            now = clock()
            taken.append(now - before)
            before = now
            if now > over:
                break
        cpu = time.process_time() - cpu
    return Figure.of(taken, len(taken), (before - start) / 1e9, cpu)


SAMPLED = 10
"""Every tenth task times its pairs: enough for percentiles, and the clock costs the others nothing."""


async def async_round(
    session: AsyncSession, what: str, tasks: int, pairs_per_task: int, seconds: float = STUCK_SECONDS
) -> Figure:
    """Runs all tasks at once, each with its own name; the clock starts when every task is ready."""
    clock, go = time.perf_counter_ns, asyncio.Event()
    taken: list[int] = []
    over: list[bool] = []

    async def work(number: int) -> int:
        pair = session(f"bench:{what}:{number}")
        await go.wait()
        for done in range(pairs_per_task):
            if over and done:
                return done
            if number % SAMPLED:
                await pair()
            else:
                before = clock()
                await pair()
                taken.append(clock() - before)
        return pairs_per_task

    with quiet_heap():
        async with asyncio.timeout(STUCK_SECONDS), asyncio.TaskGroup() as group:
            running = [group.create_task(work(number)) for number in range(tasks)]
            await asyncio.sleep(0)
            timer = asyncio.get_running_loop().call_later(seconds, over.append, True)
            start, cpu = clock(), time.process_time()
            go.set()
        elapsed, cpu = (clock() - start) / 1e9, time.process_time() - cpu
    timer.cancel()
    return Figure.of(taken, sum(task.result() for task in running), elapsed, cpu)
