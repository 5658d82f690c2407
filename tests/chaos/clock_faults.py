"""Server clocks that step."""

from __future__ import annotations

import contextlib

from tests.chaos.environment import MODES, TTL, WAIT, Environment, Q
from tests.chaos.node_faults import hold_on_three, restart
from tests.chaos.scenario import TOKENS, scenario
from tests.chaos.workers import WorkerError

HOUR = 3600.0


@scenario("clock of one node steps by a ttl", 14, quorum=True, clock=True)
def one_clock_steps(env: Environment) -> None:
    env.lasting()
    clocks = env.clocked(5)
    env.open()
    holder, rival = env.member("asyncio"), env.member()
    holder.ask("acquire", WAIT)
    holder.ask("read")
    rival.tell("acquire", WAIT)
    for clock, node in list(zip(clocks, env.nodes, strict=True))[:2]:
        with contextlib.suppress(WorkerError):
            holder.ask("renew")
        env.step(clock, node, 1.5 * env.ttl)
        env.lapse(env.ttl / 3)
    env.expect(not rival.audible(), "nobody else has got it")
    env.expect(holder.ask("check"), "it is still held")
    env.uses(holder)
    rival.hear()
    env.uses(rival)


@scenario("clocks of a majority step by a ttl", 15, promise=TOKENS, quorum=True, clock=True)
def majority_of_clocks_steps(env: Environment) -> None:
    """All keys of a lease expire early: there is a second holder, and only tokens protect the data."""
    clocks = env.clocked(5)
    env.open()
    for mode in MODES:
        holder, rival = env.member(mode), env.member()
        holder.ask("acquire", WAIT)
        holder.ask("read")
        rival.tell("acquire", WAIT)
        for clock in clocks[:3]:
            clock.step(1.5 * TTL)
            env.fault("step of a clock")
        rival.hear()
        env.uses(rival)
        env.writes_late(holder)


@scenario("clock of the node that two majorities share steps", 14, quorum=True, clock=True)
def shared_clock_steps(env: Environment) -> None:
    """A holds on a, b and c. On c its key expires early. B was connected before, and acquires on c, d and e."""
    clocks = env.clocked(5)
    env.lasting()
    env.open()
    holder, rival = env.member("asyncio"), env.member()
    rival.ask("acquire", WAIT, env.names[1])
    env.tries_to_release(rival)
    hold_on_three(env, holder, env.nodes)
    env.step(clocks[2], env.nodes[2], 1.5 * env.ttl)
    env.takes_over(rival)
    env.finishes(holder)


@scenario("clock of one node steps, many users", 14, quorum=True, clock=True, peers=False)
def one_clock_steps_in_a_crowd(env: Environment) -> None:
    clocks = env.clocked(5)
    env.open()
    env.start_workers(think=0.1)
    for clock, node in zip(clocks[:3], env.nodes, strict=False):
        env.step(clock, node, 1.5 * TTL)
        env.lapse(Q + 0.3)
    env.recovers()


@scenario("clock set back by an hour, the holder dead", 16, clock=True)
def clock_set_back(env: Environment) -> None:
    """The key of the dead holder would stay for an hour."""
    (clock,) = env.clocked(1)
    env.open(guard=True)
    rival = env.member()
    env.takes_over(rival)
    holder = env.member("asyncio")
    holder.ask("acquire", WAIT)
    env.step(clock, env.nodes[0], -HOUR)
    env.kill(holder)
    env.takes_over(rival)


@scenario("clocks of a majority set back by an hour, the holder dead", 16, quorum=True, clock=True, peers=False)
def majority_set_back(env: Environment) -> None:
    clocks = env.clocked(3)
    env.open()
    rival = env.member("asyncio")
    env.takes_over(rival)
    holder = env.member()
    holder.ask("acquire", WAIT)
    for clock, node in list(zip(clocks, env.nodes, strict=True))[:2]:
        env.step(clock, node, -HOUR)
    env.kill(holder)
    env.takes_over(rival)


@scenario("clock steps just after a restart", 17, quorum=True, clock=True, peers=False)
def step_after_restart(env: Environment) -> None:
    """The node's own clock says that its quarantine is over at once."""
    clocks = env.clocked(5)
    env.open()
    holder, rival = env.member("asyncio"), env.member()
    rival.ask("acquire", WAIT, env.names[1])
    hold_on_three(env, holder, env.nodes)
    restart(env, env.nodes[2])
    if env.ours:
        # Renewals of the other lock reach the new incarnation.
        env.until(lambda: env.nodes[2].command("EXISTS", "handfast:guard"), "the quarantine has begun")
    env.step(clocks[2], env.nodes[2], HOUR)
    env.tries_to_release(rival)
    env.takes_over(rival)
    env.finishes(holder)
