"""Simulate seeds: `python -m sim --seeds 1000`, or replay one: `--seed 7 --trace`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from sim import lua
from sim.faults import SIMULATED
from sim.resp import commands_in
from sim.scenario import Outcome, run

__all__ = ["line", "main", "report"]

SHOWN = 60
"""Events before a violation."""


def line(at: float, kind: str, words: tuple[Any, ...]) -> str:
    return f"{at:12.6f}  {kind:10}  {'  '.join(_shown(word) for word in words)}"


def _shown(word: Any) -> str:
    """The commands of a request: scripts by name, with their first key only."""
    if not isinstance(word, bytes) or not word.startswith(b"*"):
        return str(word)
    shown: list[str] = []
    for words in commands_in(word):
        if words[0] == b"EVALSHA":
            keys = int(words[2])
            words = [lua.NAMES[words[1]].encode(), words[3], *words[3 + keys :]]
        shown.append(" ".join(each.decode() or "''" for each in words))
    return "; ".join(shown)


def report(outcome: Outcome, *, shown: int = SHOWN) -> str:
    """Prints a violation, and the events before it."""
    events = [line(*event)[:300] for event in outcome.recent[-shown:]] if shown else []
    return "\n".join(
        [
            *events,
            f"seed {outcome.seed}: {outcome.violation}",
            f"  {outcome.plan}",
            f"  replay: python -m sim --seed {outcome.seed} --trace",
        ]
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--trace", action="store_true", help="show everything that happens")
    parser.add_argument("--seeds", type=int, default=300, help="how many (default: 300)")
    parser.add_argument("--start", type=int, default=0, help="the first of them")
    parser.add_argument("--most", type=int, default=10, help="stop after so many violations")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one for each core)")
    options = parser.parse_args(argv)
    if options.seed is not None:
        return _one(options.seed, trace=options.trace)
    return _many(range(options.start, options.start + options.seeds), options.most, options.jobs)


def _one(seed: int, *, trace: bool) -> int:
    def tell(at: float, kind: str, words: tuple[Any, ...]) -> None:
        print(line(at, kind, words))

    outcome = run(seed, tell=tell if trace else None)
    if outcome.violation is not None:
        traceback.print_exception(outcome.violation)
        print(report(outcome, shown=0 if trace else SHOWN))
        return 1
    print(f"seed {seed}: {outcome.seconds:.0f} s simulated, no violation, trace {outcome.digest}")
    print(f"  {outcome.plan}\n  {outcome.sums}")
    return 0


def _run(seed: int) -> Outcome:
    outcome = run(seed, with_digest=False)
    if outcome.violation is not None:
        outcome.violation.__traceback__ = None
        return outcome._replace(violation=AssertionError(str(outcome.violation)), recent=outcome.recent[-SHOWN:])
    return outcome._replace(recent=[])


@contextmanager
def _outcomes(seeds: range, jobs: int) -> Iterator[Iterable[Outcome]]:
    if jobs < 2:
        yield map(_run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield pool.map(_run, seeds, chunksize=10)
        pool.shutdown(wait=False, cancel_futures=True)


def _many(seeds: range, most: int, jobs: int) -> int:
    began = time.perf_counter()
    sums: Counter[str] = Counter()
    happened: Counter[str] = Counter()
    simulated, violations, done = 0.0, 0, 0
    with _outcomes(seeds, jobs) as outcomes:
        for outcome in outcomes:
            simulated += outcome.seconds
            sums.update(outcome.sums)
            happened.update(outcome.happened)
            done += 1
            if outcome.violation is not None:
                violations += 1
                print(report(outcome), flush=True)
                if violations >= most:
                    break
    took = time.perf_counter() - began
    print(
        f"{done} seeds, {simulated / 3600:.1f} simulated hours, {violations} violations; "
        f"{took:.0f} s on {jobs} cores, {60 * done / took:.0f} seeds a minute"
    )
    print("  " + ", ".join(f"{word} {count}" for word, count in sums.items()))
    print("  faults, by number: " + ", ".join(
        f"{number}: {sum(happened[each] for each in fault.counts(number))}" for number, fault in SIMULATED.items()
    ))  # fmt: skip
    return 1 if violations else 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # no traceback if the reader of a trace ends first
    sys.exit(main())
