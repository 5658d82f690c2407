"""Checks what clients send: nothing for a hold that is over (invariant 7), and a release after each failed attempt (9).

A lock or a claim that is left behind expires, so its effects alone would not show a missing release. The ledger therefore
records what each client *sends*. A request that places a vote or a claim on a node needs a later release, once its
acquisition has failed or its hold was released. The release follows on the same connection, or on another one after the
node has carried out the request. If the connection is gone, no release is required: the watchdog and, in the end, the
ttl take care of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from handfast.core.hold import HELD, LOST, RELEASED, Hold
from handfast.protocol.commands import NO_GENERATION, Identity
from handfast.protocol.keys import GENERATIONS, QUEUE
from handfast.watchdog import LATE_ARRIVAL
from sim import lua
from sim.net import TcpConnection
from sim.node import Node
from sim.resp import commands_in, identity_in

if TYPE_CHECKING:
    from sim.client import Client
    from sim.world import World

__all__ = ["Acquirer", "Ledger", "acquirer"]

UNDONE: Final = 0.1
"""Seconds within which a running watchdog sends its releases."""
_ONLY_HELD: Final = frozenset({"extend", "restore_vote", "raise_token"})
"""Scripts that may be sent only for a hold, or for an acquisition under way."""

Acquirer = tuple[bytes, bytes]
"""Owner and generation: one acquisition, with all its names."""


def acquirer(who: Identity) -> Acquirer:
    return who.owner, who.generation


class _Meaning(NamedTuple):
    """What a command does, to which key, for which acquisition, and under which id."""

    what: str
    key: bytes
    who: Acquirer
    claimant: bytes


@lru_cache(maxsize=256)
def _meanings_of(payload: bytes) -> list[_Meaning]:
    """The commands of a payload. Cached, because most payloads go to every node."""
    if b"EVALSHA" not in payload and b"\r\nNX\r\n" not in payload and b"DELIFEQ" not in payload:
        return []
    return [meaning for words in commands_in(payload) for meaning in _meanings(words)]


def _meanings(words: list[bytes]) -> Iterator[_Meaning]:
    if words[0] == b"SET" and b"NX" in words:
        yield _Meaning("takes", words[1], (words[2], NO_GENERATION), b"")
    elif words[0] == b"DELIFEQ":
        yield _Meaning("leaves", words[1], (words[2], NO_GENERATION), b"")
    elif words[0] == b"EVALSHA":
        script, count = lua.NAMES[words[1]], 3 + int(words[2])
        args = words[count:]
        who = identity_in(script, args)
        if script == "delete_owned":
            yield _Meaning("leaves", words[3], (args[0], NO_GENERATION), b"")
        elif who is not None:
            yield _Meaning("leaves" if script == "pass" else "takes", words[3], acquirer(who), who.id)
        elif script == "acquire_all":
            for key in words[3 : 3 + int(args[3])]:
                yield _Meaning("takes", key, (args[0], args[1]), b"")
        elif script in _ONLY_HELD:
            names = {"extend": (count - 3) // 2, "restore_vote": 3, "raise_token": 2}[script]
            for key in words[3 : 3 + (names if script == "extend" else int(args[names]))]:
                yield _Meaning(script, key, (args[0], args[1]), b"")


class _Placed(NamedTuple):
    """A request that places a vote or a claim on a node."""

    client: Client
    tcp: TcpConnection
    claimant: bytes
    """The id of the claim; empty for a vote without a claim."""
    write: int
    """The number of the write on this connection."""


class Ledger:
    """What all clients have sent and not yet released."""

    def __init__(self, world: World, complain: Callable[[int, str], None], holds: dict[Acquirer, list[Hold]]) -> None:
        self.nodes: list[Node] = []
        self._world = world
        self._complain = complain
        self._holds = holds
        self._placed: dict[Acquirer, dict[tuple[int, bytes, TcpConnection], _Placed]] = {}
        """By acquisition, then by node, key and connection."""
        self._over: dict[Acquirer, float] = {}
        """Acquisitions that have failed, or whose hold was released, and when."""

    def on_write(self, client: Client, tcp: TcpConnection, node: int, data: bytes, again: bool) -> None:
        for what, key, who, claimant in _meanings_of(data):
            if what == "takes":
                self._placed.setdefault(who, {})[node, key, tcp] = _Placed(client, tcp, claimant, tcp.sent)
            elif what == "leaves":
                # A release is sent only at the end of an acquisition.
                self._over.setdefault(who, self._world.now)
                self._undone(client, node, key, who, tcp)
            else:
                self._still_held(client, what, who, again)
                if what == "restore_vote":
                    self._placed.setdefault(who, {})[node, key, tcp] = _Placed(client, tcp, b"", tcp.sent)

    def fails(self, who: Acquirer) -> None:
        """An acquisition has ended without a hold."""
        self._over[who] = self._world.now

    def _undone(self, client: Client, node: int, key: bytes, who: Acquirer, tcp: TcpConnection) -> None:
        placed, links = self._placed.get(who, {}), client.dog.io.links
        by_watchdog = links[node].tcp is tcp
        for where in [where for where in placed if where[1] == key]:
            each = placed[where]
            if where[0] != node:
                # The watchdog releases on the nodes to which it is connected.
                done = by_watchdog and links[where[0]].connection is None
            else:
                there = self._is_there(self.nodes[node], key, who, each.claimant)
                done = each.tcp is tcp or there or self._arrived(self.nodes[node], each)
                # The watchdog releases again a moment later. A claim that arrives even later ends with its ttl.
                done = done or (by_watchdog and self._is_slow(each.tcp))
            if done:
                del placed[where]

    def _is_slow(self, tcp: TcpConnection) -> bool:
        return bool(tcp.stuck[1]) or tcp.last[1] > self._world.now + LATE_ARRIVAL

    @staticmethod
    def _is_there(node: Node, key: bytes, who: Acquirer, claimant: bytes) -> bool:
        """The node has a vote or a claim of this acquisition."""
        owner, generation = who
        if claimant and claimant in node.table(key + QUEUE):
            return True
        if node.shows(key) != owner:
            return False
        # The hash keeps acquisitions that have ended, while another acquisition of the same owner lasts.
        return generation == NO_GENERATION or int(node.table(key + GENERATIONS).get(generation, 0)) > node.millis()

    def _still_held(self, client: Client, what: str, who: Acquirer, again: bool) -> None:
        holds = self._holds.get(who, ())
        now = client.clock.now()
        if not holds or any(hold.state == HELD and now < hold.deadline for hold in holds):
            return
        last = holds[-1]
        # A request that began in time may be written a little later, when a connection is ready.
        if not again or now > last.deadline + last.config.timing.timeout:
            state = last.state if last.state != HELD else "past its deadline"
            self._complain(7, f"{client.name} sends {what} for {who!r}, which is {state}")

    def gone(self, client: Client) -> None:
        """A process has died: it sends no releases."""
        for placed in self._placed.values():
            for where in [where for where, each in placed.items() if each.client is client]:
                del placed[where]

    def audit(self) -> None:
        now = self._world.now
        for who, placed in list(self._placed.items()):
            holds = self._holds.get(who, ())
            if not placed or any(hold.state == LOST for hold in holds):
                del self._placed[who]
                continue
            if holds and who not in self._over and all(hold.state == RELEASED for hold in holds):
                self._over[who] = now
            if now - self._over.get(who, now) > UNDONE:
                self._check(who, placed)

    def _check(self, who: Acquirer, placed: dict[tuple[int, bytes, TcpConnection], _Placed]) -> None:
        """The acquisition is over: complain about what is still there without an excuse, and forget what is gone."""
        for where, each in list(placed.items()):
            index, key, _ = where
            node = self.nodes[index]
            if not each.tcp.open:
                del placed[where]
            elif not self._is_there(node, key, who, each.claimant):
                if self._arrived(node, each):
                    del placed[where]
            elif self._could_send(each.client) and not self._is_releasing(each.client, who):
                self._complain(
                    9, f"{each.client.name} has sent no release of {who!r} to n{index}, which has a vote or a claim of it"
                )

    def _arrived(self, node: Node, placed: _Placed) -> bool:
        """The node has carried out the request, or it was lost and nothing is on its way on this connection."""
        now, actor, tcp = self._world.now, node.actor, placed.tcp
        nothing_travels = not tcp.stuck[1] and tcp.last[1] < now and not actor.stopped and actor.went_on < now
        return nothing_travels or tcp.handled >= placed.write

    @staticmethod
    def _is_releasing(client: Client, who: Acquirer) -> bool:
        """The client's watchdog is releasing it, and may be waiting for the replies of other nodes."""
        return any(acquirer(each) == who for each in client.dog.releasing)

    def _could_send(self, client: Client) -> bool:
        """The client's watchdog could have sent a release."""
        dog = client.dog
        return not dog.actor.stopped and self._world.now - dog.actor.went_on > UNDONE and dog.io.ready
