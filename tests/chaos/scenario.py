"""A scenario: its faults, its promises, and its outcome.

Under no fault may these happen: tokens out of order or given twice, a fenced register that lost an update or accepted a
smaller token, a lock that stays stuck, an unexpected exception. If the assumptions hold, EXCLUSION is promised too: no
two holders at once. If a fault breaks an assumption, only the TOKENS are promised, and the scenario has to show that data
would have been lost without them.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from handfast.testing import Server
from handfast.testing.clock import missing
from handfast.testing.history import History, Violation
from tests.chaos.environment import OURS, Environment
from tests.chaos.peers import KINDS
from tests.chaos.workers import WorkerError

__all__ = ["EXCLUSION", "SCENARIOS", "TOKENS", "Outcome", "Scenario", "play", "scenario"]

EXCLUSION: Final = "exclusion"
TOKENS: Final = "tokens"


@dataclass(frozen=True)
class Scenario:
    """`faults` are the numbers of docs/evidence.md."""

    name: str
    faults: tuple[int, ...]
    run: Callable[[Environment], None]
    promise: str = EXCLUSION
    peers: bool = True
    """Whether the peers can run it."""
    quorum: bool = False
    sure: bool = True
    """If only tokens are promised: whether every run shows what would be lost without them."""
    clock: bool = False
    """It sets clocks, which needs a C compiler."""

    def inapplicable(self, lock: str) -> str:
        """Why this lock cannot run it; "" if it can."""
        if self.clock and missing():
            return missing()
        if lock == OURS:
            return ""
        if not self.peers:
            return "only of handfast"
        return "locks on one node only" if self.quorum and not KINDS[lock].quorum else ""


SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(
    name: str, *faults: int, **more: Any
) -> Callable[[Callable[[Environment], None]], Callable[[Environment], None]]:
    def register(run: Callable[[Environment], None]) -> Callable[[Environment], None]:
        assert name not in SCENARIOS, name
        SCENARIOS[name] = Scenario(name, faults, run, **more)
        return run

    return register


@dataclass
class Outcome:
    """The outcome of one scenario with one lock."""

    scenario: str
    lock: str
    promise: str
    faults: dict[str, int]
    operations: int
    """Locks taken and values written."""
    found: dict[str, int]
    """Violations by kind, expected or not, without those of fenced registers."""
    fenced: int
    """Violations of fenced registers; always bad."""
    refused: int
    """Writes that a fenced register refused."""
    unavailable: float
    """The longest time in which a wanted lock had no holder."""
    stuck: list[str]
    errors: int
    seconds: float
    aborted: str = ""
    """The error after which the scenario could not continue."""
    bad: list[str] = field(default_factory=list)
    """Broken promises."""

    @property
    def injected(self) -> int:
        return sum(self.faults.values())

    @property
    def overlaps(self) -> int:
        return self.found.get("overlap", 0)

    @property
    def lost(self) -> int:
        """Updates that a register without a fence has lost."""
        return self.found.get("lost update", 0) + self.found.get("late write", 0)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def play(what: Scenario, lock: str, registers: Server, seconds: float) -> Outcome:
    """Run a scenario once."""
    env, began = Environment(lock, registers, seconds), time.monotonic()
    try:
        try:
            what.run(env)
        except (TimeoutError, WorkerError, AssertionError) as error:
            env.aborted = f"it did not come to its end: {error}"
            env.expect(False, env.aborted)
        finally:
            env.close()
        return _judge(what, env, time.monotonic() - began)
    finally:
        shutil.rmtree(env.folder, ignore_errors=True)


def _judge(what: Scenario, env: Environment, seconds: float) -> Outcome:
    history = env.history()
    violations = history.violations()
    outcome = Outcome(
        scenario=what.name,
        lock=env.lock,
        promise=what.promise,
        faults=dict(env.faults),
        operations=len(history.holdings) + len(history.writes),
        found=dict(Counter(each.kind for each in violations if not _fenced(each))),
        fenced=sum(map(_fenced, violations)),
        refused=sum(each.order is None for each in history.writes),
        unavailable=_unavailable(history, env),
        stuck=env.stuck,
        errors=env.counts["errors"],
        seconds=seconds,
        aborted=env.aborted,
    )
    if env.ours:
        outcome.bad += env.complaints
        outcome.bad += [str(each) for each in violations if not _expected(each, what.promise)]
        outcome.bad += [f"stuck: {name}" for name in env.stuck]
        if what.promise == TOKENS and what.sure and not (outcome.refused and outcome.lost):
            outcome.bad.append("nothing would have been lost without tokens: the faults had no effect")
    return outcome


def _fenced(violation: Violation) -> bool:
    return violation.where.endswith(":fenced")


def _expected(violation: Violation, promise: str) -> bool:
    if _fenced(violation) or violation.kind in ("order", "duplicate"):
        return False
    # A register that does not check tokens cannot be protected from a write after the end of a lease.
    return violation.kind == "late write" or promise == TOKENS


def _unavailable(history: History, env: Environment) -> float:
    """The longest idle time of the locks that were wanted all the time; 0 if there were none."""
    if not env.began:
        return 0.0
    names: Sequence[str] = [name for name in history.names if name in env.names]
    return max(history.idle(name, env.began, env.ended or env.began) for name in names)
