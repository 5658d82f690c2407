"""The data of a simulated server: strings, hashes and sorted sets, each with or without an end; and its subscribers.

Time is the server's own clock, in whole milliseconds where a server counts in milliseconds. An expired key is gone for
every reader at once; clients that track it get their message a little later, as from a server's expiry cycle.

The store has only the commands that the production scripts and the core use. It checks two invariants with every change:
no acquisition touches a lock of another owner (8), and no counter falls while its server has it (12).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from sim.lua import ReplyError
from sim.net import TcpConnection
from sim.resp import encoded
from sim.world import Actor, Clock, World

__all__ = ["Store", "is_generation", "is_lock", "name_of"]

CYCLE: Final = 0.1
"""The longest time in seconds from the end of a key to the expiry cycle that finds it."""
WRONGTYPE: Final = "WRONGTYPE Operation against a key holding the wrong kind of value"
NOT_AN_INTEGER: Final = "ERR value is not an integer or out of range"
_NOTHING: Final[dict[bytes, Any]] = {}


class Hash(dict[bytes, bytes]):
    """A hash."""


class SortedSet(dict[bytes, float]):
    """A sorted set: scores by member."""

    def ordered(self) -> list[tuple[bytes, float]]:
        return sorted(self.items(), key=lambda item: (item[1], item[0]))


Value = bytes | Hash | SortedSet


def is_generation(field: bytes) -> bool:
    """Whether a field of a hash of generations stands for an acquisition: not for their token, and not for a record."""
    return field != b"t" and not field.startswith(b"*")


def is_lock(key: bytes) -> bool:
    """The key of a lock; with an empty prefix it is the name itself, and the names of simulated locks have no colon."""
    return key.endswith(b"}") or b":" not in key


def name_of(key: bytes) -> str:
    """The name of a lock, from its key."""
    return key.partition(b"{")[2].removesuffix(b"}").decode() if key.endswith(b"}") else key.decode()


def _integer(word: bytes) -> int:
    try:
        return int(word)
    except ValueError:
        raise ReplyError(NOT_AN_INTEGER) from None


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
        self.data: dict[bytes, Value] = {}
        self.ends: dict[bytes, int] = {}
        """In ms of the server's clock."""
        self.channels: dict[bytes, TcpConnection] = {}
        """By channel: the connection that has subscribed to it."""
        self.trackers: dict[TcpConnection, None] = {}
        """Connections that have asked that some of their reads be tracked."""
        self.tracked: dict[bytes, dict[TcpConnection, None]] = {}
        """By key: the connections that get a message about its next change."""
        self.by: bytes | None = None
        """The owner on whose behalf a command runs; None: no owner."""

    # -- time ------------------------------------------------------------------------------------------------------

    def micros(self) -> int:
        return int(self.clock.now() * 1e6)

    def millis(self) -> int:
        return int(self.clock.now() * 1e6) // 1000

    def _is_over(self, end: int) -> bool:
        """The same as `self.millis() > end`, but faster: every access to a key calls it."""
        clock = self.clock
        return (clock.offset + clock.rate * self.world.now) * 1e6 >= (end + 1) * 1000

    # -- for the observer ------------------------------------------------------------------------------------------

    def shows(self, key: bytes) -> bytes | None:
        """The string at a key, for the observer."""
        value = self.data.get(key)
        if value is None or type(value) is not bytes:
            return None
        return None if key in self.ends and self._is_over(self.ends[key]) else value

    def table(self, key: bytes) -> dict[bytes, Any]:
        """The hash or sorted set at a key, for the observer."""
        value = self.data.get(key)
        if value is None or isinstance(value, bytes):
            return _NOTHING
        return _NOTHING if key in self.ends and self._is_over(self.ends[key]) else value

    def held(self) -> list[tuple[bytes, bytes]]:
        """The locks whose keys are here, and their owners."""
        shown = [(key, self.shows(key)) for key in self.data if is_lock(key)]
        return [(key, owner) for key, owner in shown if owner is not None]

    def keeps(self, key: bytes) -> float:
        """The end of a key by the world's clock, if it is not changed."""
        end = self.ends.get(key)
        return float("inf") if end is None else self.clock.when((end + 1) / 1000)

    # -- reading and changing --------------------------------------------------------------------------------------

    def find(self, key: bytes) -> Value | None:
        if key in self.ends and self._is_over(self.ends[key]):
            self._drop(key)
        return self.data.get(key)

    def _string(self, key: bytes) -> bytes | None:
        value = self.find(key)
        if value is not None and type(value) is not bytes:
            raise ReplyError(WRONGTYPE)
        return value

    def _hash(self, key: bytes) -> Hash | None:
        value = self.find(key)
        if value is not None and type(value) is not Hash:
            raise ReplyError(WRONGTYPE)
        return value

    def _zset(self, key: bytes) -> SortedSet | None:
        value = self.find(key)
        if value is not None and type(value) is not SortedSet:
            raise ReplyError(WRONGTYPE)
        return value

    def _drop(self, key: bytes) -> None:
        del self.data[key]
        self.ends.pop(key, None)
        self.touch(key)

    def _check(self, key: bytes, what: str) -> None:
        """Checks whose lock is changed. A hand-over is on behalf of the owner that ends."""
        if self.by is not None and is_lock(key):
            before = self.find(key)
            if before is not None and before != self.by:
                self._complain(8, f"node {self.index}: {self.by!r} {what} {key!r} of {before!r}")

    # -- commands --------------------------------------------------------------------------------------------------

    def execute(self, words: Sequence[bytes]) -> Any:
        """The reply of one command: int, bytes, str for a status, float, list, dict or None. Raises ReplyError."""
        try:
            command = self.commands[words[0]]
        except KeyError:
            raise ReplyError(f"ERR unknown command '{words[0].decode()}'") from None
        return command(self, words)

    def _get(self, words: Sequence[bytes]) -> Any:
        return self._string(words[1])

    def _mget(self, words: Sequence[bytes]) -> Any:
        # Among several keys, one of another type is no error: it has no value.
        values = [self.find(key) for key in words[1:]]
        return [value if type(value) is bytes else None for value in values]

    def _set(self, words: Sequence[bytes]) -> Any:
        _, key, value, *options = words
        end: int | None = None
        if b"PX" in options:
            end = self.millis() + _integer(options[options.index(b"PX") + 1])
        elif b"EX" in options:
            end = self.millis() + 1000 * _integer(options[options.index(b"EX") + 1])
        elif b"EXAT" in options:
            end = 1000 * _integer(options[options.index(b"EXAT") + 1])
        if b"NX" in options and self.find(key) is not None:
            return None
        self._check(key, "has overwritten")
        if self.by is not None and key.endswith((b":f", b"mark")):
            before = self._string(key)
            if before is not None and before.isdigit() and int(value) < int(before):
                self._complain(12, f"node {self.index}: the counter {key!r} has fallen from {before!r} to {value!r}")
        self.data[key] = value
        if end is None:
            self.ends.pop(key, None)
        else:
            self.ends[key] = end
        self.touch(key)
        return "OK"

    def _del(self, words: Sequence[bytes]) -> Any:
        found = [key for key in words[1:] if self.find(key) is not None]
        for key in found:
            self._check(key, "has deleted")
            self._drop(key)
        return len(found)

    def _exists(self, words: Sequence[bytes]) -> Any:
        return sum(1 for key in words[1:] if self.find(key) is not None)

    def _pttl(self, words: Sequence[bytes]) -> Any:
        if self.find(words[1]) is None:
            return -2
        end = self.ends.get(words[1])
        return -1 if end is None else end - self.millis()

    def _pexpire(self, words: Sequence[bytes]) -> Any:
        key, ms = words[1], _integer(words[2])
        if self.find(key) is None:
            return 0
        # Any client may cut a lease that became too long when a clock was set back.
        if self.ends.get(key, float("inf")) < self.millis() + ms:
            self._check(key, "has extended")
        if ms <= 0:
            self._drop(key)
        else:
            self.ends[key] = self.millis() + ms
            self.touch(key)
        return 1

    def _hset(self, words: Sequence[bytes]) -> Any:
        table = self._hash(words[1])
        if table is None:
            table = self.data[words[1]] = Hash()
        before = len(table)
        table.update(zip(words[2::2], words[3::2], strict=True))
        self.touch(words[1])
        return len(table) - before

    def _hget(self, words: Sequence[bytes]) -> Any:
        table = self._hash(words[1])
        return None if table is None else table.get(words[2])

    def _hexists(self, words: Sequence[bytes]) -> Any:
        table = self._hash(words[1])
        return int(table is not None and words[2] in table)

    def _hgetall(self, words: Sequence[bytes]) -> Any:
        return dict(self._hash(words[1]) or {})

    def _hdel(self, words: Sequence[bytes]) -> Any:
        table = self._hash(words[1])
        return 0 if table is None else self._remove(words[1], table, words[2:])

    def _remove(self, key: bytes, table: dict[bytes, Any], members: Sequence[bytes]) -> int:
        found = [table.pop(member) for member in members if member in table]
        if found:
            if not table:
                self._drop(key)
            else:
                self.touch(key)
        return len(found)

    def _zadd(self, words: Sequence[bytes]) -> Any:
        key, only_new = words[1], words[2] == b"NX"
        scored = words[3:] if only_new else words[2:]
        scores: list[float] = []
        for each in scored[::2]:
            try:
                scores.append(float(each))
            except ValueError:
                raise ReplyError("ERR value is not a valid float") from None
        table = self._zset(key)
        if table is None:
            table = self.data[key] = SortedSet()
        before = len(table)
        for score, member in zip(scores, scored[1::2], strict=True):
            if not (only_new and member in table):
                table[member] = score
        self.touch(key)
        return len(table) - before

    def _zrem(self, words: Sequence[bytes]) -> Any:
        table = self._zset(words[1])
        return 0 if table is None else self._remove(words[1], table, words[2:])

    def _zrange(self, words: Sequence[bytes]) -> Any:
        table = self._zset(words[1])
        first, last = int(words[2]), int(words[3])
        items = [] if table is None else table.ordered()
        items = items[first:] if last == -1 else items[first : last + 1]
        if len(words) > 4:  # WITHSCORES
            return [[member, score] for member, score in items]
        return [member for member, _ in items]

    def _zpopmin(self, words: Sequence[bytes]) -> Any:
        table = self._zset(words[1])
        if table is None:
            return []
        member, score = min(table.items(), key=lambda item: (item[1], item[0]))
        self._remove(words[1], table, [member])
        return [member, score]

    def _time(self, words: Sequence[bytes]) -> Any:
        seconds, micros = divmod(self.micros(), 1_000_000)
        return [b"%d" % seconds, b"%d" % micros]

    def _publish(self, words: Sequence[bytes]) -> Any:
        return self.publish(words[1], words[2])

    def _pubsub(self, words: Sequence[bytes]) -> Any:
        """NUMSUB of one channel."""
        return [words[2], 1 if words[2] in self.channels else 0]

    def _info(self, words: Sequence[bytes]) -> Any:
        return self.about()

    def about(self) -> bytes:
        """The reply to INFO."""
        raise NotImplementedError

    # -- messages to subscribers -----------------------------------------------------------------------------------

    def track(self, key: bytes, tcp: TcpConnection) -> None:
        who = self.tracked.get(key)
        if who is None:
            who = self.tracked[key] = {}
            self._look_later(key)
        who[tcp] = None

    def touch(self, key: bytes) -> None:
        who = self.tracked.pop(key, None) if self.tracked else None
        if who:
            push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$%d\r\n%b\r\n" % (len(key), key)
            for tcp in who:
                self.push(tcp, push)

    def push(self, tcp: TcpConnection, data: bytes) -> None:
        tcp.reply(data)

    def _look_later(self, key: bytes) -> None:
        end = self.ends.get(key)
        if end is not None:
            at = self.clock.when((end + 1) / 1000) + CYCLE * self.world.rng.random()
            self.actor.at(at, self._look, key)

    def _look(self, key: bytes) -> None:
        if key in self.tracked:
            self.find(key)
            if key in self.tracked:
                self._look_later(key)

    def stepped(self) -> None:
        """The clock was set: the expiry cycle finds the keys that have ended by that."""
        for key in list(self.ends):
            self.find(key)

    def publish(self, channel: bytes, message: bytes) -> int:
        listener = self.channels.get(channel)
        if listener is None:
            return 0
        self.push(listener, b">3\r\n$7\r\nmessage\r\n" + encoded(channel) + encoded(message))
        return 1

    def forget_listener(self, tcp: TcpConnection) -> None:
        for channel in [name for name, each in self.channels.items() if each is tcp]:
            del self.channels[channel]
        self.trackers.pop(tcp, None)
        for who in self.tracked.values():
            who.pop(tcp, None)

    def empty(self) -> None:
        """FLUSHALL: tracking clients get the message that everything has changed."""
        for table in (self.data, self.ends, self.tracked):
            table.clear()
        for tcp in self.trackers:
            self.push(tcp, b">2\r\n$10\r\ninvalidate\r\n_\r\n")

    commands: ClassVar[dict[bytes, Callable[..., Any]]] = {
        b"GET": _get,
        b"MGET": _mget,
        b"SET": _set,
        b"DEL": _del,
        b"EXISTS": _exists,
        b"PTTL": _pttl,
        b"PEXPIRE": _pexpire,
        b"HSET": _hset,
        b"HGET": _hget,
        b"HEXISTS": _hexists,
        b"HGETALL": _hgetall,
        b"HDEL": _hdel,
        b"ZADD": _zadd,
        b"ZREM": _zrem,
        b"ZRANGE": _zrange,
        b"ZPOPMIN": _zpopmin,
        b"TIME": _time,
        b"PUBLISH": _publish,
        b"PUBSUB": _pubsub,
        b"INFO": _info,
    }
