"""A simulated server: it gets the same bytes as a real one, and replies in RESP3.

It has its own clock. It can be stopped like any process, be killed and come back with or without its data, lose
everything on a live connection (FLUSHALL), lose its scripts, and refuse to work for a while. A life is the time between
two starts; the restart guard calls it an incarnation.

Servers differ in two ways that clients notice. Some have a command that compares and deletes (DELIFEQ). And if a command
causes a push to its own connection, some servers send the push after the reply, others before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, Protocol

from handfast.core.guard import Marker
from handfast.operate.breaking import break_terms
from handfast.protocol import scripts
from handfast.protocol.keys import FENCE, GENERATIONS
from sim import lua
from sim.lua import ReplyError
from sim.net import Net, TcpConnection
from sim.resp import commands_in, encoded, identity_in
from sim.store import Store, is_lock
from sim.world import Actor, Clock, World

__all__ = ["Node"]

NEVER: Final = float("-inf")
_SHA: Final = {text: scripts.SHA[name] for name, text in scripts.TEXT.items()}
_VOTES: Final = frozenset({"claim", "acquire_all"})
_GIVES_BACK: Final = frozenset({"pass", "yield", scripts.BREAK})
_WRITES: Final = frozenset({b"SET", b"EVALSHA", b"DEL", b"DELIFEQ"})
_CALM: Final = frozenset({b"PING", b"HELLO", b"CLIENT", b"SCRIPT", b"INFO", b"SUBSCRIBE"})
"""Commands that a server answers even while it refuses the others."""


class Witness(Protocol):
    """The observer, as servers see it."""

    def complain(self, number: int, text: str) -> None: ...
    def voted(self, node: Node, key: bytes, owner: bytes) -> None: ...
    def handed_over(
        self, node: Node, key: bytes, by: bytes, waiting: dict[bytes, float], claims: dict[bytes, bytes]
    ) -> None: ...


class Node(Store):
    """One server of a deployment."""

    def __init__(self, world: World, net: Net, index: int, clock: Clock, witness: Witness) -> None:
        super().__init__(world, Actor(world, f"n{index}"), clock, index, witness.complain)
        self._witness = witness
        self._net = net
        self.up = True
        self._dark = False
        """The machine has no power."""
        self.life = 0
        self.forgot_at = NEVER
        """When it last lost its data."""
        self.disturbed_at = NEVER
        """When it last lost its data or its connections."""
        self.mood = ""
        """The error with which it answers every command; empty: none."""
        self.tracks = True
        self.compares = True
        """It knows DELIFEQ."""
        self.replies_first = False
        """A push that a command causes to its own connection comes after the reply (Valkey), or before it (Redis)."""
        self.forgetting: Callable[[Node], None] | None = None
        """Called after a grant, for the fault that a node loses its data right after a vote."""
        self._judged: tuple[bytes | None, int, bool] = (None, 0, False)
        """A marker, the life in which it was seen, and whether it lets the node vote."""
        self._loaded: set[bytes] = set()
        self._connections: dict[TcpConnection, None] = {}
        self._heals = False
        """The running script restores a vote."""
        self._pushed: list[bytes] = []
        """Pushes to the connection whose command is running, not sent yet."""
        self.save()
        self._name()

    def _name(self) -> None:
        self.run_id = f"{self.index:020d}{self.life:020d}"
        self._about = (
            f"# Server\r\nrun_id:{self.run_id}\r\nrole:master\r\nmaster_replid:{self.run_id}\r\n"
            f"master_replid2:{'0' * 40}\r\nmaxmemory:0\r\n"
        ).encode()

    # -- faults ----------------------------------------------------------------------------------------------------

    def kill(self, *, silently: bool = False) -> None:
        """kill -9: its connections end, and bytes on their way to it are lost. `silently`: a power cut."""
        self.up = False
        self._dark = silently
        if not silently:
            for tcp in self._connections:
                tcp.break_off()
        self._connections.clear()
        self.channels.clear()
        self.trackers.clear()
        self.tracked.clear()

    def start(self, memory: str) -> None:
        """`memory`: all, none, or old (what was on disk a second before the kill)."""
        self.up = True
        self._dark = False
        self.disturbed_at = self.world.now
        self.life += 1
        self._loaded.clear()
        self._name()
        if memory == "none":
            self.forget()
        elif memory == "old":
            self.roll_back()
            self.forgot_at = self.world.now

    def save(self) -> None:
        """Saves the data for a later `roll_back`, like an append-only file that is written every second."""
        self._saved = ({key: copy.copy(value) for key, value in self.data.items()}, dict(self.ends))

    def roll_back(self) -> None:
        self.data, self.ends = self._saved
        self.save()

    def forget(self) -> None:
        self.empty()
        self.forgot_at = self.disturbed_at = self.world.now

    def step(self, seconds: float) -> None:
        self.clock.step(seconds)
        self.stepped()

    def lose_scripts(self) -> None:
        self._loaded.clear()

    def break_lock(self, key: bytes, owner: bytes, guard_keys: Sequence[bytes], retention: int) -> Any:
        """An operator who sees this owner breaks the lock; returns the reply of `break.lua`."""
        token = self.table(key + GENERATIONS).get(b"t") or self.shows(key + FENCE) or b""
        names, *args = break_terms(key, guard_keys, owner, token, retention)
        self._loaded.add(scripts.SHA[scripts.BREAK])
        return self._script([b"EVALSHA", scripts.SHA[scripts.BREAK], b"%d" % len(names), *names, *args])

    # -- what the observer asks ------------------------------------------------------------------------------------

    def may_vote(self, marker_key: bytes) -> bool:
        """Its marker lets it vote."""
        raw = self.shows(marker_key)
        if (raw, self.life) != self._judged[:2]:
            marker = Marker.parse(raw)
            votes = marker is not None and marker.votes and marker.incarnation.startswith(self.run_id.encode())
            self._judged = (raw, self.life, votes)
        return self._judged[2]

    # -- connections -----------------------------------------------------------------------------------------------

    def dialled(self, tcp: TcpConnection) -> None:
        if self.up:
            self._connections[tcp] = None
            self._net.carry(tcp, 0, tcp.end.accepted)
        elif not self._dark:
            self._net.carry(tcp, 0, tcp.end.refused)

    def left(self, tcp: TcpConnection) -> None:
        if self._connections.pop(tcp, self) is None:
            self.forget_listener(tcp)
        self._net.ended(tcp)

    def receive(self, tcp: TcpConnection, data: bytes) -> None:
        tcp.handled += 1
        if tcp not in self._connections:
            if self._dark:  # half-open: without power, nothing refuses the connection
                self.world.happened["21"] += 1
            else:
                tcp.break_off()
            return
        out: list[bytes] = []
        tcp.out = out
        caching = False
        for words in commands_in(data):
            if caching and self.tracks:
                for key in words[1:]:
                    self.find(key)
                    self.track(key, tcp)
            caching = words[0] == b"CLIENT" and words[1] == b"CACHING"
            if words[0] == b"CLIENT" and words[1] == b"TRACKING" and self.tracks:
                self.trackers[tcp] = None
            if words[0] == b"SUBSCRIBE":  # a push confirms it
                self.channels[words[1]] = tcp
                out.append(b">3\r\n$9\r\nsubscribe\r\n" + encoded(words[1]) + b":1\r\n")
            else:
                out.append(encoded(self._call(words)))
            if self._pushed:
                out += self._pushed
                self._pushed.clear()
        tcp.out = None
        tcp.reply(b"".join(out))

    def push(self, tcp: TcpConnection, data: bytes) -> None:
        if tcp.out is not None and self.replies_first:
            self._pushed.append(data)
        else:
            tcp.reply(data)

    # -- commands --------------------------------------------------------------------------------------------------

    def _call(self, words: Sequence[bytes]) -> Any:
        name = words[0]
        if self.mood and name not in _CALM and (name in _WRITES or not self.mood.startswith("-OOM")):
            self.world.happened["25 " + self.mood[1:].partition(" ")[0]] += 1
            return self.mood
        if name == b"EVALSHA":
            return self._script(words)
        try:
            return self.execute(words)
        except ReplyError as error:
            return f"-{error}"

    def _script(self, words: Sequence[bytes]) -> Any:
        if words[1] not in self._loaded:
            self.world.happened["25 NOSCRIPT"] += 1
            return "-NOSCRIPT No matching script. Please use EVAL."
        script, keys = lua.NAMES[words[1]], int(words[2])
        owner = words[3 + keys] if script != "set_marker" else b""
        if script in _VOTES:
            for key in words[3 : 3 + (int(words[3 + keys + 3]) if script == "acquire_all" else 1)]:
                self._witness.voted(self, key, owner)
        waiting: dict[bytes, float] = {}
        claims: dict[bytes, bytes] = {}
        holds = script in _GIVES_BACK and self.shows(words[3]) == owner
        if holds:
            waiting, claims = dict(self.table(words[4])), dict(self.table(words[5]))
        self.by, self._heals = owner, script == "restore_vote"
        reply = lua.run(self, script, keys, words[3:])
        self.by, self._heals = None, False
        self.world.note("run", self.index, script, words[3 + keys :][:3], reply)
        if (
            self.forgetting is not None
            and script in _VOTES
            and (type(reply) is int or (type(reply) is list and reply[0]))
        ):
            self.forgetting(self)
        if holds and (waiting or script == "yield"):
            who = identity_in(script, words[3 + keys :])
            self._witness.handed_over(self, words[3], owner if who is None else who.id, waiting, claims)
        return reply

    def _set(self, words: Sequence[bytes]) -> Any:
        if self.by is None and b"NX" in words:  # the published protocol
            self._witness.voted(self, words[1], words[2])
            self.by = words[2]
            try:
                return super()._set(words)
            finally:
                self.by = None
        if is_lock(words[1]) and not self._heals:  # a restored vote is no new vote
            self._witness.voted(self, words[1], words[2])
        return super()._set(words)

    def about(self) -> bytes:
        return self._about

    def _delifeq(self, words: Sequence[bytes]) -> Any:
        if not self.compares:
            raise ReplyError("ERR unknown command 'DELIFEQ'")
        if self._string(words[1]) != words[2]:
            return 0
        return self._del([b"DEL", words[1]])

    def _load(self, words: Sequence[bytes]) -> Any:
        if words[1] == b"FLUSH":
            self.lose_scripts()
            return "OK"
        sha = _SHA[words[2]]
        self._loaded.add(sha)
        return sha

    def _flushall(self, words: Sequence[bytes]) -> Any:
        self.forget()
        return "OK"

    def _hello(self, words: Sequence[bytes]) -> Any:
        return "OK"

    def _ping(self, words: Sequence[bytes]) -> Any:
        return "PONG"

    def _client(self, words: Sequence[bytes]) -> Any:
        return "OK" if self.tracks or words[1] == b"SETNAME" else "-ERR tracking is refused here"

    commands: ClassVar = {
        **Store.commands,
        b"SET": _set,
        b"DELIFEQ": _delifeq,
        b"FLUSHALL": _flushall,
        b"SCRIPT": _load,
        b"HELLO": _hello,
        b"PING": _ping,
        b"CLIENT": _client,
    }
