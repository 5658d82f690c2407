"""What goes wrong, and what is owed all the same.

Swarm testing: each seed draws a deployment and a random subset of the faults, so that no fault hides behind
another in every run. A fault strikes at random times until the storm is over; then everything is mended, and all that
is left must come to rest.

What is owed follows from the plan alone (SAFETY.md, "Assumptions"):
exclusion     unless clocks run at rates beyond `drift` (A1), a node's clock steps forward (A2), or a node forgets that
              nobody guards (A3). A5 is kept by not letting nodes forget while M - 1 are suspect;
uniqueness    wherever counters survive, or a guard repairs a minority of them. One node alone numbers by its clock;
order         the same; a cohort's tokens are in order only while exclusion holds;
liveness      unless a clock was set back where nobody may cut a lease that has become too long, or runs so wrong that the
              guard suspects every node.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, NamedTuple

from handfast.core.quorum import majority
from handfast.options import Policy, policy
from handfast.testing.sim.observer import Owed

if TYPE_CHECKING:
    from handfast.testing.sim.scenario import Scenario

__all__ = ["FAULTS", "Plan", "Storm", "draw"]

FAULTS: Final = (
    "slow network",
    "loss",
    "distance",
    "partition",
    "one-way partition",
    "reset",
    "stopped client",
    "blocked loop",
    "stopped node",
    "restart",
    "durable restart",
    "flush",
    "majority restart",
    "drift",
    "wild drift",
    "step forward",
    "step back",
    "wrong wall clocks",
    "cancel",
    "extend",
    "slow writer",
    "scripts lost",
    "moods",
    "no tracking",
)
BEYOND: Final = frozenset({"wild drift", "step forward", "majority restart"})
"""Beyond the assumptions: drawn less often, since they excuse much."""
MOODS: Final = (
    "-LOADING Redis is loading the dataset in memory",
    "-BUSY Redis is busy running a script.",
    "-OOM command not allowed when used memory > 'maxmemory'.",
    "-MISCONF Redis is configured to save RDB snapshots",
    "-READONLY You can't write against a read only replica.",
)
DRIFT: Final = 0.0045
"""Two clocks that differ from the true rate by so much differ by less than 1 % from each other."""
STORM: Final = 45.0
"""Seconds."""


class Plan(NamedTuple):
    """All that a seed decides beforehand."""

    nodes: int
    guard: bool
    clients: int
    users: int
    names: tuple[str, ...]
    ttl: float
    max_ttl: float
    fence: bool
    renew: bool
    fair: bool
    cohort: int
    work: float
    think: float
    faults: tuple[str, ...]

    def policy(self) -> Policy:
        return policy(
            {
                "ttl": self.ttl,
                "max_ttl": self.max_ttl,
                "fence": self.fence,
                "renew": self.renew,
                "fair": self.fair,
                "cohort": self.cohort,
            }
        )

    @property
    def forgetful(self) -> bool:
        return bool({"restart", "flush", "majority restart"} & set(self.faults))

    @property
    def quarantine(self) -> float:
        return self.max_ttl * 1.02 + 0.2

    @property
    def patience(self) -> float:
        """Within so long after all faults everybody must have had the lock (invariant 11)."""
        everybody = self.clients * self.users * 0.5
        busy = 3 * self.work + 2 * self.ttl  # who still works is let finish, and may be renewed meanwhile
        return self.max_ttl + 2 * self.quarantine + 8.0 + everybody + self.clients * busy

    @property
    def owed(self) -> Owed:
        faults = set(self.faults)
        guarded = self.guard or not self.forgetful
        exclusive = not faults & {"wild drift", "step forward"} and guarded
        if self.nodes == 1:
            unique = not (self.forgetful and faults & {"step back", "wild drift"})
        else:
            unique = guarded and "majority restart" not in faults and not (self.forgetful and "wild drift" in faults)
        stuck = "step back" in faults and not (self.guard and self.fence)
        # A client whose clock is that wrong takes every node's for one that was set, and puts it in quarantine.
        suspected = self.guard and "wild drift" in faults
        # What a cohort passes on was numbered when it was taken: in order only while nobody else can have taken it since.
        ordered = unique and (exclusive or not self.cohort)
        return Owed(exclusive=exclusive, ordered=ordered, unique=unique, lively=not stuck and not suspected)


def draw(rng: Random) -> Plan:
    nodes = rng.choice((1, 1, 3, 3, 3, 5, 5, 4))
    ttl = rng.choice((0.4, 1.0, 2.0))
    chance = rng.choice((0.1, 0.25, 0.5))
    faults = tuple(fault for fault in FAULTS if rng.random() < chance * (0.3 if fault in BEYOND else 1.0))
    fair = nodes == 1 and rng.random() < 0.4
    return Plan(
        nodes=nodes,
        guard=rng.random() < (0.3 if nodes == 1 else 0.85),
        clients=rng.randint(2, 4),
        users=rng.choice((1, 1, 2)),
        # With many names some rest for long: their counters are what a node that forgot must get from others.
        names=rng.choice((("a",), ("a",), ("a", "b"), ("a", "b", "c", "d"))),
        ttl=ttl,
        max_ttl=max(ttl, rng.choice((1.0, 2.0, 3.0))),
        fence=rng.random() < 0.85,
        renew=rng.random() < 0.85,
        fair=fair,
        cohort=rng.choice((0, 0, 3)),
        work=rng.choice((0.1, 0.5, ttl)),
        think=rng.choice((0.3, 1.0)),
        faults=faults,
    )


class Storm:
    """Lets the faults of a plan strike."""

    def __init__(self, scene: Scenario) -> None:
        self.scene = scene
        self.world = scene.world
        self.rng = scene.world.rng
        self.plan = scene.plan
        self.over = False
        for fault in self.plan.faults:
            strike = getattr(self, "_" + fault.replace(" ", "_").replace("-", "_"), None)
            if strike is not None:
                self._again(fault, strike)
        net, faults = scene.net, self.plan.faults
        if "slow network" in faults:
            net.slow, net.slowest = self.rng.choice((0.01, 0.1)), 2.5 * self.plan.ttl
        if "loss" in faults:
            net.loss = self.rng.choice((0.005, 0.03))
        if "distance" in faults:
            for client in scene.clients:
                for node in scene.nodes:
                    net.far[client.where, node.index] = self.rng.choice((0.0, 0.005, 0.02))

    def _again(self, fault: str, strike: object) -> None:
        self.world.at(self.world.now + self.rng.expovariate(1 / 6.0), self._strike, fault, strike)

    def _strike(self, fault: str, strike: object) -> None:
        if not self.over:
            assert callable(strike)
            strike()
            self._again(fault, strike)

    def _for(self, most: float) -> float:
        """When it ends: mostly soon, sometimes beyond a ttl or two."""
        return self.world.now + most * self.rng.random() ** 2

    # -- network ---------------------------------------------------------------------------------------------------

    def _partition(self, *, one_way: bool = False) -> None:
        rng, scene = self.rng, self.scene
        clients = [c.where for c in scene.clients if rng.random() < 0.5]
        nodes = [n.index for n in scene.nodes if rng.random() < 0.5]
        up = not one_way or rng.random() < 0.5
        down = not one_way or not up
        end = self._for(4 * self.plan.ttl)
        self.world.note("FAULT", "partition", clients, nodes, up, down, end)
        for where in clients:
            for node in nodes:
                scene.net.cut(where, node, up=up, down=down)
                self.world.at(end, scene.net.mend, where, node)

    def _one_way_partition(self) -> None:
        self._partition(one_way=True)

    def _reset(self) -> None:
        for connection in self.scene.net.connections():
            if self.rng.random() < 0.3:
                self.world.note("FAULT", "reset", connection.where, connection.server.index)
                self.scene.nodes[connection.server.index].left(connection)
                connection.break_off()

    # -- clients ---------------------------------------------------------------------------------------------------

    def _stopped_client(self) -> None:
        client, end = self.rng.choice(self.scene.clients), self._for(3 * self.plan.ttl)
        self.world.note("FAULT", "stopped", client.name, end)
        client.stop()
        self.world.at(end, client.go_on)

    def _blocked_loop(self) -> None:
        client, end = self.rng.choice(self.scene.clients), self._for(3 * self.plan.ttl)
        self.world.note("FAULT", "blocked", client.name, end)
        client.actor.stop()
        self.world.at(end, client.actor.go_on)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _stopped_node(self) -> None:
        node, end = self.rng.choice(self.scene.nodes), self._for(3 * self.plan.ttl)
        self.world.note("FAULT", "stopped", f"n{node.index}", end)
        node.actor.stop()
        self.world.at(end, node.actor.go_on)

    def _suspects(self) -> int:
        """Nodes that have forgotten and may not vote yet; without a guard nobody knows."""
        key = self.scene.clients[0].group.marker_key
        return sum(1 for node in self.scene.nodes if not node.may_vote(key)) if self.plan.guard else 0

    def _room(self) -> bool:
        """One more node may become suspect. One node alone may always: then nobody can vote."""
        return self.plan.nodes == 1 or self._suspects() < majority(self.plan.nodes) - 1

    def _kill(self, index: int, *, empty: bool) -> None:
        node, end = self.scene.nodes[index], self._for(2.0)
        if node.up:
            self.world.note("FAULT", "killed", f"n{index}", "empty" if empty else "durable", end)
            node.kill()
            self.world.at(end, node.start, empty)

    def _restart(self) -> None:
        if self._room():
            self._kill(self.rng.randrange(self.plan.nodes), empty=True)

    def _durable_restart(self) -> None:
        self._kill(self.rng.randrange(self.plan.nodes), empty=False)

    def _majority_restart(self) -> None:
        if self.rng.random() < 0.5:
            for index in self.rng.sample(range(self.plan.nodes), majority(self.plan.nodes)):
                self._kill(index, empty=True)

    def _flush(self) -> None:
        node = self.rng.choice(self.scene.nodes)
        if self._room() and node.up:
            self.world.note("FAULT", "flushed", f"n{node.index}")
            node.forget()

    def _scripts_lost(self) -> None:
        node = self.rng.choice(self.scene.nodes)
        self.world.note("FAULT", "scripts lost", f"n{node.index}")
        node.lose_scripts()

    def _moods(self) -> None:
        node, end = self.rng.choice(self.scene.nodes), self._for(2.0)
        node.mood = self.rng.choice(MOODS)
        self.world.note("FAULT", node.mood, f"n{node.index}", end)
        self.world.at(end, setattr, node, "mood", "")

    def _step_forward(self) -> None:
        node, seconds = self.rng.choice(self.scene.nodes), self.rng.choice((0.05, 1.0, 3600.0))
        self.world.note("FAULT", "step", f"n{node.index}", seconds)
        node.step(seconds)

    def _step_back(self) -> None:
        node, seconds = self.rng.choice(self.scene.nodes), self.rng.choice((0.05, 1.0, 3600.0))
        self.world.note("FAULT", "step", f"n{node.index}", -seconds)
        node.step(-seconds)
