"""Rungs that must fail do, rungs that must hold do, on real processes; what is seen is in the data."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import asdict, replace

import pytest

from handfast.lab.conductor import Conductor
from handfast.lab.front import nginx_found
from handfast.lab.ledger import Score
from handfast.lab.rungs import LADDER, acts_of
from handfast.lab.stage import Plan

CHOSEN = ("get-then-del", "guarded/node-forgets", "fenced/all-faults", "segments")
"""One for each kind of fault and of outcome; all of them are played by `make lab`."""


def _play(plan: Plan, *names: str, stuck: tuple[str, ...] = ()) -> dict[str, Score]:
    """Of those that end in a standstill a short while is enough."""

    async def main() -> list[Score]:
        async with Conductor(plan) as conductor:
            scores = await conductor.play([act for name in names for act in acts_of(name)])
            conductor.plan = replace(plan, seconds=1.5)
            return scores + await conductor.play([act for name in stuck for act in acts_of(name)])

    return {score.act: score for score in asyncio.run(main())}


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
    scores = _play(plan, *CHOSEN, stuck=("setnx-expire",))
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
    assert {holder["stripe"] for holder in scores["segments/sale"].holders} == set(range(8))
    json.dumps([asdict(score) for score in scores.values()])


@pytest.mark.timeout(120)
def test_the_same_on_postgresql_behind_nginx(plan: Plan, database: str) -> None:
    plan = replace(plan, database=database, front="nginx" if nginx_found() else "built-in")
    scores = _play(plan, "no-lock", "fenced/all-faults")
    for score in scores.values():
        _is_borne_out(score)


def test_every_rung_has_a_story_and_acts_with_names_of_their_own() -> None:
    names = [f"{rung.name}/{act.name}" for rung in LADDER for act in rung.acts]
    assert len(set(names)) == len(names)
    for rung in LADDER:
        assert len(rung.story()) > 100
        assert f"class {rung.__name__}" in rung.source()
        assert all(act.fault_text for act in rung.acts)
        assert len(rung.source().splitlines()) <= 75


@pytest.mark.timeout(300)
@pytest.mark.skipif("HANDFAST_LADDER" not in os.environ, reason="the whole ladder is played by `make lab`")
def test_the_whole_ladder() -> None:
    scores = _play(Plan(front="nginx" if nginx_found() else "built-in"), "all")
    for score in scores.values():
        _is_borne_out(score)
    assert scores["segments/sale"].rate > scores["fenced/sale"].rate
