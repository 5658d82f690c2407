"""A simulated server: it gets the very bytes that a real one would get, and answers in RESP3.

It has a clock of its own, can be stopped like any process, be killed and come back with its data or without, forget
everything on a live connection (FLUSHALL), lose its scripts, and refuse to work for a while. A life is what lies
between two starts; what the restart guard calls an incarnation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from handfast import lua
from handfast.core.guard import Marker
from sim.net import Net, TcpConnection
from sim.scripts import SCRIPTS
from sim.store import Store, WrongType, encoded
from sim.world import Actor, Clock, World

__all__ = ["Node", "commands_in"]

NEVER: Final = float("-inf")
WRONGTYPE: Final = "-WRONGTYPE Operation against a key holding the wrong kind of value"
_NAMES: Final = {lua.TEXT[name]: lua.SHA[name] for name in lua.NAMES}
_WRITES: Final = frozenset({b"SET", b"EVALSHA", b"DEL", b"DELIFEQ"})
_CALM: Final = frozenset({b"PING", b"HELLO", b"CLIENT", b"SCRIPT", b"INFO"})
"""What a server answers in any mood."""


def commands_in(payload: bytes) -> list[list[bytes]]:
    """The commands of a payload, each as its words; none of our words has a line break of the protocol's in it.

    >>> commands_in(b"*2\\r\\n$3\\r\\nGET\\r\\n$1\\r\\nk\\r\\n*1\\r\\n$4\\r\\nPING\\r\\n")
    [[b'GET', b'k'], [b'PING']]
    """
    parts = payload.split(b"\r\n")
    at, last = 0, len(parts) - 1
    found: list[list[bytes]] = []
    while at < last:
        end = at + 1 + 2 * int(parts[at][1:])
        found.append(parts[at + 2 : end : 2])
        at = end
    return found


class Witness(Protocol):
    """Who sees what servers do: the observer."""

    def complain(self, number: int, text: str) -> None: ...
    def voted(self, node: Node, owner: bytes) -> None: ...
    def passed_on(self, node: Node, script: str, key: bytes, by: bytes, waiting: list[bytes], reply: Any) -> None: ...


class Node(Store):
    """One server of a deployment."""

    def __init__(self, world: World, net: Net, index: int, clock: Clock, witness: Witness) -> None:
        super().__init__(world, Actor(world, f"n{index}"), clock, index, witness.complain)
        self._witness = witness
        self._net = net
        self.up = True
        self._dark = False
        """Its machine has no power."""
        self.life = 0
        self.forgot_at = NEVER
        """When it last lost its data."""
        self.mood = ""
        """The error with which it meets those who want something of it, if any: see faults.py."""
        self.tracks = True
        self.forgetting: Callable[[Node], None] | None = None
        """Called when it has granted its vote, if that may be the last that it remembers."""
        self._loaded: set[bytes] = set()
        self._connections: dict[TcpConnection, None] = {}
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
        """kill -9: its connections are gone, and what was on its way to it. Without power a machine says nothing."""
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
        """`memory`: all, none, or old: what was on its disk a second before it was killed."""
        self.up = True
        self._dark = False
        self.life += 1
        self._loaded.clear()
        self._name()
        if memory == "none":
            self.forget()
        elif memory == "old":
            self.roll_back()
            self.forgot_at = self.world.now

    def save(self) -> None:
        """What a later `roll_back` comes back to: an append-only file that is written every second."""
        self._saved = (dict(self.data), dict(self.ends), {name: list(queue) for name, queue in self.queues.items()})

    def roll_back(self) -> None:
        self.data, self.ends, self.queues = self._saved
        self.save()

    def forget(self) -> None:
        self.empty()
        self.forgot_at = self.world.now

    def step(self, seconds: float) -> None:
        self.clock.step(seconds)
        self.stepped()

    def lose_scripts(self) -> None:
        self._loaded.clear()

    # -- what the observer asks ------------------------------------------------------------------------------------

    def may_vote(self, marker_key: bytes) -> bool:
        """Its marker lets it vote."""
        marker = Marker.parse(self.shows(marker_key))
        return marker is not None and marker.votes and marker.incarnation.startswith(self.run_id.encode())

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
        if tcp not in self._connections:
            if self._dark:  # half-open: nobody is told that nobody is there
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
                    self.exists(key)
                    self.track(key, tcp)
            caching = words[0] == b"CLIENT" and words[1] == b"CACHING"
            if words[0] == b"CLIENT" and words[1] == b"TRACKING" and self.tracks:
                self.trackers[tcp] = None
            if words[0] == b"SUBSCRIBE":  # confirmed by a push
                self.channels[words[1]] = tcp
                out.append(b">3\r\n$9\r\nsubscribe\r\n" + encoded(words[1]) + b":1\r\n")
            else:
                out.append(encoded(self._call(words)))
        tcp.out = None
        tcp.reply(b"".join(out))

    # -- commands --------------------------------------------------------------------------------------------------

    def _call(self, words: list[bytes]) -> Any:
        name = words[0]
        if self.mood and name not in _CALM and (name in _WRITES or not self.mood.startswith("-OOM")):
            self.world.happened["25 " + self.mood[1:].partition(" ")[0]] += 1
            return self.mood
        if name == b"EVALSHA":
            if words[1] not in self._loaded:
                self.world.happened["25 NOSCRIPT"] += 1
                return "-NOSCRIPT No matching script. Please use EVAL."
            count = 3 + int(words[2])
            script, run = SCRIPTS[words[1]]
            if script == "acquire" or script == "claim":
                self._witness.voted(self, words[count])
            keys = words[3:count]
            waiting = list(self.queues.get(keys[1], ())) if script == "claim" or script == "pass" else []
            holder = self.shows(keys[0])
            try:
                reply = run(self, keys, words[count:])
            except WrongType:
                reply = WRONGTYPE
            except ValueError:  # something that a stranger has made of a counter
                reply = "-ERR Error running script: attempt to perform arithmetic on a nil value"
            self.world.note("run", self.index, script, words[count], reply)
            if self.forgetting is not None and script == "acquire" and type(reply) is int:
                self.forgetting(self)
            if waiting and self.shows(keys[0]) != holder:
                self._witness.passed_on(self, script, keys[0], words[count], waiting, reply)
            return reply
        command = _COMMANDS.get(name)
        try:
            return command(self, words) if command is not None else f"-ERR unknown command '{name.decode()}'"
        except WrongType:
            return WRONGTYPE

    def _set(self, words: list[bytes]) -> Any:
        key, value, options = words[1], words[2], words[3:]
        px = int(options[options.index(b"PX") + 1]) if b"PX" in options else None
        if b"NX" in options:
            if self.exists(key):
                return None
            self._witness.voted(self, value)
            self.put(key, value, px, value)
        else:
            self.overwrite(key, value, px)
        return "OK"

    def _get(self, words: list[bytes]) -> Any:
        return self.get(words[1])

    def _mget(self, words: list[bytes]) -> Any:
        # Of several keys one of another kind is no error: it has no value.
        return [None if self.queues.get(key) else self.get(key) for key in words[1:]]

    def _pttl(self, words: list[bytes]) -> Any:
        return self.pttl(words[1])

    def _del(self, words: list[bytes]) -> Any:
        found = [key for key in words[1:] if self.exists(key)]
        for key in found:
            # A plain DEL is made in nobody's name: right for a hint, never for a lock.
            if self.queues.pop(key, None) is not None:
                self.touch(key)
            else:
                self.drop(key, self.data[key] if key.endswith(b":w") else b"")
        return len(found)

    def _delifeq(self, words: list[bytes]) -> Any:
        if self.get(words[1]) != words[2]:
            return 0
        self.drop(words[1], words[2])
        return 1

    def _lrange(self, words: list[bytes]) -> Any:
        return list(self.queue(words[1]))

    def _rpush(self, words: list[bytes]) -> Any:
        queue = self.queue(words[1])
        self.queues[words[1]] = queue
        queue += words[2:]
        self.touch(words[1])
        return len(queue)

    def _time(self, words: list[bytes]) -> Any:
        seconds, micros = divmod(self.micros(), 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    def _info(self, words: list[bytes]) -> Any:
        return self._about

    def _script(self, words: list[bytes]) -> Any:
        if words[1] == b"FLUSH":
            self.lose_scripts()
            return "OK"
        sha = _NAMES[words[2]]
        self._loaded.add(sha)
        return sha

    def _flushall(self, words: list[bytes]) -> Any:
        self.forget()
        return "OK"

    def _hello(self, words: list[bytes]) -> Any:
        return "OK"

    def _ping(self, words: list[bytes]) -> Any:
        return "PONG"

    def _client(self, words: list[bytes]) -> Any:
        return "OK" if self.tracks or words[1] == b"SETNAME" else "-ERR tracking is refused here"


_COMMANDS: Final[dict[bytes, Callable[[Node, list[bytes]], Any]]] = {
    b"SET": Node._set,
    b"GET": Node._get,
    b"MGET": Node._mget,
    b"PTTL": Node._pttl,
    b"DEL": Node._del,
    b"DELIFEQ": Node._delifeq,
    b"LRANGE": Node._lrange,
    b"RPUSH": Node._rpush,
    b"FLUSHALL": Node._flushall,
    b"TIME": Node._time,
    b"INFO": Node._info,
    b"SCRIPT": Node._script,
    b"HELLO": Node._hello,
    b"PING": Node._ping,
    b"CLIENT": Node._client,
}
