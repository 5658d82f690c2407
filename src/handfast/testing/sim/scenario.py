"""One seed from beginning to end: a deployment is opened, a storm goes over it, and everything comes to rest."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, NamedTuple

from handfast.core import guard
from handfast.testing.sim.client import Client
from handfast.testing.sim.faults import DRIFT, STORM, Plan, Storm, draw
from handfast.testing.sim.lane import EPOCH
from handfast.testing.sim.net import Net
from handfast.testing.sim.node import Node
from handfast.testing.sim.observer import Observer, Violation
from handfast.testing.sim.user import User
from handfast.testing.sim.world import Circles, Clock, Task, World

__all__ = ["Outcome", "Scenario", "run"]

AUDIT_EVERY: Final = 0.05
YEAR: Final = 365 * 86400.0
CALM: Final = 1.0
"""Seconds before the storm, for the deployment to be opened."""


class Outcome(NamedTuple):
    """How a seed went."""

    seed: int
    plan: Plan
    seconds: float
    """Simulated."""
    digest: str
    violation: BaseException | None
    sums: dict[str, Any]
    recent: list[tuple[float, str, tuple[Any, ...]]]


class Scenario:
    """Everything that takes part."""

    def __init__(self, seed: int, plan: Plan, tell: Callable[[float, str, tuple[Any, ...]], None] | None = None) -> None:
        self.plan = plan
        self.world = world = World(seed, tell=tell)
        self.net = Net(world)
        self.observer = Observer(world, plan.owed)
        self.nodes = [Node(world, self.net, i, self._clock(EPOCH), self.observer) for i in range(plan.nodes)]
        self.observer.nodes = self.nodes
        chosen = plan.policy()
        self.clients = [
            Client(world, self.net, self.nodes, self.observer, i, chosen, self._clock(1000.0 * (i + 1)), guard=plan.guard)
            for i in range(plan.clients)
        ]
        for client in self.clients:
            if "wrong wall clocks" in plan.faults:
                client.io.wall_ahead = world.rng.choice((-YEAR, -1.0, 0.0, 1.0, YEAR))
        if "no tracking" in plan.faults:
            for node in self.nodes:
                node.tracks = world.rng.random() < 0.5
        self.users: list[User] = []

    def _clock(self, offset: float) -> Clock:
        most = 0.05 if "wild drift" in self.plan.faults else DRIFT if "drift" in self.plan.faults else 0.0
        return Clock(self.world, offset, 1 + most * self.world.rng.uniform(-1, 1))

    def play(self) -> None:
        world, plan = self.world, self.plan
        if plan.guard:
            first = self.clients[0]
            Task(first.actor, guard.bootstrap(first.io, first.group), "bootstrap", _finish)
        world.at(AUDIT_EVERY, self._audit)
        world.run(CALM)
        self.users = [User(client, plan, i) for client in self.clients for i in range(plan.users)]
        storm = Storm(self)
        world.run(CALM + STORM)
        storm.over = True
        self._mend()
        world.run(world.now + plan.max_ttl * 1.1 + 0.5)
        for user in self.users:
            user.last = world.now
        world.run(world.now + plan.patience + plan.max_ttl + 5.0)
        # What was left for the watchdog to release, and every ttl.
        self.observer.at_rest(self.clients)

    def _mend(self) -> None:
        """Faults that are under way end soon by themselves; the rest ends now."""
        self.world.note("FAULT", "all is mended")
        self.net.mend_all()

    def _audit(self) -> None:
        self.observer.audit()
        self.world.at(self.world.now + AUDIT_EVERY, self._audit)


def _finish(task: Task) -> None:
    if task.error is not None:
        raise task.error


def run(
    seed: int, plan: Plan | None = None, tell: Callable[[float, str, tuple[Any, ...]], None] | None = None
) -> Outcome:
    """Simulate one seed."""
    if plan is None:
        plan = draw(Random(f"plan {seed}"))
    scene = Scenario(seed, plan, tell)
    violation: BaseException | None = None
    try:
        scene.play()
    except (Violation, Circles) as error:
        violation = error
    world = scene.world
    outcome = Outcome(seed, plan, world.now, world.digest(), violation, scene.observer.sums(), list(world.recent))
    world.close()
    return outcome
