"""Server clocks that step."""

from __future__ import annotations

import contextlib

from tests.chaos.crew import WorkerError
from tests.chaos.node_faults import hold_on_three, restart
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.stage import MODES, TTL, WAIT, Q, Stage

HOUR = 3600.0


@scenario("clock of one node steps by a ttl", 14, quorum=True, clock=True)
def one_clock_steps(stage: Stage) -> None:
    stage.lasting()
    clocks = stage.clocked(5)
    stage.open()
    holder, rival = stage.member("asyncio"), stage.member()
    holder.ask("acquire", WAIT)
    holder.ask("read")
    rival.tell("acquire", WAIT)
    for clock, node in list(zip(clocks, stage.nodes, strict=True))[:2]:
        with contextlib.suppress(WorkerError):
            holder.ask("renew")
        stage.step(clock, node, 1.5 * stage.ttl)
        stage.lapse(stage.ttl / 3)
    stage.expect(not rival.audible(), "nobody else has got it")
    stage.expect(holder.ask("check"), "it is still held")
    stage.uses(holder)
    rival.hear()
    stage.uses(rival)


@scenario("clocks of a majority step by a ttl", 15, promise=TOKENS, quorum=True, clock=True)
def majority_of_clocks_steps(stage: Stage) -> None:
    """All keys of a lease end early: a second holder comes, and only tokens can save the data."""
    clocks = stage.clocked(5)
    stage.open()
    for mode in MODES:
        holder, rival = stage.member(mode), stage.member()
        holder.ask("acquire", WAIT)
        holder.ask("read")
        rival.tell("acquire", WAIT)
        for clock in clocks[:3]:
            clock.step(1.5 * TTL)
            stage.fault("step of a clock")
        rival.hear()
        stage.uses(rival)
        stage.writes_late(holder)


@scenario("clock of the node that two majorities share steps", 14, quorum=True, clock=True)
def shared_clock_steps(stage: Stage) -> None:
    """A holds on a, b, c; on c its key ends early; B, who has known the nodes for longer, wants c, d, e."""
    clocks = stage.clocked(5)
    stage.lasting()
    stage.open()
    holder, rival = stage.member("asyncio"), stage.member()
    rival.ask("acquire", WAIT, stage.names[1])
    stage.lets_go(rival)
    hold_on_three(stage, holder, stage.nodes)
    stage.step(clocks[2], stage.nodes[2], 1.5 * stage.ttl)
    stage.takes_over(rival)
    stage.finishes(holder)


@scenario("clock of one node steps, many users", 14, quorum=True, clock=True, peers=False)
def one_clock_steps_in_a_crowd(stage: Stage) -> None:
    clocks = stage.clocked(5)
    stage.open()
    stage.crowd(think=0.1)
    for clock, node in zip(clocks[:3], stage.nodes, strict=False):
        stage.step(clock, node, 1.5 * TTL)
        stage.lapse(Q + 0.3)
    stage.recovers()


@scenario("clock set back by an hour, the holder dead", 16, clock=True)
def clock_set_back(stage: Stage) -> None:
    """The key of the dead holder would stay for an hour."""
    (clock,) = stage.clocked(1)
    stage.open(guard=True)
    rival = stage.member()
    stage.takes_over(rival)
    holder = stage.member("asyncio")
    holder.ask("acquire", WAIT)
    stage.step(clock, stage.nodes[0], -HOUR)
    stage.kill(holder)
    stage.takes_over(rival)


@scenario("clocks of a majority set back by an hour, the holder dead", 16, quorum=True, clock=True, peers=False)
def majority_set_back(stage: Stage) -> None:
    clocks = stage.clocked(3)
    stage.open()
    rival = stage.member("asyncio")
    stage.takes_over(rival)
    holder = stage.member()
    holder.ask("acquire", WAIT)
    for clock, node in list(zip(clocks, stage.nodes, strict=True))[:2]:
        stage.step(clock, node, -HOUR)
    stage.kill(holder)
    stage.takes_over(rival)


@scenario("clock steps just after a restart", 17, quorum=True, clock=True, peers=False)
def step_after_restart(stage: Stage) -> None:
    """By its own clock the node's quarantine is over at once."""
    clocks = stage.clocked(5)
    stage.open()
    holder, rival = stage.member("asyncio"), stage.member()
    rival.ask("acquire", WAIT, stage.names[1])
    hold_on_three(stage, holder, stage.nodes)
    restart(stage, stage.nodes[2])
    if stage.ours:
        # Renewals of the other lock meet the new incarnation.
        stage.until(lambda: stage.nodes[2].command("EXISTS", "handfast:guard"), "the quarantine has begun")
    stage.step(clocks[2], stage.nodes[2], HOUR)
    stage.lets_go(rival)
    stage.takes_over(rival)
    stage.finishes(holder)
