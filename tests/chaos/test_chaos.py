"""The short set: a scenario or two of each kind of fault, with real servers and processes. `make chaos` runs all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from handfast.testing import Server
from tests.chaos.catalogue import SCENARIOS
from tests.chaos.environment import OURS, Environment
from tests.chaos.scenario import Outcome, Scenario, play

SECONDS = 0.5
SHORT = (
    "paused while acquiring",
    "paused between check and write",
    "empty restart of the node that two majorities share",
    "empty restart of a majority",
    "clock of the node that two majorities share steps",
    "clocks of a majority step by a ttl",
    "holder cut off from a majority",
    "failover with an unreplicated lock",
)


@pytest.fixture(scope="module")
def registers() -> Iterator[Server]:
    with Server() as server:
        yield server


def played(what: Scenario, registers: Server) -> Outcome:
    if reason := what.inapplicable(OURS):
        pytest.skip(reason)
    return play(what, OURS, registers, SECONDS)


@pytest.mark.parametrize("name", SHORT)
def test_guarantees_hold_in_every_scenario(name: str, registers: Server) -> None:
    outcome = played(SCENARIOS[name], registers)
    assert not outcome.bad, "\n".join(outcome.bad)
    assert outcome.injected > 0


def test_scenario_without_guard_finds_two_holders(registers: Server) -> None:
    """The scenarios can fail: the same faults, and the protection turned off."""

    def unguarded(env: Environment) -> None:
        env.options["guard"] = False
        guarded.run(env)

    guarded = SCENARIOS["empty restart of the node that two majorities share"]
    outcome = played(replace(guarded, run=unguarded), registers)
    assert outcome.overlaps == 1
    assert any("overlap" in each for each in outcome.bad)


def test_scenario_without_effective_faults_fails(registers: Server) -> None:
    def uneventful(env: Environment) -> None:
        env.servers(1)
        env.takes_over(env.member())

    outcome = played(replace(SCENARIOS["paused between check and write"], run=uneventful), registers)
    assert outcome.bad == ["nothing would have been lost without tokens: the faults had no effect"]


def test_every_fault_has_a_scenario() -> None:
    """The numbers are in the list in docs/evidence.md."""
    covered = {number for each in SCENARIOS.values() for number in each.faults}
    simulated_only = {18, 39}
    assert covered == set(range(1, 42)) - simulated_only
