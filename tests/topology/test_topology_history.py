"""Many processes under repeated failovers and resharding, and the history checker's verdict.

In all of them tokens grow, and a register that checks them loses no update. If a grant waits for its copies, or no
replica without it is promoted, no two clients hold a lock at once. With HANDFAST_LONG=1 each test takes a minute.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from handfast.testing import Cluster, SentinelGroup, Server, available
from handfast.testing.history import now
from tests.chaos.environment import OURS, Environment
from tests.support.topologies import LONG_RUN, is_running, long_only, sentinel_group

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    pytest.mark.timeout(300),
]

LONG = 60.0
"""Seconds of faults in the long version; in the short one each fault comes once or twice."""


@contextmanager
def workers_on(url: str, registers: Server, **options: Any) -> Iterator[Environment]:
    """Four processes at work under two locks, threads and tasks; all of them served again at the end."""
    env = Environment(OURS, registers, LONG)
    env.urls = [url]
    env.options |= options
    try:
        env.start_workers(4)
        yield env
        env.recovers(within=20.0)
    finally:
        env.close()


def check(env: Environment, *, exclusion: bool = True) -> None:
    """No violation; without `exclusion` a lock may have been held twice."""
    history = env.history()
    assert env.stuck == []
    assert env.complaints == []
    tolerated = {"late write"} if exclusion else {"late write", "lost update", "overlap"}
    bad = [
        str(each)
        for each in history.violations()
        if each.kind not in tolerated or (each.where.endswith(":fenced") and each.kind != "overlap")
    ]
    assert bad == [], dict(env.faults)
    assert len(history.holdings) > 50, "else this shows nothing"
    assert any(each.order for each in history.writes)


def strike(env: Environment, *faults: Callable[[], str]) -> None:
    """One of them; in a long run one after the other."""
    end = time.monotonic() + LONG
    while not env.faults or (LONG_RUN and time.monotonic() < end):
        env.fault(random.choice(faults)())


# -- Sentinel ----------------------------------------------------------------------------------------------------------


class SentinelFaults:
    """The faults of the masters of a group."""

    def __init__(self, group: SentinelGroup, env: Environment) -> None:
        self.group, self.env = group, env

    def _replaced(self, old: Server) -> None:
        self.group.wait_replaced(old)
        old.resume()
        if not is_running(old):
            old.restart()
        if LONG_RUN:  # more is to come
            self.group.heal()
            self.env.await_all(self.env.names, now())

    def kill(self) -> str:
        self._replaced(self.group.kill_master())
        return "kill -9 of the master"

    def stop(self) -> str:
        old = self.group.master
        old.pause()
        self._replaced(old)
        return "SIGSTOP of the master"

    def ask(self) -> str:
        old = self.group.master
        self.group.failover()
        self._replaced(old)
        return "SENTINEL FAILOVER"

    def lag_and_ask(self) -> str:
        self.group.cut()
        self.env.await_all(self.env.names, now())
        return self.ask() + " to a replica that is behind"


@pytest.fixture
def registers(one: Server) -> Server:
    """The data that the locks protect: on a server without faults."""
    return one


def test_no_two_holders_under_sentinel_with_replicas_option(registers: Server) -> None:
    with sentinel_group() as group, workers_on(group.url, registers, replicas=1) as env:
        faults = SentinelFaults(group, env)
        strike(env, faults.kill, faults.stop, faults.ask)
    check(env)


@long_only
def test_tokens_protect_data_under_sentinel_without_replicas_option(registers: Server) -> None:
    """The replicas are behind when the master dies: they have missed the last grants, and grant the locks again."""
    with sentinel_group() as group, workers_on(group.url, registers) as env:
        strike(env, SentinelFaults(group, env).lag_and_ask)
    check(env, exclusion=False)


# -- Cluster -----------------------------------------------------------------------------------------------------------


def reshard(cluster: Cluster, name: str, pause: float) -> str:
    """Move the slot of a lock to another master, key by key."""
    slot = cluster.slot_of(f"handfast:{{{name}}}")
    source = cluster.owner(slot)
    with cluster.moving(slot, random.choice([each for each in cluster.masters if each is not source])) as move:
        for _ in range(3):
            move.step()
            time.sleep(pause * random.random())  # the time that a move takes
    return "slots moved"


def test_no_two_holders_while_cluster_is_resharded(sharded: Cluster, registers: Server) -> None:
    """And its shards change their masters by planned failovers, which lose nothing."""
    with workers_on(sharded.url, registers) as env:
        end = time.monotonic() + (LONG if LONG_RUN else 4.0)
        while time.monotonic() < end:
            env.fault(reshard(sharded, random.choice(env.names), 0.1))
            if random.random() < 0.1:
                sharded.failover(random.choice(sharded.masters))
                sharded.wait_ok()
                env.fault("CLUSTER FAILOVER")
    check(env)


@long_only
def test_no_two_holders_in_cluster_failovers_with_replicas_option(sharded: Cluster, registers: Server) -> None:
    """SIGKILL and SIGSTOP, and slots on their way meanwhile."""
    with workers_on(sharded.url, registers, replicas=1) as env:

        def die(end: Callable[[Server], None]) -> None:
            old = sharded.node_for(f"handfast:{{{random.choice(env.names)}}}")
            end(old)
            sharded.wait_replaced(old)
            old.resume()
            if not is_running(old):
                old.restart()
            sharded.heal()
            env.await_all(env.names, now())

        def kill() -> str:
            die(lambda old: old.kill())
            return "kill -9 of a master"

        def stop() -> str:
            die(lambda old: old.pause())
            return "SIGSTOP of a master"

        def move() -> str:
            return reshard(sharded, random.choice(env.names), 0.1)

        strike(env, kill, stop, move)
    check(env)
