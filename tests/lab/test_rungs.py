"""Scenarios on real processes end with the expected verdict, and their scores show why."""

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
from lab.rungs import RUNGS, scenarios_of
from lab.runner import Runner
from lab.shop import window

CHOSEN = ("get-then-del", "guarded/node-forgets", "fenced/all-faults", "segments")
"""One for each kind of fault and verdict. `make lab` runs all scenarios."""


def _run(plan: Plan, *names: str, stuck: tuple[str, ...] = ()) -> dict[str, Score]:
    """The scores by scenario. Scenarios in `stuck` run for a short time only."""

    async def main() -> list[Score]:
        async with Runner(plan) as runner:
            scores = await runner.run_all([scenario for name in names for scenario in scenarios_of(name)])
            runner.plan = replace(plan, seconds=1.5)
            return scores + await runner.run_all([scenario for name in stuck for scenario in scenarios_of(name)])

    return {score.scenario: score for score in asyncio.run(main())}


def _check_consistent(score: Score) -> None:
    """The verdict agrees with the other figures of the score."""
    assert score.verdict == score.expect, score.evidence
    assert score.oversold == max(0, score.sold + score.left - score.stock)
    if score.verdict == "oversold":
        assert score.overlaps
    if score.verdict == "stuck":
        assert score.left > 0
        assert score.stuck >= 1.0
    assert not score.broken


@pytest.mark.timeout(150)
def test_chosen_scenarios_end_as_expected(plan: Plan) -> None:
    scores = _run(plan, *CHOSEN, stuck=("setnx-expire",))
    for score in scores.values():
        _check_consistent(score)
    assert scores["setnx-expire/killed"].lost == 1
    assert "PTTL of -1" in scores["setnx-expire/killed"].evidence[0]
    assert any("removed the key" in text for text in scores["get-then-del/late-del"].evidence)
    # No order of the crowd got the lock beside the holder, although three nodes were free.
    guarded = scores["guarded/node-forgets"]
    assert "no other order" in guarded.evidence[0]
    assert not guarded.overlaps
    # Two paused holders wrote too late and were refused. Holders overlapped, without harm.
    assert scores["fenced/all-faults"].refused >= 2
    assert scores["fenced/all-faults"].overlaps
    assert any("released the lease that it had lost" in text for text in scores["fenced/all-faults"].evidence)
    assert {holder["stripe"] for holder in scores["segments/sale"].holders} == set(range(8))
    json.dumps([asdict(score) for score in scores.values()])


@pytest.mark.timeout(120)
def test_scenarios_on_postgresql_and_nginx(plan: Plan, database: str) -> None:
    plan = replace(plan, database=database, frontend="nginx" if nginx_found() else "built-in")
    scores = _run(plan, "no-lock", "fenced/all-faults")
    for score in scores.values():
        _check_consistent(score)


@pytest.mark.timeout(120)
def test_changed_scenarios_are_scored_separately(plan: Plan) -> None:
    async def killed_by_a_viewer(run: Run) -> None:
        await run.inject("kill")
        assert run.live()["injected"]
        run.start_crowd()

    async def stopped_by_a_viewer(run: Run) -> None:
        victim = await run.order(at="writing")  # before the crowd, which could sell everything in the meantime
        run.start_crowd()
        assert run.stop()
        await run.answered(victim)  # `stop` cancels this, and the order continues

    async def main() -> None:
        async with Runner(plan) as runner:
            rung, scenario = scenarios_of("fenced/sale")[0]
            (judged,) = await runner.run_all([(rung, scenario)])
            free = await runner.run_free(rung, scenario, stock=5, seconds=20.0)
            assert (free.free, free.injected, free.judged, free.lost) == (True, False, False, 0)
            assert (runner.scores, runner.unjudged) == ({judged.scenario: judged}, {judged.scenario: free})
            (injected,) = await runner.run_all([(rung, replace(scenario, fault=killed_by_a_viewer))])
            assert (injected.free, injected.injected, injected.judged, injected.lost) == (False, True, False, 1)
            assert (runner.scores, runner.unjudged) == ({judged.scenario: judged}, {judged.scenario: injected})
            (stopped,) = await runner.run_all([(rung, replace(scenario, fault=stopped_by_a_viewer))])
            assert (stopped.stopped, stopped.judged, stopped.oversold) == (True, False, 0)
            assert 0 < stopped.sold < plan.stock == stopped.sold + stopped.left
            assert runner.unjudged == {judged.scenario: stopped}
            await runner.run_all([(rung, scenario)])
            assert runner.unjudged == {}
            assert runner.scores[judged.scenario] is runner.history[-1]

    asyncio.run(main())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("name", "stripes"), [("lua/slow", 1), ("segments/sale", 8)])
def test_redis_keys_show_stock_during_sale(plan: Plan, name: str, stripes: int) -> None:
    async def shown(run: Run) -> tuple[int, int]:
        """The stock by the keys, and by the shop's answer."""
        values = [await run.ask("GET", key) for key in window(stripes)]
        async with aiohttp.ClientSession() as session, session.get(f"{run.environment.frontend.url}/stock") as answer:
            return sum(int(str(value, "ascii") if isinstance(value, bytes) else str(value)) for value in values), int(
                await answer.text()
            )

    async def compare(run: Run) -> None:
        assert await run.ask("EXISTS", "num") == 1
        assert await shown(run) == (plan.stock, plan.stock)
        victim = await run.order(at="writing")
        run.go(victim)
        await victim.answer
        assert await shown(run) == (plan.stock - 1, plan.stock - 1)
        run.start_crowd()
        await run.crowd_finished()
        assert await shown(run) == (0, 0)

    async def main() -> Score:
        async with Runner(plan) as runner:
            rung, scenario = scenarios_of(name)[0]
            (score,) = await runner.run_all([(rung, replace(scenario, fault=compare, ttl=20.0))])
            return score

    assert asyncio.run(main()).sold == plan.stock


def test_rungs_have_stories_and_unique_scenario_names() -> None:
    names = [f"{rung.name}/{scenario.name}" for rung in RUNGS for scenario in rung.scenarios]
    assert len(set(names)) == len(names)
    for rung in RUNGS:
        assert len(rung.story()) > 100
        assert f"class {rung.__name__}" in rung.source()
        assert all(scenario.fault_text for scenario in rung.scenarios)
        assert len(rung.source().splitlines()) <= 75


@pytest.mark.timeout(300)
@pytest.mark.skipif("HANDFAST_ALL_RUNGS" not in os.environ, reason="all rungs are run by `make lab`")
def test_all_rungs() -> None:
    scores = _run(Plan(frontend="nginx" if nginx_found() else "built-in"), "all")
    for score in scores.values():
        _check_consistent(score)
    assert scores["segments/sale"].rate > scores["fenced/sale"].rate
