"""Injects the faults of a plan.

Each fault strikes at random times until the schedule ends. After that everything is repaired, and all users must finish.
`quiet_at` is the end of the last known fault: the checks of time limits apply only after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from handfast.core.config import retention_of
from handfast.core.hold import HELD, Hold
from handfast.core.renew import RENEW_AT
from handfast.core.votes import majority
from handfast.protocol.scripts import SHA
from sim.client import Client
from sim.net import TcpConnection
from sim.node import Node
from sim.plan import BREAK
from sim.rare_faults import dies_with_its_vote

if TYPE_CHECKING:
    from sim.scenario import Scenario

__all__ = ["FaultSchedule"]

MOODS: Final = (
    "-LOADING Redis is loading the dataset in memory",
    "-BUSY Redis is busy running a script.",
    "-OOM command not allowed when used memory > 'maxmemory'.",
    "-MISCONF Redis is configured to save RDB snapshots",
    "-READONLY You can't write against a read only replica.",
    "-NOPERM this user has no permissions to run the 'evalsha' command",
)


NOTICED: Final = 0.1
"""The longest time in seconds that a renewal takes without faults."""
SHORTEST_STANDSTILL: Final = 0.005
LONGEST_STANDSTILL: Final = 0.15
"""Seconds. The clock of a node at a distance hides a part of them."""
TRIGGERED: Final = ("forgets after voting", "lost raise")
"""Faults that an event triggers, not the schedule."""


class FaultSchedule:
    """The faults of one scenario."""

    def __init__(self, scene: Scenario) -> None:
        self.scene = scene
        self.world = scene.world
        self.rng = scene.world.rng
        self.plan = scene.plan
        self.over = False
        self.quiet_at = 0.0
        self.restless = bool({"slow network", "loss", "distance"} & set(self.plan.faults))
        """A fault lasts until the schedule ends."""
        self._returning_empty: set[int] = set()
        """Nodes that will come back without their data."""
        for fault in self.plan.faults:
            strike = getattr(self, "_" + fault.replace(" ", "_").replace("-", "_"), None)
            if strike is not None and fault not in TRIGGERED:
                self._again(strike)
        net, faults = scene.net, self.plan.faults
        if "slow network" in faults:
            net.slow, net.slowest = self.rng.choice((0.01, 0.1)), 2.5 * self.plan.ttl
        if "loss" in faults:
            net.loss = self.rng.choice((0.005, 0.03))
        if "distance" in faults:
            for client in scene.clients:
                for node in scene.nodes:
                    net.far[client.where, node.index] = self.rng.choice((0.0, 0.005, 0.02))
        if "lost raise" in faults:
            net.on_send = self._lost_raise
        if "forgets after voting" in faults:
            for node in scene.nodes:
                node.forgetting = self._forgets_after_voting

    def _again(self, strike: Callable[[], None]) -> None:
        self.world.at(self.world.now + self.rng.expovariate(1 / self.plan.every), self._strike, strike)

    def _strike(self, strike: Callable[[], None]) -> None:
        if not self.over:
            self._until(self.world.now)
            strike()
            self._again(strike)

    def _until(self, end: float) -> float:
        self.quiet_at = max(self.quiet_at, end)
        return end

    def _for(self, most: float) -> float:
        """The end of a fault: mostly soon, sometimes after more than a ttl or two."""
        return self._until(self.world.now + most * self.rng.random() ** 2)

    def note(self, *words: object) -> None:
        self.world.note("FAULT", *words)

    # -- network ---------------------------------------------------------------------------------------------------

    def _partition(self, *, one_way: bool = False) -> None:
        rng, scene, happened = self.rng, self.scene, self.world.happened
        clients = [c.where for c in scene.clients if rng.random() < 0.5]
        nodes = [n.index for n in scene.nodes if rng.random() < 0.5]
        up = not one_way or rng.random() < 0.5
        down = not one_way or not up
        end = self._for(4 * self.plan.ttl)
        self.note("partition", clients, nodes, up, down, end)
        for where in clients:
            for node in nodes:
                scene.net.cut(where, node, up=up, down=down)
                self.world.at(end, scene.net.repair, where, node)
        if clients and nodes and one_way:
            happened["20 requests" if up else "20 replies"] += 1
        elif clients and nodes:
            happened["19 majority" if len(nodes) >= majority(self.plan.nodes) else "19 minority"] += 1

    def _lost_raise(self, tcp: TcpConnection, data: bytes) -> None:
        """The network fails just when a client raises a node's counter."""
        if self.over or SHA["raise_token"] not in data or self.rng.random() < 0.5:
            return
        where, node, end = tcp.where, tcp.server.index, self._until(self.world.now + 3 * self.plan.ttl)
        self.note("lost raise", where, node, end)
        self.scene.net.cut(where, node)
        self.world.at(end, self.scene.net.repair, where, node)

    def _one_way_partition(self) -> None:
        self._partition(one_way=True)

    def _reset(self) -> None:
        for connection in self.scene.net.connections():
            if self.rng.random() < 0.3:
                self.note("reset", connection.where, connection.server.index)
                self.scene.nodes[connection.server.index].left(connection)
                connection.break_off()

    # -- clients ---------------------------------------------------------------------------------------------------

    def stop(self, client: Client, end: float) -> None:
        """SIGSTOP until `end`."""
        self._until(end)
        self.note("stopped", client.name, end)
        if end - self.world.now > self.plan.ttl:
            for user in self.scene.users:
                if user.client is client and user.phase:
                    self.world.happened[user.phase] += 1
        client.stop()
        self.world.at(end, client.go_on)

    def _stopped_client(self) -> None:
        self.stop(self.rng.choice(self.scene.clients), self._for(3 * self.plan.ttl))

    def _standstills(self) -> None:
        """The machine of one client, always the same, is paused several times within a second."""
        at, where = self.world.now, self.plan.clients - 1
        for _ in range(self.rng.randint(2, 6)):
            seconds = self.rng.uniform(SHORTEST_STANDSTILL, LONGEST_STANDSTILL)
            self.world.at(at, self._stand_still, where, seconds)
            at += seconds + 0.3 * self.rng.random()
        self._until(at)

    def _stand_still(self, where: int, seconds: float) -> None:
        client = self.scene.clients[where]
        if not client.actor.stopped:
            self.note("stands still", client.name, seconds)
            self.world.happened["standstills"] += 1
            client.stand_still(seconds)

    def _blocked_loop(self) -> None:
        client, end = self.rng.choice(self.scene.clients), self._for(3 * self.plan.ttl)
        self.note("blocked", client.name, end)
        client.actor.stop()
        self.world.at(end, client.actor.go_on)

    def _crash(self) -> None:
        self.crash(self.rng.choice(self.scene.clients))

    def _power_cut(self) -> None:
        """A power cut of a client's machine, or of a node's."""
        if self.rng.random() < 0.4:
            self.crash(self.rng.choice(self.scene.clients), silently=True)
        else:
            self._kill(self.rng.randrange(self.plan.nodes), "all", silently=True)

    def crash(self, client: Client, *, silently: bool = False) -> None:
        """A process dies, and another takes its place."""
        end = self._for(2 * self.plan.ttl)
        if client.actor.dead:
            return
        self.note("crashed", client.name, "silently" if silently else "", end)
        client.crash(silently=silently)
        self.scene.observer.gone(client)
        self.world.at(end, self.scene.replace, client)

    def _crowd(self) -> None:
        if not self.world.happened["36"]:  # once is enough: it takes as long as many seeds
            self.scene.add_waiters(self.rng.choice(self.plan.names))

    # -- nodes -----------------------------------------------------------------------------------------------------

    def _stopped_node(self) -> None:
        node, end = self.rng.choice(self.scene.nodes), self._for(3 * self.plan.ttl)
        self.note("stopped", f"n{node.index}", end)
        node.actor.stop()
        self.world.at(end, self._let_go_on, node)

    def _let_go_on(self, node: Node) -> None:
        burst = sum(1 for timer in node.actor.missed if timer.call == node.receive)
        self.world.happened["24"] += burst > 2
        node.actor.go_on()

    def suspects(self) -> set[int]:
        """Nodes that have lost their data, or will lose it, and may not vote yet. Empty without a guard."""
        key = self.scene.clients[0].group.marker_key
        if not self.plan.guard:
            return set()
        return self._returning_empty | {node.index for node in self.scene.nodes if not node.may_vote(key)}

    def _room(self, index: int) -> bool:
        """Whether this node may lose its data without making a majority suspect. A single node always may."""
        return self.plan.nodes == 1 or len(self.suspects() | {index}) < majority(self.plan.nodes)

    def _kill(self, index: int, memory: str, *, silently: bool = False, most: float = 2.0) -> None:
        node, end = self.scene.nodes[index], self._for(most)
        if not node.up:
            return
        self.note("killed", f"n{index}", memory, end)
        if memory == "none" and self.plan.nodes > 1 and node.held():
            self.world.happened["6"] += 1
        if memory != "all" and self.suspects():
            self.world.happened["12"] += 1
        node.kill(silently=silently)
        if memory != "all":
            self._returning_empty.add(index)
        self.world.at(end, self._start, node, memory)

    def _start(self, node: Node, memory: str) -> None:
        node.start(memory)
        self._returning_empty.discard(node.index)
        if "step after restart" in self.plan.faults and self.rng.random() < 0.7:
            self.world.happened["17"] += 1
            self._step(node, self.rng.choice((-1.0, 1.0, 3600.0)))

    def _forgets(self, memory: str) -> None:
        index = self.rng.randrange(self.plan.nodes)
        if self._room(index):
            self._kill(index, memory)

    def _restart(self) -> None:
        self._forgets("none")

    def _step_after_restart(self) -> None:
        self._forgets("none")

    def _rolled_back_restart(self) -> None:
        self._forgets("old")

    def _durable_restart(self) -> None:
        self._kill(self.rng.randrange(self.plan.nodes), "all")

    def _majority_restart(self) -> None:
        if self.rng.random() < 0.5:
            self.world.happened["11"] += 1
            for index in self.rng.sample(range(self.plan.nodes), majority(self.plan.nodes)):
                self._kill(index, "none")

    def _rolling_restart(self) -> None:
        """Restarts all nodes, one after the other, each as soon as `_room` allows it."""
        long = [user for user in self.scene.users if user.phase == "2"]
        for user in long:
            user.keep_until = self.world.now + self.plan.nodes * (self.plan.quarantine + 1.0)
        self._roll(0, bool(long))

    def _roll(self, index: int, held: bool) -> None:
        if self.over or index == self.plan.nodes:
            self.world.happened["10"] += held and index == self.plan.nodes and self.plan.nodes > 1
            return
        room = self._room(index) and self.scene.nodes[index].up
        if room:
            self._kill(index, "none", most=0.3)
        self.world.at(self._until(self.world.now + 0.4), self._roll, index + room, held)

    def _flush(self) -> None:
        self._empty(self.rng.choice(self.scene.nodes))

    def _slow_clock_forgets(self) -> None:
        """The first node, whose clock is slow and behind, loses its data."""
        if self._empty(self.scene.nodes[0]) and self.plan.nodes > 1:
            self.world.happened["39"] += 1

    def _empty(self, node: Node) -> bool:
        possible = self._room(node.index) and node.up
        if possible:
            self.note("flushed", f"n{node.index}")
            self.world.happened["13"] += 1
            node.forget()
        return possible

    def _forgets_after_voting(self, node: Node) -> None:
        if not self.over and self.rng.random() < 0.05:
            self.world.at(self.world.now + 1e-6, self._empty, node)

    def _dies_with_its_vote(self) -> None:
        self._until(self.world.now + self.plan.quarantine + 5.0)
        dies_with_its_vote(self)

    def _broken_lock(self) -> None:
        """An operator breaks a lock, on most nodes."""
        held = [
            (hold, client)
            for holds in self.scene.observer.now_held.values()
            for hold, client in holds.items()
            if hold.state == HELD
        ]
        if not held:
            return
        hold, client = self.rng.choice(held)
        nodes = [node for node in self.scene.nodes if node.up and self.rng.random() < 0.9]
        self.note("broken", hold.name, hold.who.owner, [node.index for node in nodes])
        config, retention = hold.config, retention_of(self.plan.token_memory)
        for node in nodes:
            said = [node.break_lock(key, hold.who.owner, config.guard_key_list, retention) for key in hold.keys]
            self.world.happened["broken"] += any(said)
            self.world.happened["broken and handed over"] += 2 in said
        if not self._has_majority(hold) and self.plan.faults == (BREAK,) and self.plan.renew:
            self.world.at(self.world.now + RENEW_AT * hold.ttl + NOTICED, self._noticed, client, hold)

    def _noticed(self, client: Client, hold: Hold) -> None:
        """If there is no other fault, the holder's next renewal finds that an operator has broken the lock."""
        # The holder may have got the vote of another node since, if its claim was still in that node's queue.
        if self.scene.observer.valid(client, hold) and not self._has_majority(hold):
            self.scene.observer.complain(
                6, f"{hold.name} of {hold.who.owner!r} was broken, and its holder has not noticed"
            )

    def _has_majority(self, hold: Hold) -> bool:
        return all(
            sum(1 for node in self.scene.nodes if node.shows(key) == hold.who.owner) >= hold.group.need
            for key in hold.keys
        )

    def _scripts_lost(self) -> None:
        node = self.rng.choice(self.scene.nodes)
        self.note("scripts lost", f"n{node.index}")
        node.lose_scripts()

    def _moods(self) -> None:
        node, end = self.rng.choice(self.scene.nodes), self._for(2.0)
        node.mood = self.rng.choice(MOODS)
        self.note(node.mood, f"n{node.index}", end)
        self.world.at(end, setattr, node, "mood", "")

    # -- clocks ----------------------------------------------------------------------------------------------------

    def _step(self, node: Node, seconds: float) -> None:
        self.note("step", f"n{node.index}", seconds)
        node.step(seconds)

    def _step_forward(self) -> None:
        seconds = self.rng.choice((0.05, 1.0, self.plan.ttl, 3600.0))
        self.world.happened["14"] += seconds >= self.plan.ttl
        self._step(self.rng.choice(self.scene.nodes), seconds)

    def _majority_step(self) -> None:
        self.world.happened["15"] += 1
        for index in self.rng.sample(range(self.plan.nodes), majority(self.plan.nodes)):
            self._step(self.scene.nodes[index], self.plan.ttl)

    def _step_back(self) -> None:
        seconds = self.rng.choice((0.05, 1.0, 3600.0))
        self.world.happened["16"] += seconds >= 3600
        self._step(self.rng.choice(self.scene.nodes), -seconds)
