"""A cluster for tests: masters that share the slots, each with its replicas.

Each node reports its view of the others (CLUSTER NODES). The cluster is ready when all living nodes have the same view,
and that view is true.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Self
from urllib.parse import quote

from .cluster_node import SLOTS, ClusterNode, View
from .ports import LOOPBACK
from .replicated import cut_link, settings
from .resharding import SlotMove
from .server_versions import any_binary
from .servers import Server, Servers
from .waiting import until_nothing_is_missing

__all__ = ["Cluster"]

READY_WITHIN: Final = 30.0
"""Seconds. It mostly takes 2 s, because a master waits that long before it serves. A failed election takes a second or
two more."""


class Cluster(Servers):
    """The nodes (`nodes`) of a cluster. They serve all slots after `start`. `config` applies to all of them."""

    nodes: list[Server]

    def __init__(
        self,
        masters: int = 3,
        replicas: int = 1,
        binary: Path | None = None,
        *,
        node_timeout: float = 1.0,
        password: str = "",
        config: Mapping[str, str] = {},
        env: Mapping[str, str] = {},
    ) -> None:
        binary = binary or any_binary()
        every = {
            **settings(binary, password),
            "cluster-enabled": "yes",
            "cluster-node-timeout": f"{node_timeout * 1000:.0f}",
            # A replica may be promoted however long it had no link to its master: a test decides which writes it misses.
            "cluster-replica-validity-factor": "0",
            **config,
        }
        self._members = [ClusterNode(binary, config=every, env=env) for _ in range(masters * (1 + replicas))]
        self.nodes = list(self._members)
        self.password = password
        self._first_masters = self._members[:masters]
        self._replicas = replicas
        self._served: dict[str, frozenset[int]] = {}

    @property
    def url(self) -> str:
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        return f"redis+cluster://{login}" + ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)

    # -- roles

    @property
    def masters(self) -> list[Server]:
        """The masters that serve slots, in the order of their slots."""
        slots = self._view().slots
        return [self._named(name) for name in sorted(slots, key=lambda name: min(slots[name]))]

    def replicas_of(self, master: Server) -> list[Server]:
        name, master_of = self._member(master).id, self._view().master_of
        return [member for member in self._members if master_of.get(member.id) == name]

    def replica_of(self, master: Server) -> Server:
        """The first replica of this master."""
        return self.replicas_of(master)[0]

    def owner(self, slot: int) -> Server:
        """The master that serves the slot."""
        return self._named(next(name for name, slots in self._view().slots.items() if slot in slots))

    def slot_of(self, key: str) -> int:
        from redis.crc import key_slot

        return key_slot(key.encode())

    def node_for(self, key: str) -> Server:
        """The master that serves the key."""
        return self.owner(self.slot_of(key))

    # -- start and end

    def start(self) -> Self:
        super().start()
        for number, node in enumerate(self._members):
            # Give each master an epoch of its own. Otherwise epochs collide, and the nodes resolve that one by one.
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            for other in self._members[:number]:
                node.command("CLUSTER", "MEET", LOOPBACK, other.port)
        count = len(self._first_masters)
        for number, node in enumerate(self._first_masters):
            node.add_slots(range(SLOTS * number // count, SLOTS * (number + 1) // count))
        until_nothing_is_missing(self._strangers, READY_WITHIN, "the cluster is")
        for number, node in enumerate(self._members[count:]):
            node.command("CLUSTER", "REPLICATE", self._first_masters[number % count].id)
        self.wait_ok()
        return self

    def wait_ok(self, within: float = READY_WITHIN) -> None:
        """Wait until all running nodes agree that all slots are served, and the replicas are linked."""
        until_nothing_is_missing(self._missing, within, "the cluster is")

    # -- faults

    def failover(self, master: Server, within: float = READY_WITHIN) -> Server:
        """Let the first replica take over from a living master, without loss. Returns the new master when all nodes
        know it."""
        self.replica_of(master).command("CLUSTER", "FAILOVER")
        return self.wait_replaced(master, within)

    def wait_replaced(self, old: Server, within: float = READY_WITHIN) -> Server:
        """Wait until all running nodes know a new master for the slots of `old`, and return it."""
        slot = min(self._served[self._member(old).id])
        until_nothing_is_missing(lambda: self._missing_successor(old, slot), within, "the new master is")
        return self.owner(slot)

    def move_slot(self, slot: int, to: Server, keys_per_step: int = 100) -> None:
        """Move the slot and its keys to another master."""
        with self.moving(slot, to, keys_per_step):
            pass

    @contextmanager
    def moving(self, slot: int, to: Server, keys_per_step: int = 100) -> Iterator[SlotMove]:
        """Inside the block the slot is being moved, and keys move with each `step()`. The others move at the end of it.

        After an error in the block the slot is still being moved.
        """
        masters = [self._member(master) for master in self.masters]
        move = SlotMove(slot, self._member(self.owner(slot)), self._member(to), masters, keys_per_step)
        move.begin()
        yield move
        move.finish()

    def cut(self, *replicas: Server) -> None:
        """Cut the replication of these replicas until `heal`. They stay connected to the other nodes of the cluster."""
        for replica in replicas:
            cut_link(replica)

    def heal(self, within: float = READY_WITHIN) -> None:
        """Undo `pause` and `cut`, and wait until the cluster is whole, perhaps with other masters. Restart killed nodes
        first."""
        for node in self.nodes:
            node.resume()
            node.command("CONFIG", "SET", "masterauth", self.password)
        until_nothing_is_missing(lambda: self._missing() or self._missing_nodes(), within, "the cluster is")

    # -- inside

    def _awake(self) -> list[ClusterNode]:
        return [node for node in self._members if node.alive]

    def _member(self, node: Server) -> ClusterNode:
        return next(member for member in self._members if member is node)

    def _named(self, name: str) -> ClusterNode:
        return next(member for member in self._members if member.id == name)

    def _view(self) -> View:
        """The view of a node that knows the latest epoch."""
        view = max((node.view() for node in self._awake()), key=lambda view: view.epoch)
        self._served.update(view.slots)
        return view

    def _strangers(self) -> str:
        awake = self._awake()
        for node in awake:
            reached = node.view().reached
            for other in awake:
                if other.id not in reached:
                    return f"port {node.port} does not reach port {other.port}"
        return ""

    def _missing_successor(self, old: Server, slot: int) -> str:
        owners = {name for node in self._awake() for name, slots in node.view().slots.items() if slot in slots}
        if self._member(old).id in owners or len(owners) != 1:
            return f"slot {slot} belongs to {[self._named(name).port for name in owners]}, once to {old.port}"
        return ""

    def _missing(self) -> str:
        # The state first: it takes longest to become ok, and is the cheapest to ask for.
        return self._unwell() or self._strangers() or self._missing_agreement() or self._missing_links()

    def _unwell(self) -> str:
        for node in self._awake():
            if (state := node.state()) != "ok":
                return f"port {node.port} says that the cluster is in state {state}"
        return ""

    def _missing_agreement(self) -> str:
        awake = self._awake()
        alive = {node.id for node in awake}
        first, *_ = views = [node.view() for node in awake]
        for node, view in zip(awake, views, strict=True):
            if sum(len(slots) for name, slots in view.slots.items() if name in alive) != SLOTS:
                return f"port {node.port} knows slots without a master that lives"
            if view.moving:
                return f"port {node.port} has slots on their way: {sorted(view.moving)}"
            if view.slots != first.slots:
                return f"ports {node.port} and {awake[0].port} know different masters"
            if [view.master_of.get(each) for each in alive] != [first.master_of.get(each) for each in alive]:
                return f"ports {node.port} and {awake[0].port} know different replicas"
        self._served.update(first.slots)
        return ""

    def _missing_nodes(self) -> str:
        shards = sorted(len(self.replicas_of(master)) for master in self.masters)
        return "" if shards == [self._replicas] * len(self._first_masters) else f"its masters have {shards} replicas"

    def _missing_links(self) -> str:
        for node in self._awake():
            if node.info("role") == "slave" and node.info("master_link_status") != "up":
                return f"port {node.port} has no link to its master"
        return ""
