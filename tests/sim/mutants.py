"""Deliberate bugs. The simulation must notice each of them: a suite that kills no mutant proves nothing.

A mutant is a piece of production code, in Python or in Lua, and its replacement. It is on for a process or for a `with`
block: it replaces the code of a function in place, so that every module that has imported the function gets the mutant
too; or the simulated servers run another text of a script. The shipped code does not know of mutants. A piece that no
longer exists is an error, so no mutant can silently do nothing.

  python -m tests.sim.mutants                        all of them, with as many seeds as each takes; a table
  python -m tests.sim.mutants --only NAME --seed N   replay one

Some bugs need a history that seeds hardly ever draw. Such a bug names a test, which must fail while the bug is on.

Not in the list, because they break no promise:
a proposal that is not raised above the last token seen (NodeGroup.proposal). The nodes answer above their own counters
whatever is proposed, so it costs a round trip for agreement, and neither order nor uniqueness;
a hold that its process has lost and acquired again, handed over once more (WaitQueues.hand_over): within the assumptions
it is not valid any more when the lock can be acquired again, and beyond them a cohort's tokens may be out of order;
a lease that a majority denies and that lasts until its deadline (renew._conclude). Within the assumptions no majority
denies a valid lease, and beyond them exclusion is not guaranteed.
"""

from __future__ import annotations
import __future__

import argparse
import inspect
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from io import StringIO
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

from handfast.protocol import scripts
from sim import Outcome, lua, run
from sim.__main__ import line
from tests.sim.bugs import BUGS, Change

__all__ = ["MUTANTS", "Mutant", "main"]

SEEDS = 300
"""The number of seeds that must show the bug."""


class Mutant(NamedTuple):
    """A bug with a name."""

    name: str
    what: str
    invariants: tuple[int, ...]
    """The invariants that may notice it."""
    changes: tuple[Change, ...]
    test: str = ""
    """The test that notices it, if seeds hardly ever do."""

    @contextmanager
    def alive(self) -> Iterator[None]:
        with ExitStack() as stack:
            for function, source in self.functions().items():
                stack.callback(setattr, function, "__code__", function.__code__)
                function.__code__ = _mutated(function, source)
            for script, text in self.scripts().items():
                stack.callback(lua.replace, script, None)
                lua.replace(script, text.encode())
            yield

    def functions(self) -> dict[FunctionType, str]:
        """The functions that it changes, with their new text."""
        found: dict[FunctionType, str] = {}
        for function, old, new in self.changes:
            if isinstance(function, FunctionType):
                source = found.get(function) or textwrap.dedent(inspect.getsource(function))
                found[function] = self._replaced(function.__qualname__, source, old, new)
        return found

    def scripts(self) -> dict[str, str]:
        """The scripts that it changes, with their new text."""
        found: dict[str, str] = {}
        for names, old, new in self.changes:
            for script in names.split() if isinstance(names, str) else ():
                source = found.get(script) or scripts.TEXT[script].decode()
                found[script] = self._replaced(script, source, old, new)
        return found

    def _replaced(self, where: str, source: str, old: str, new: str) -> str:
        if source.count(old) != 1:
            raise LookupError(f"{self.name}: {old!r} occurs {source.count(old)} times in {where}")
        return source.replace(old, new)


def _mutated(function: FunctionType, source: str) -> CodeType:
    names: dict[str, Any] = {}
    exec(compile(source, f"<mutant of {function.__qualname__}>", "exec", __future__.annotations.compiler_flag), {}, names)
    made = names[function.__name__]
    if made.__code__.co_freevars != function.__code__.co_freevars:
        raise LookupError(f"{function.__qualname__} closes over something else than before")
    return made.__code__  # type: ignore[no-any-return]


MUTANTS = {bug[0]: Mutant(*bug) for bug in BUGS}


class Fate(NamedTuple):
    """The result of a mutant."""

    name: str
    seeds: int
    """How many seeds ran."""
    violation: str
    invariant: int
    cpu: float


