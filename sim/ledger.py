"""What was sent for whom: nothing for what is over (invariant 7), and a release behind every attempt that failed (9).

A lock that is left behind ends with its ttl, and nobody else would notice; so it is looked at what was *sent*. Whoever
asked a node to hold something for an owner must, once that owner's attempt has failed or its hold was released, have sent
a release behind it on the same connection; or on another one, if by then the node had carried out the first. A
connection that is gone excuses it: what else is done then is the watchdog's business and, in the end, the ttl's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from handfast.core.hold import HELD, LOST, RELEASED, Hold
from sim.net import TcpConnection
from sim.node import Node, commands_in
from sim.scripts import SCRIPTS

if TYPE_CHECKING:
    from sim.client import Client
    from sim.world import Task, World

__all__ = ["PRESENTED", "Ledger"]

PRESENTED: Final = b"user "
"""How owners begin that users present."""
UNDONE: Final = 0.1
"""Seconds within which a watchdog that was not stopped sends what it has to send."""
_TAKES: Final = frozenset({"acquire", "claim", "heal"})
_LEAVES: Final = frozenset({"release", "pass"})
_ONLY_HELD: Final = frozenset({"extend", "heal", "raise"})
"""Scripts that may be sent for nothing but what is held, or is being taken."""


class _Laid(NamedTuple):
    """Somebody has asked a node to hold something."""

    client: Client
    tcp: TcpConnection


class Ledger:
    """Of all clients."""

    def __init__(self, world: World, complain: Callable[[int, str], None], holds: dict[bytes, list[Hold]]) -> None:
        self.nodes: list[Node] = []
        self._world = world
        self._complain = complain
        self._holds = holds
        """By owner."""
        self._laid: dict[tuple[int, bytes], _Laid] = {}
        """By node and owner."""
        self._trying: dict[Task, bytes] = {}
        self._over: dict[bytes, float] = {}
        """Owners whose attempt has failed, or whose hold was released, and when."""

    def told(self, client: Client, tcp: TcpConnection, node: int, data: bytes, again: bool) -> None:
        if b"EVALSHA" not in data and b"\r\nNX\r\n" not in data and b"DELIFEQ" not in data:
            return
        for words in commands_in(data):
            name, what, owner = words[0], "", b""
            if name == b"EVALSHA":
                what, owner = SCRIPTS[words[1]][0], words[3 + int(words[2])]
                if what in _ONLY_HELD:
                    self._still_held(client, what, owner, again)
            elif name == b"SET" and b"NX" in words:
                what, owner = "acquire", words[2]
            elif name == b"DELIFEQ":
                what, owner = "release", words[2]
            if what in _TAKES:
                self._laid[node, owner] = _Laid(client, tcp)
                if what != "heal":
                    self._tries(owner)
            elif what in _LEAVES:
                self._undone(client, node, owner, tcp)

    def _tries(self, owner: bytes) -> None:
        task = self._world.task
        if task is not None and owner not in self._holds:
            before = self._trying.get(task)
            if before is not None and before != owner:
                self._fails(before)
            self._trying[task] = owner

    def asked_for(self, task: Task | None) -> None:
        """A caller's attempts are over; the last of them may have succeeded."""
        owner = self._trying.pop(task, None) if task is not None else None
        if owner is not None:
            self._fails(owner)

    def _fails(self, owner: bytes) -> None:
        # Others may hold something under an owner that was presented: only what was newly granted is taken back.
        if owner not in self._holds and not owner.startswith(PRESENTED):
            self._over[owner] = self._world.now

    def _undone(self, client: Client, node: int, owner: bytes, tcp: TcpConnection) -> None:
        laid = self._laid.get((node, owner))
        if laid is not None and (laid.tcp is tcp or self._holds_for(node, owner)):
            del self._laid[node, owner]
        links = client.dog.io.links
        if links[node].tcp is tcp:
            # What the watchdog releases for others it releases where it is connected; the rest is the ttl's.
            for link in links:
                if link.connection is None:
                    self._laid.pop((link.index, owner), None)

    def _holds_for(self, node: int, owner: bytes) -> bool:
        at = self.nodes[node]
        return any(key.endswith(b"}") and at.shows(key) == owner for key in at.data)

    def _still_held(self, client: Client, what: str, owner: bytes, again: bool) -> None:
        holds = self._holds.get(owner, ())
        now = client.clock.now()
        if not holds or any(hold.presented or (hold.state == HELD and now < hold.deadline) for hold in holds):
            return
        last = holds[-1]
        # What belongs to an exchange that began in time may be sent a little later, once a connection is there.
        if not again or now > last.deadline + last.settings.terms.patience:
            state = last.state if last.state != HELD else "past its deadline"
            self._complain(7, f"{client.name} sends {what} for {owner!r}, which is {state}")

    def gone(self, client: Client) -> None:
        """A process has died: it undoes nothing."""
        for key in [key for key, laid in self._laid.items() if laid.client is client]:
            del self._laid[key]

    def audit(self) -> None:
        for node in self.nodes:
            for key in [key for key in node.data if key.endswith(b"}")]:
                owner = node.shows(key)
                laid = self._laid.get((node.index, owner)) if owner is not None else None
                if laid is not None and self._left_behind(laid, node.data[key]):
                    self._complain(
                        9, f"{laid.client.name} has sent no release of {owner!r} to n{node.index}, which holds it"
                    )

    def _left_behind(self, laid: _Laid, owner: bytes) -> bool:
        """Its owner is done with it, and nothing excuses the client."""
        now, holds = self._world.now, self._holds.get(owner, ())
        if any(hold.state == LOST or hold.presented for hold in holds):
            return False
        if holds and owner not in self._over and all(hold.state == RELEASED for hold in holds):
            self._over[owner] = now
        since = self._over.get(owner)
        return since is not None and now - since > UNDONE and self._in_order(laid)

    def _in_order(self, laid: _Laid) -> bool:
        """Nothing excuses the client."""
        dog = laid.client.dog
        awake = not dog.actor.stopped and self._world.now - dog.actor.went_on > UNDONE
        return laid.tcp.open and awake and dog.io.settled
