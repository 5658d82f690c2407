"""The simulation: no seed breaks an invariant, the same seed is the same history, and a bug does not go unseen."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from handfast import lua
from handfast.core import group, guard
from handfast.testing.sim import run
from handfast.testing.sim.__main__ import main, report
from handfast.testing.sim.faults import Plan
from handfast.testing.sim.scripts import SCRIPTS
from handfast.testing.sim.store import Store

SEEDS = 160
CHUNK = 15

QUORUM = Plan(
    nodes=3, guard=True, clients=4, users=1, names=("a", "b", "c", "d"), ttl=0.4, max_ttl=1.0, fence=True, renew=True,
    fair=False, cohort=0, work=0.1, think=1.0, faults=("partition", "restart", "flush", "wrong wall clocks"),
)  # fmt: skip
"""Nodes that forget one after the other, while names rest and clients disagree about the date."""
FAIR = QUORUM._replace(
    nodes=1, guard=False, names=("a",), fair=True, work=0.5, think=0.3, faults=("slow network", "loss", "partition")
)
"""Hand-overs whose news comes late."""


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_no_seed_breaks_an_invariant(first: int) -> None:
    broken = [outcome for outcome in map(run, range(first, first + CHUNK)) if outcome.violation is not None]
    assert not broken, "\n\n".join(map(report, broken))


@pytest.mark.parametrize("plan", [QUORUM, FAIR], ids=["forgetful quorum", "late hand-overs"])
def test_no_seed_breaks_an_invariant_in_a_storm_of_one_kind(plan: Plan) -> None:
    broken = [outcome for outcome in (run(seed, plan) for seed in range(8)) if outcome.violation is not None]
    assert not broken, "\n\n".join(map(report, broken))


# -- the same seed is the same history ---------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 7])
def test_the_same_seed_is_the_same_history(seed: int) -> None:
    first, second = run(seed), run(seed)
    assert first.digest == second.digest
    assert first.recent == second.recent


def test_another_process_gets_the_same_history() -> None:
    """Where sets and hashes come in another order."""
    command = [sys.executable, "-m", "handfast.testing.sim", "--seed", "3"]
    said = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": each}, capture_output=True, check=True).stdout
        for each in ("1", "2")
    ]
    assert said[0] == said[1]
    assert run(3).digest.encode() in said[0]


def test_another_seed_is_another_history() -> None:
    assert run(1).digest != run(2).digest


def test_a_seed_can_be_replayed_with_everything_that_happens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "2", "--trace"]) == 0
    shown = capsys.readouterr().out
    assert "wants" in shown
    assert "granted" in shown
    assert run(2).digest in shown


# -- a suite that finds nothing proves nothing -------------------------------------------------------------------------


def broken_invariant(plan: Plan, seeds: int = 12) -> int:
    """The number of the first invariant that breaks; 0 if none does."""
    found = (run(seed, plan).violation for seed in range(seeds))
    return next((getattr(violation, "number", -1) for violation in found if violation is not None), 0)


def test_a_majority_that_is_none_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "majority", lambda nodes: nodes // 2)
    assert broken_invariant(QUORUM) in (1, 5)


def test_a_release_that_asks_for_no_owner_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def release(at: Store, keys: list[bytes], args: list[bytes]) -> int:
        at.drop(keys[0], args[0])
        return 1

    monkeypatch.setitem(SCRIPTS, lua.SHA["release"], ("release", release))
    assert broken_invariant(QUORUM) == 8


def test_counters_that_are_not_repaired_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(*_: Any) -> int:
        return 0

    monkeypatch.setattr(guard, "floor_for", nothing)
    assert broken_invariant(QUORUM) in (2, 3, 4)


def test_a_quarantine_that_is_too_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "period", lambda group: 0.0)
    assert broken_invariant(QUORUM) in (1, 5, 10)
