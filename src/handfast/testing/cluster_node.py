"""A node of a cluster, and how it sees the cluster."""

from __future__ import annotations

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
    """What CLUSTER NODES says; nodes by their ids."""

    epoch: int = 0
    """The latest that it has heard of."""
    slots: dict[str, frozenset[int]] = field(default_factory=dict)
    """Of the masters that have any."""
    master_of: dict[str, str] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)
    """Those that it is connected with, and itself."""
    moving: set[int] = field(default_factory=set)
    """Slots that come to it or leave it."""


class ClusterNode(Server):
    """Its port and the one of its bus are reserved."""

    id = ""
    """As the other nodes know it, once it was started."""

    def wait_ready(self) -> None:
        super().wait_ready()
        self.id = _text(self.command("CLUSTER", "MYID"))

    def state(self) -> str:
        """ "ok" or "fail"."""
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
        if slots := frozenset(slot for word in words if word[0] != "[" for slot in _range(word)):
            view.slots[name] = slots
        view.moving |= {int(word[1:].partition("-")[0]) for word in words if word[0] == "["}
    return view


def _range(word: str) -> range:
    """ "7" or "0-5460"."""
    first, _, last = word.partition("-")
    return range(int(first), int(last or first) + 1)


def _text(reply: Reply) -> str:
    assert isinstance(reply, bytes)
    return reply.decode()