def hunt(name: str, seeds: int, first: int = 0) -> Fate:
    """Runs seeds 0, 1, 2, … until one notices the mutant. The empty name is the unchanged code."""
    began = time.process_time()
    if name and MUTANTS[name].test:
        said = _fails(MUTANTS[name])
        return Fate(name, 0, said, 0, time.process_time() - began)
    with ExitStack() as stack:
        if name:
            stack.enter_context(MUTANTS[name].alive())
        for seed in range(first, first + seeds):
            violation = run(seed, with_digest=False).violation
            if violation is not None:
                number = getattr(violation, "number", 0)
                return Fate(name, seed + 1 - first, str(violation), number, time.process_time() - began)
    return Fate(name, seeds, "", 0, time.process_time() - began)


def _fails(mutant: Mutant) -> str:
    """Why the mutant's test fails; empty if it passes."""
    shown = StringIO()
    # pytest would warn that handfast, which has a plugin, is imported already.
    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with mutant.alive(), redirect_stdout(shown):
        code = pytest.main([*options, mutant.test])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise LookupError(f"{mutant.name}: {mutant.test} cannot be run: {shown.getvalue()}")
    return shown.getvalue() if code == pytest.ExitCode.TESTS_FAILED else ""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.mutants", description="Run the simulator on known bugs.")
    parser.add_argument("--only", choices=[*MUTANTS], help="this one")
    parser.add_argument("--seed", type=int, help="replay this seed, with everything that happens")
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"at most so many for each (default: {SEEDS})")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: 2)")
    options = parser.parse_args(argv)
    if options.seed is not None:
        if options.only is None:
            parser.error("--seed needs --only; without a mutant it is python -m sim --seed")
        return _replay(MUTANTS[options.only], options.seed)
    return _table([options.only] if options.only else [*MUTANTS], options.seeds, options.jobs)


def _replay(mutant: Mutant, seed: int) -> int:
    with mutant.alive():
        outcome: Outcome = run(seed, tell=lambda at, kind, words: print(line(at, kind, words)))
    print(f"{mutant.name}: {mutant.what}\nseed {seed}: {outcome.violation or 'no violation'}")
    return 1 if outcome.violation is not None else 0


def _line(mutant: Mutant, fate: Fate) -> str:
    """The mutant's line of the table."""
    by = f"invariant {fate.invariant}" if fate.invariant else "no progress"
    last = f"python -m tests.sim.mutants --only {mutant.name} --seed {fate.seeds - 1}"
    if mutant.test:
        by, last = "a test", f"pytest {mutant.test}"
    elif fate.violation and fate.invariant not in mutant.invariants:
        last += f"  (rather by {mutant.invariants}: {fate.violation})"
    if not fate.violation:
        by, last = "nothing", f"SURVIVED: {mutant.what}"
    return f"{mutant.name:32}  {by:>12}  {fate.seeds:>5}  {last}"


def _table(names: list[str], seeds: int, jobs: int) -> int:
    began, killed, most, cpu = time.perf_counter(), 0, 0, 0.0
    print(f"{'mutant':32}  {'killed by':>12}  {'seeds':>5}  replay")
    # A process for each mutant, so that none can leave anything to another.
    with ProcessPoolExecutor(jobs, max_tasks_per_child=1) as pool:
        for fate in [pool.submit(hunt, name, seeds) for name in names]:
            found = fate.result()
            cpu, most, killed = cpu + found.cpu, max(most, found.seeds), killed + bool(found.violation)
            print(_line(MUTANTS[found.name], found), flush=True)
        # The unchanged code must pass as many seeds as the hardiest mutant survived.
        share = max(1, -(-most // jobs))
        controls = [pool.submit(hunt, "", share, first) for first in range(0, most, share)]
    broken = [control.result().violation for control in controls if control.result().violation]
    print(f"{'(the code as it is)':32}  {'-':>12}  {most:>5}  {broken[0] if broken else 'no violation'}")
    print(f"{killed} of {len(names)} killed; {time.perf_counter() - began:.0f} s, {cpu:.0f} s of CPU")
    return 1 if broken or killed < len(names) else 0


if __name__ == "__main__":
    sys.exit(main())
