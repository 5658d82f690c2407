"""The simulation notices known bugs. This runs a few of them, `make mutants` runs all."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from handfast.core.votes import majority
from sim import run
from sim.plan import DEAD_VOTES, draw
from tests.sim.mutants import MUTANTS, hunt, main

ROOT = Path(__file__).parents[2]
CHEAP = ("majority-off-by-one", "release-of-anybody's", "no-rollback", "quarantine-too-short")
"""Noticed within a few seeds."""


@pytest.mark.parametrize("name", CHEAP)
def test_a_bug_is_noticed_by_the_invariant_that_it_breaks(name: str) -> None:
    fate = hunt(name, 20)
    assert fate.invariant in MUTANTS[name].invariants


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_changes_what_it_names_and_leaves_nothing_behind(name: str) -> None:
    mutant = MUTANTS[name]
    before = {function: function.__code__ for function in mutant.functions()}
    assert before or mutant.scripts()
    with mutant.alive():
        for function, code in before.items():
            assert (function.__code__.co_code, function.__code__.co_consts, function.__code__.co_names) != (
                code.co_code,
                code.co_consts,
                code.co_names,
            )
    assert {function: function.__code__ for function in mutant.functions()} == before


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if mutant.test])
def test_a_test_that_a_mutant_names_exists(name: str) -> None:
    """`make mutants` runs it with the mutant on."""
    file, _, test = MUTANTS[name].test.partition("::")
    assert re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_half_of_the_plans_with_dead_votes_show_a_repair_that_comes_too_early() -> None:
    """Few seeds have such a plan, so most of them must show the bug. Otherwise the theme is of no use any more."""
    plans = {seed: draw(Random(f"plan {seed}")) for seed in range(200)}
    seeds = [seed for seed, plan in plans.items() if set(DEAD_VOTES.faults) <= set(plan.faults) and not plan.threads]
    assert len(seeds) > 5
    with MUTANTS["repair-before-Q"].alive():
        violations = [run(seed, plans[seed], with_digest=False).violation for seed in seeds]
    assert sum(getattr(violation, "number", 0) == 2 for violation in violations) >= len(seeds) / 2


def test_every_module_that_imported_a_function_runs_its_mutant() -> None:
    with MUTANTS["majority-off-by-one"].alive():
        assert majority(5) == 2
    assert majority(5) == 3


def test_a_mutant_whose_code_has_gone_is_an_error() -> None:
    function, _, new = MUTANTS["no-rollback"].changes[0]
    with (
        pytest.raises(LookupError, match="occurs 0 times"),
        MUTANTS["no-rollback"]._replace(changes=((function, "not there", new),)).alive(),
    ):
        pass


def test_a_kill_can_be_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    fate = hunt("majority-off-by-one", 20)
    assert main(["--only", "majority-off-by-one", "--seed", str(fate.seeds - 1)]) == 1
    assert fate.violation in capsys.readouterr().out
    assert run(fate.seeds - 1).violation is None
