"""Rungs that must fail do, rungs that must hold do, on real processes; what is seen is in the data."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, replace

import aiohttp
import pytest

from lab.environment import Plan
from lab.frontend import nginx_found
from lab.ledger import Score
from lab.run import Run
from lab.rungs import LADDER, scenarios_of
from lab.runner import Runner
from lab.shop import window

CHOSEN = ("get-then-del", "guarded/node-forgets", "fenced/all-faults", "segments")
"""One for each kind of fault and of outcome; all of them are run by `make lab`."""


def _run(plan: Plan, *names: str, stuck: tuple[str, ...] = ()) -> dict[str, Score]:
    """Of those that end in a standstill a short while is enough."""

    async def main() -> list[Score]:
        async with Runner(plan) as runner:
            scores = await runner.run_all([scenario for name in names for scenario in scenarios_of(name)])
            runner.plan = replace(plan, seconds=1.5)
            return scores + await runner.run_all([scenario for name in stuck for scenario in scenarios_of(name)])

    return {score.scenario: score for score in asyncio.run(main())}


def _is_borne_out(score: Score) -> None:
    """The verdict follows from what else was seen."""
    assert score.verdict == score.expect, score.evidence
    assert score.oversold == max(0, score.sold + score.left - score.stock)
    if score.verdict == "oversold":
        assert score.overlaps
    if score.verdict == "stuck":
        assert score.left > 0
        assert score.stuck >= 1.0
    assert not score.broken


@pytest.mark.timeout(150)
def test_chosen_acts_end_as_the_story_says(plan: Plan) -> None:
    scores = _run(plan, *CHOSEN, stuck=("setnx-expire",))
    for score in scores.values():
        _is_borne_out(score)
    assert scores["setnx-expire/killed"].lost == 1
    assert "PTTL of -1" in scores["setnx-expire/killed"].evidence[0]
    assert any("removed the key" in text for text in scores["get-then-del/late-del"].evidence)
    # Nobody of the crowd got in beside the holder, although three nodes were free.
    guarded = scores["guarded/node-forgets"]
    assert "nobody else" in guarded.evidence[0]
    assert not guarded.overlaps
    # Two sleepers wrote too late and were refused; two thought that they held the lock, and no harm was done.
    assert scores["fenced/all-faults"].refused >= 2
    assert scores["fenced/all-faults"].overlaps
    assert any("let go of the lease that it had lost" in text for text in scores["fenced/all-faults"].evidence)
    assert {holder["stripe"] for holder in scores["segments/sale"].holders} == set(range(8))
    json.dumps([asdict(score) for score in scores.values()])


@pytest.mark.timeout(120)
def test_the_same_on_postgresql_behind_nginx(plan: Plan, database: str) -> None:
    plan = replace(plan, database=database, frontend="nginx" if nginx_found() else "built-in")
    scores = _run(plan, "no-lock", "fenced/all-faults")
    for score in scores.values():
        _is_borne_out(score)


@pytest.mark.timeout(120)
def test_a_run_that_is_not_the_act_is_scored_apart(plan: Plan) -> None:
    async def killed_by_a_viewer(run: Run) -> None:
        await run.strike("kill")
        assert run.live()["struck"]
        run.open_doors()

    async def main() -> None:
        async with Runner(plan) as runner:
            rung, scenario = scenarios_of("fenced/sale")[0]
            (judged,) = await runner.run_all([(rung, scenario)])
            free = await runner.run_free(rung, scenario, stock=5, seconds=20.0)
            assert (free.free, free.struck, free.judged, free.lost) == (True, False, False, 0)
            assert (runner.scores, runner.free) == ({judged.scenario: judged}, {judged.scenario: free})
            (struck,) = await runner.run_all([(rung, replace(scenario, fault=killed_by_a_viewer))])
            assert (struck.free, struck.struck, struck.judged, struck.lost) == (False, True, False, 1)
            assert (runner.scores, runner.free) == ({judged.scenario: judged}, {judged.scenario: struck})
            await runner.run_all([(rung, scenario)])
            assert runner.free == {}
            assert runner.scores[judged.scenario] is runner.history[-1]

    asyncio.run(main())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "stripes"), [("lua/slow", 1), ("segments/sale", 8)])
def test_the_stock_is_a_redis_key_from_the_opening_to_the_end(plan: Plan, name: str, stripes: int) -> None:
    async def shown(run: Run) -> tuple[int, int]:
        """By the keys, and by the shop."""
        values = [await run.ask("GET", key) for key in window(stripes)]
        async with aiohttp.ClientSession() as session, session.get(f"{run.environment.frontend.url}/stock") as answer:
            return sum(int(str(value, "ascii") if isinstance(value, bytes) else str(value)) for value in values), int(
                await answer.text()
            )

    async def looks(run: Run) -> None:
        assert await run.ask("EXISTS", "num") == 1
        assert await shown(run) == (plan.stock, plan.stock)
        victim = await run.order(at="writing")
        run.go(victim)
        await victim.answer
        assert await shown(run) == (plan.stock - 1, plan.stock - 1)
        run.open_doors()
        await run.crowd_gone()
        assert await shown(run) == (0, 0)

    async def main() -> Score:
        async with Runner(plan) as runner:
            rung, scenario = scenarios_of(name)[0]
            (score,) = await runner.run_all([(rung, replace(scenario, fault=looks, ttl=20.0))])
            return score

    assert asyncio.run(main()).sold == plan.stock


def test_every_rung_has_a_story_and_acts_with_names_of_their_own() -> None:
    names = [f"{rung.name}/{scenario.name}" for rung in LADDER for scenario in rung.scenarios]
    assert len(set(names)) == len(names)
    for rung in LADDER:
        assert len(rung.story()) > 100
        assert f"class {rung.__name__}" in rung.source()
        assert all(scenario.fault_text for scenario in rung.scenarios)
        assert len(rung.source().splitlines()) <= 75


@pytest.mark.timeout(300)
@pytest.mark.skipif("HANDFAST_LADDER" not in os.environ, reason="the whole ladder is run by `make lab`")
def test_the_whole_ladder() -> None:
    scores = _run(Plan(frontend="nginx" if nginx_found() else "built-in"), "all")
    for score in scores.values():
        _is_borne_out(score)
    assert scores["segments/sale"].rate > scores["fenced/sale"].rate
