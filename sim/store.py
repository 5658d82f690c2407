"""What a simulated server remembers: keys with an end, counters, queues; and who wants to hear of a change.

Time is the server's own clock, in whole milliseconds where a server counts in milliseconds. A key whose time has come is
gone for everybody who looks; those who track it are told a little later, as a server's expiry cycle would.

Every change goes through `put` and `drop`, which say in whose name it is made: nobody but its owner may touch a lock
(invariant 8), and no counter may fall while its server remembers it (invariant 12).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sim.net import TcpConnection
from sim.world import Actor, Clock, World

__all__ = ["Store", "WrongType", "encoded"]

CYCLE: Final = 0.1
"""Seconds: at most so long after its end a key is found to be over by the server itself."""


class WrongType(Exception):
    """A key is something else than the command wants."""


def encoded(reply: Any) -> bytes:
    """A reply in RESP3."""
    if isinstance(reply, int):
        return b":%d\r\n" % reply
    if isinstance(reply, bytes):
        return b"$%d\r\n%b\r\n" % (len(reply), reply)
    if reply is None:
        return b"_\r\n"
    if isinstance(reply, str):  # a status, or an error with its sign
        return (reply if reply.startswith("-") else "+" + reply).encode() + b"\r\n"
    return b"*%d\r\n" % len(reply) + b"".join([encoded(each) for each in reply])


class Store:
    """The data of one server."""

    def __init__(
        self, world: World, actor: Actor, clock: Clock, index: int, complain: Callable[[int, str], None]
    ) -> None:
        self.world = world
        self.actor = actor
        self.clock = clock
        self.index = index
        self._complain = complain
        self.data: dict[bytes, bytes] = {}
        self.ends: dict[bytes, int] = {}
        """In ms of the server's clock."""
        self.queues: dict[bytes, list[bytes]] = {}
        self.channels: dict[bytes, TcpConnection] = {}
        """Who has subscribed to what."""
        self.trackers: dict[TcpConnection, None] = {}
        """Who has asked that some of its reads be tracked."""
        self.tracked: dict[bytes, dict[TcpConnection, None]] = {}
        """By key: who has asked to be told of its next change."""

    # -- time ------------------------------------------------------------------------------------------------------

    def micros(self) -> int:
        return int(self.clock.now() * 1e6)

    def millis(self) -> int:
        return int(self.clock.now() * 1e6) // 1000

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        end = self.ends.get(key)
        if end is not None and self.millis() > end:
            del self.data[key], self.ends[key]
            self.touch(key)
        if self.queues.get(key):
            raise WrongType
        return self.data.get(key)

    def shows(self, key: bytes) -> bytes | None:
        """The same, for who only looks on."""
        end = self.ends.get(key)
        return None if end is not None and self.millis() > end else self.data.get(key)

    def held(self) -> list[tuple[str, bytes]]:
        """The names of the locks whose keys are here, and the owners of those."""
        keys = [key for key in self.data if key.endswith(b"}")]
        shown = [(key[key.index(b"{") + 1 : -1].decode(), self.shows(key)) for key in keys]
        return [(name, owner) for name, owner in shown if owner is not None]

    def keeps(self, key: bytes) -> float:
        """Until when it will show that, by the world's clock, if nobody changes it."""
        end = self.ends.get(key)
        return float("inf") if end is None else self.clock.when((end + 1) / 1000)

    def count(self, key: bytes) -> int:
        """A counter; one that a stranger has made something else of is a ValueError."""
        if self.queues.get(key):
            raise WrongType
        return int(self.data.get(key, b"0"))

    def exists(self, key: bytes) -> bool:
        return bool(self.queues.get(key)) or self.get(key) is not None

    def queue(self, key: bytes) -> list[bytes]:
        """The very list, or an empty one."""
        queue = self.queues.get(key)
        if not queue and self.get(key) is not None:
            raise WrongType
        return [] if queue is None else queue

    def pttl(self, key: bytes) -> int:
        """PTTL."""
        if not self.exists(key):
            return -2
        end = self.ends.get(key)
        return -1 if end is None else end - self.millis()

    # -- changing --------------------------------------------------------------------------------------------------

    def put(self, key: bytes, value: bytes, px: int | None, by: bytes) -> None:
        """Set a lock for `by`, or on its behalf."""
        before = self.get(key)
        if before is not None and before != by:
            self._complain(8, f"node {self.index}: {by!r} has overwritten {key!r} of {before!r}")
        self.data[key] = value
        if px is None:
            self.ends.pop(key, None)
        else:
            self.ends[key] = self.millis() + px
        self.touch(key)

    def drop(self, key: bytes, by: bytes) -> None:
        before = self.get(key)
        if before is not None:
            if before != by:
                self._complain(8, f"node {self.index}: {by!r} has deleted {key!r} of {before!r}")
            del self.data[key]
            self.ends.pop(key, None)
            self.touch(key)

    def plainly(self, key: bytes, value: bytes, px: int | None = None) -> None:
        """Set something that is not a lock."""
        if key.endswith((b":f", b"mark")) and int(value) < self.count(key):
            self._complain(12, f"node {self.index}: the counter {key!r} has fallen from {self.count(key)} to {value!r}")
        self.overwrite(key, value, px)

    def overwrite(self, key: bytes, value: bytes, px: int | None) -> None:
        """SET without any condition, by whomever."""
        self.queues.pop(key, None)
        self.data[key] = value
        if px is not None:
            self.ends[key] = self.millis() + px
        else:
            self.ends.pop(key, None)
        self.touch(key)

    def lift(self, keys: list[bytes], token: bytes) -> None:
        for key in keys:
            if self.count(key) < int(token):
                self.plainly(key, token)

    # -- telling ---------------------------------------------------------------------------------------------------

    def track(self, key: bytes, tcp: TcpConnection) -> None:
        who = self.tracked.get(key)
        if who is None:
            who = self.tracked[key] = {}
            self._look_later(key)
        who[tcp] = None

    def touch(self, key: bytes) -> None:
        who = self.tracked.pop(key, None)
        if who:
            push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(key), key)
            for tcp in who:
                tcp.reply(push)

    def _look_later(self, key: bytes) -> None:
        end = self.ends.get(key)
        if end is not None:
            at = self.clock.when((end + 1) / 1000) + CYCLE * self.world.rng.random()
            self.actor.at(at, self._look, key)

    def _look(self, key: bytes) -> None:
        if key in self.tracked:
            self.get(key)
            if key in self.tracked:
                self._look_later(key)

    def stepped(self) -> None:
        """The clock was set: the expiry cycle finds what that has ended."""
        for key in list(self.ends):
            self.get(key)

    def publish(self, channel: bytes, message: bytes) -> int:
        listener = self.channels.get(channel)
        if listener is None:
            return 0
        listener.reply(b">3\r\n$7\r\nmessage\r\n" + encoded(channel) + encoded(message))
        return 1

    def listens(self, claim: bytes) -> bool:
        """Whoever made this claim would hear of it."""
        return claim[43 : 43 + int(claim[39:43])] in self.channels

    def forget_listener(self, tcp: TcpConnection) -> None:
        for channel in [name for name, each in self.channels.items() if each is tcp]:
            del self.channels[channel]
        self.trackers.pop(tcp, None)
        for who in self.tracked.values():
            who.pop(tcp, None)

    def empty(self) -> None:
        """FLUSHALL: whoever may track something is told that everything has changed."""
        for table in (self.data, self.ends, self.queues, self.tracked):
            table.clear()
        for tcp in self.trackers:
            tcp.reply(b">2\r\n$10\r\ninvalidate\r\n_\r\n")
