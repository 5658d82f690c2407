"""A history that random draws hardly ever produce: a client dies with the vote of a node that has lost its data.

A client whose clock is ahead reaches only three nodes of five, two of them late. The first node loses its data right
after its vote; another client reads the node at that moment, before the other two have voted. The first client gets
its token and dies before it can release, so its token does not reach the other nodes. Now only two nodes know the
token. When the first node leaves quarantine, and those two are out of reach, the other three nodes are a majority, and
their tokens must still be larger. They are larger if the first node gets its floor from the others after its
quarantine, and not before.

The other client must find the loss of data within milliseconds. If the node tracks the keys of its clients, its loss of
data ends their connections, and a new connection takes longer than that. So the first node is one that refuses
tracking, if there is one: the next survey finds the marker gone, and starts the quarantine.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from handfast.core import guard
from handfast.errors import HandfastError
from sim.client import Client
from sim.node import Node
from sim.world import Task

if TYPE_CHECKING:
    from sim.fault_schedule import FaultSchedule

__all__ = ["dies_with_its_vote"]

LATE = 0.008
"""Seconds one way: a round trip within the timeout of a ttl of one second."""
YEAR = 365 * 86400.0


def dies_with_its_vote(fault_schedule: FaultSchedule) -> None:
    scene, rng = fault_schedule.scene, fault_schedule.rng
    clients = [client for client in scene.clients if not client.actor.stopped]
    if not scene.plan.guard or len(scene.nodes) < 5 or len(clients) < 2 or fault_schedule.suspects():
        return  # without a guard no client checks a node that has lost its data
    dies, looks = rng.sample(clients, 2)
    # False comes first: a node that refuses tracking.
    first, *late, out1, out2 = sorted(rng.sample(scene.nodes, 5), key=lambda node: node.tracks)
    name = f"rare {fault_schedule.world.now:.3f}"  # no other user has this name
    fault_schedule.note("dies with its vote", dies.name, looks.name, [node.index for node in (first, *late)])
    for node in (out1, out2):
        scene.net.cut(dies.where, node.index)
    for node in late:
        scene.net.far[dies.where, node.index] = LATE
    dies.io.wall_ahead, looks.io.wall_ahead = YEAR, 0.0
    first.forgetting = lambda node: _forgets(fault_schedule, node, looks)
    _start(dies, _take(dies, name, 1.0))
    fault_schedule.world.at(fault_schedule.world.now + 5 * LATE, _dies, fault_schedule, dies, first)
    opens = fault_schedule.world.now + fault_schedule.plan.quarantine + 2.5
    for node in late:
        fault_schedule.world.at(opens, scene.net.cut, looks.where, node.index)
        fault_schedule.world.at(opens + 1.0, scene.net.repair, looks.where, node.index)
    looks.actor.at(opens + 0.1, lambda: _start(looks, _take(looks, name, 0.0)))


def _start(client: Client, work: Coroutine[Any, Any, Any]) -> None:
    client.tasks.append(Task(client.actor, work, f"{client.name}: a rare history", _ended))


def _ended(task: Task) -> None:
    if task.error is not None and not isinstance(task.error, HandfastError):
        raise task.error


async def _take(client: Client, name: str, keep: float) -> None:
    lock, asked = client.lock(name), client.world.now
    began = client.observer.began(lock.names)
    try:
        hold = await client.acquire(lock, 0.0)
    except HandfastError:
        return
    client.observer.returned(client, hold, began, asked)
    await client.io.sleep(client.io.now() + keep)
    await client.release(hold)


def _forgets(fault_schedule: FaultSchedule, node: Node, looks: Client) -> None:
    node.forgetting = None
    world = fault_schedule.world
    world.at(world.now + 1e-6, node.forget)
    world.at(world.now + 2e-4, lambda: _start(looks, guard.repair(looks.io, looks.group)))


def _dies(fault_schedule: FaultSchedule, client: Client, first: Node) -> None:
    scene = fault_schedule.scene
    first.forgetting = None
    for link in client.io.links:
        if link.tcp is not None:
            link.tcp.stuck[1].clear()  # what was on its way is lost with it
    if not client.actor.dead:
        fault_schedule.crash(client)
    for node in scene.nodes:
        scene.net.far.pop((client.where, node.index), None)
        scene.net.repair(client.where, node.index)
