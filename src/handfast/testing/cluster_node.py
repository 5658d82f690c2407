"""A node of a cluster for tests, and its view of the cluster."""

from __future__ import annotations

import functools
import socket
from dataclasses import dataclass, field
from typing import Final

from ..embedded.resp import Reply
from .ports import reserve_with_bus
from .server_versions import older_than_7
from .servers import Server

__all__ = ["SLOTS", "ClusterNode", "View"]

SLOTS: Final = 16384
UNWELL: Final = frozenset({"fail", "fail?", "handshake", "noaddr"})


@dataclass
class View:
    """The reply to CLUSTER NODES. Nodes are given by their ids."""

    epoch: int = 0
    """The latest configuration epoch that the node knows."""
    slots: dict[str, frozenset[int]] = field(default_factory=dict)
    """The slots of each master that has any."""
    master_of: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    """The node itself, and the nodes that it is connected with."""
    moving: set[int] = field(default_factory=set)
    """Slots that are being moved to or from the node."""


class ClusterNode(Server):
    """A server in cluster mode. Its port and the port of its bus are reserved."""

    id = ""
    """The node's id in the cluster, after the first start."""

    def wait_ready(self) -> None:
        super().wait_ready()
        self.id = _text(self.command("CLUSTER", "MYID"))

    def state(self) -> str:
        """The cluster's state as the node sees it: "ok" or "fail"."""
        return _text(self.command("CLUSTER", "INFO")).partition("cluster_state:")[2].split()[0]

    def view(self) -> View:
        return _read(_text(self.command("CLUSTER", "NODES")))

    def add_slots(self, slots: range) -> None:
        if older_than_7(self.binary):
            self.command("CLUSTER", "ADDSLOTS", *slots)
        else:
            self.command("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])

    def _reserve(self) -> list[socket.socket]:
        return reserve_with_bus()


def _read(said: str) -> View:
    view = View()
    for line in said.splitlines():
        name, _, flags, master, _, _, epoch, link, *words = line.split()
        view.epoch = max(view.epoch, int(epoch))
        if link == "connected" and not UNWELL & set(flags.split(",")):
            view.reached.add(name)
        if master != "-":
            view.master_of[name] = master
        if slots := _slots(*(word for word in words if word[0] != "[")):
            view.slots[name] = slots
        view.moving |= {int(word[1:].partition("-")[0]) for word in words if word[0] == "["}
    return view


@functools.lru_cache(maxsize=64)
def _slots(*words: str) -> frozenset[int]:
    """The slots of a master. Kept: there are thousands, and every look at a cluster finds the same ones."""
    return frozenset(slot for word in words for slot in _range(word))


def _range(word: str) -> range:
    """Parse slots such as "7" or "0-5460"."""
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)


def _text(reply: Reply) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()
