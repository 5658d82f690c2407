"""One seed from beginning to end: a deployment starts, faults strike it, and all users finish."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from handfast.core import guard
from handfast.errors import ConfigError, NotAcquired
from sim.client import Client
from sim.fault_schedule import FaultSchedule
from sim.io import EPOCH
from sim.net import Net
from sim.node import Node
from sim.observer import Observer, Violation
from sim.plan import DRIFT, Plan, draw
from sim.store import name_of
from sim.user import User
from sim.world import Clock, NoProgress, Task, World

__all__ = ["Outcome", "Scenario", "run"]

AUDIT_EVERY: Final = 0.05
YEAR: Final = 365 * 86400.0
BEFORE: Final = 1.0
"""Seconds before the first fault, in which the deployment starts."""
SETTLED: Final = 5.0
"""Seconds after the last fault within which every link is connected again."""
SAVED_EVERY: Final = 1.0
WAITERS_AT_ONCE: Final = 50
LONG_ENOUGH: Final = 10.0
"""Seconds for which each of these waiters waits."""


class Outcome(NamedTuple):
    """The result of a seed."""

    seed: int
    plan: Plan
    seconds: float
    """Simulated."""
    digest: str
    """The digest of the trace; empty if it was not requested."""
    violation: BaseException | None
    sums: dict[str, Any]
    happened: Counter[str]
    """See faults.py."""
    cancelled_at: Counter[tuple[str, int]]
    recent: list[tuple[float, str, tuple[Any, ...]]]


class Scenario:
    """The world of one seed: nodes, clients, users, faults, observer."""

    def __init__(
        self,
        seed: int,
        plan: Plan,
        tell: Callable[[float, str, tuple[Any, ...]], None] | None = None,
        *,
        with_digest: bool = True,
    ) -> None:
        self.plan = plan
        self.world = world = World(seed, tell=tell, with_digest=with_digest)
        self.net = Net(world)
        self.net.ttl = plan.ttl
        self.observer = Observer(world, plan.expected_guarantees)
        self.nodes = [Node(world, self.net, i, self._clock(EPOCH, 1), self.observer) for i in range(plan.nodes)]
        if "slow clock forgets" in plan.faults:
            self.nodes[0].clock = Clock(world, EPOCH - 3600.0, 1 - DRIFT)
        if "drift" in plan.faults:
            world.happened["18"] += 1
        for node in self.nodes:
            node.compares, node.replies_first = world.rng.random() < 0.5, world.rng.random() < 0.5
        self.observer.nodes = self.observer.ledger.nodes = self.nodes
        self.strangers: list[Client] = []
        """Clients whose max_ttl differs from the namespace's."""
        self._clocks = [self._clock(1000.0 * (i + 1), -1) for i in range(plan.clients)]
        self.clients = self.observer.clients = [self._client(i) for i in range(plan.clients)]
        if "no tracking" in plan.faults:
            for node in self.nodes:
                node.tracks = world.rng.random() < 0.5
        self.users: list[User] = []
        self.fault_schedule: FaultSchedule | None = None

    def _clock(self, offset: float, way: int) -> Clock:
        """`way`: with the largest allowed drift, this clock is fast (1) or slow (-1)."""
        if "most drift" in self.plan.faults:
            return Clock(self.world, offset, 1 + way * DRIFT)
        most = 0.05 if "wild drift" in self.plan.faults else DRIFT if "drift" in self.plan.faults else 0.0
        return Clock(self.world, offset, 1 + most * self.world.rng.uniform(-1, 1))

    def _client(self, where: int, life: int = 0) -> Client:
        plan, rng = self.plan, self.world.rng
        strange = "another max_ttl" in plan.faults and where == plan.clients - 1
        options = plan.options(max_ttl=2 * plan.max_ttl) if strange else plan.options()
        client = Client(
            self.world, self.net, self.nodes, self.observer, where, options, self._clocks[where],
            life=life, threads=plan.threads,
        )  # fmt: skip
        if "stop at a hand-over" in plan.faults:
            client.hands_over = self._stop_at_a_hand_over
        if strange and plan.guard:
            self.strangers.append(client)
        if "wrong wall clocks" in plan.faults:
            client.io.wall_ahead = rng.choice((-YEAR, -1.0, 0.0, 1.0, YEAR))
            self.world.happened["40"] += client.io.wall_ahead == YEAR
        return client

    def play(self) -> None:
        world, plan = self.world, self.plan
        if plan.guard:
            first = self.clients[0]
            Task(first.actor, guard.bootstrap(first.io, first.group), "bootstrap", _finish)
        if "rolled-back restart" in plan.faults:
            world.at(SAVED_EVERY, self._save)
        world.at(AUDIT_EVERY, self._audit)
        world.run(BEFORE)
        self.fault_schedule = fault_schedule = FaultSchedule(self)
        self.observer.quiet = lambda: not fault_schedule.restless and world.now > fault_schedule.quiet_at + SETTLED
        for client in self.clients:
            self._populate(client)
        world.run(BEFORE + plan.fault_seconds)
        fault_schedule.over = True
        self._repair(fault_schedule)
        world.run(world.now + plan.max_ttl * 1.1 + 0.5)
        for user in self.users:
            user.last = world.now
        self._rest(world.now + plan.longest_wait)
        world.run(world.now + plan.max_ttl + 5.0)
        # By now the watchdogs have released what was left, and every ttl is over. Only a node whose clock was set back
        # keeps a key, until a client asks for it.
        met = {name_of(key) for node in self.nodes if node.clock.was_set_back for key, _ in node.held()}
        for name in sorted(met):
            client = next(each for each in self.clients if each not in self.strangers)
            client.tasks.append(Task(client.actor, self._queue(client, name), f"{client.name} meets {name}", _finish))
        if met:
            world.run(world.now + LONG_ENOUGH + plan.max_ttl + 1.0)
        self.observer.at_rest()

    def _rest(self, until: float) -> None:
        """Runs until every user has had its last turn, or until that is overdue."""
        world = self.world
        while world.now < until and not all(user.rests for user in self.users):
            world.run(min(until, world.now + SETTLED))

    @property
    def calm(self) -> bool:
        return self.fault_schedule is None or self.fault_schedule.over

    def _populate(self, client: Client) -> None:
        self.users += [User(self, client, i) for i in range(self.plan.users)]

    def _repair(self, fault_schedule: FaultSchedule) -> None:
        """Ends the faults that do not end soon by themselves."""
        self.world.note("FAULT", "all is repaired")
        self.net.repair_all()
        if fault_schedule.restless:
            fault_schedule.restless = False
            fault_schedule.quiet_at = max(fault_schedule.quiet_at, self.world.now)

    def _audit(self) -> None:
        self.observer.audit()
        self.world.at(self.world.now + AUDIT_EVERY, self._audit)

    def _save(self) -> None:
        for node in self.nodes:
            if node.up:
                node.save()
        if not self.calm:
            self.world.at(self.world.now + SAVED_EVERY, self._save)

    # -- what faults do to clients ---------------------------------------------------------------------------------

    def stop(self, client: Client, end: float) -> None:
        if self.fault_schedule is not None and not self.fault_schedule.over and end > self.world.now:
            self.fault_schedule.stop(client, end)

    def _stop_at_a_hand_over(self, client: Client) -> None:
        rng = self.world.rng
        if rng.random() < 0.2:
            self.stop(client, self.world.now + self.plan.ttl * 2 * rng.random())

    def replace(self, dead: Client) -> None:
        """Starts another process in place of one that has died."""
        client = self._client(dead.where, dead.life + 1)
        last = next((user.last for user in self.users if user.client is dead), None)
        self.users = [user for user in self.users if user.client is not dead]
        self.clients[dead.where] = client
        self._populate(client)
        for user in self.users:
            if user.client is client:
                user.last = last

    def add_waiters(self, name: str) -> None:
        """Adds many waiters for one lock; they get it one after the other."""
        clients = [client for client in self.clients if not client.actor.stopped]
        for i in range(WAITERS_AT_ONCE if clients else 0):
            client = clients[i % len(clients)]
            task = Task(client.actor, self._queue(client, name), f"{client.name} waiter {i}", _finish)
            client.tasks.append(task)
        self.world.happened["36"] += bool(clients)

    async def _queue(self, client: Client, name: str) -> None:
        lock, asked = client.lock(name), self.world.now
        began = self.observer.began(lock.names)
        try:
            hold = await client.acquire(lock, LONG_ENOUGH)
        except (NotAcquired, ConfigError):
            return
        self.observer.returned(client, hold, began, asked)
        await client.release(hold)


def _finish(task: Task) -> None:
    if task.error is not None:
        raise task.error


def run(
    seed: int,
    plan: Plan | None = None,
    tell: Callable[[float, str, tuple[Any, ...]], None] | None = None,
    *,
    with_digest: bool = True,
) -> Outcome:
    """Simulates one seed."""
    if plan is None:
        plan = draw(Random(f"plan {seed}"))
    scene = Scenario(seed, plan, tell, with_digest=with_digest)
    violation: BaseException | None = None
    log = logging.getLogger("handfast")
    before, log.disabled = log.disabled, True
    try:
        scene.play()
    except (Violation, NoProgress) as error:
        violation = error
    finally:
        world = scene.world
        outcome = Outcome(
            seed, plan, world.now, world.digest(), violation, scene.observer.sums(), world.happened, world.cancelled_at,
            list(world.recent),
        )  # fmt: skip
        world.close()
        log.disabled = before
    return outcome
