"""A node in memory. It runs the production Lua scripts, on the bytes that a server would get.

A node has a keyspace, the few commands that the scripts and the client use, channels and client tracking. Its time
comes from a clock that a test controls. Keys expire by that clock, without a push, as on an idle server.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

from lupa.lua51 import LuaError, LuaRuntime  # type: ignore[import-untyped]

from handfast.net.faults import from_reply
from handfast.protocol.scripts import SHA, TEXT
from sim.resp import commands_in

__all__ = ["EPOCH_US", "SCRIPTS", "FakeNode", "ServerError", "commands_in", "name_of"]

EPOCH_US: Final = 1_800_000_000_000_000
"""Server time in µs when the clock is at zero."""
SCRIPTS: Final = {sha: name for name, sha in SHA.items()}
Push = Callable[[list[Any]], None]
"""Where a connection receives what it has not asked for."""

_lua = LuaRuntime(encoding=None)
_is_table: Final[Callable[[Any], bool]] = _lua.eval("function(value) return type(value) == 'table' end")
_compiled: Final[dict[bytes, Any]] = {}
SANDBOX: Final = b"return function(KEYS, ARGV, redis) %b\nend"


class ServerError(Exception):
    """An error reply."""


class SortedSet(dict[bytes, float]):
    """Members by score, then by name."""

    def ordered(self) -> list[bytes]:
        return sorted(self, key=lambda member: (self[member], member))


def name_of(words: list[bytes]) -> str:
    """The name of a command, or of the script that it runs."""
    return SCRIPTS[words[1]] if words[0] == b"EVALSHA" else words[0].decode().lower()


class FakeNode:
    """One server."""

    serial = 0

    def __init__(self, clock: Callable[[], float] = lambda: 0.0) -> None:
        FakeNode.serial += 1
        self.clock = clock
        self.run_id = b"%040x" % FakeNode.serial
        self.data: dict[bytes, Any] = {}
        """Strings are bytes, hashes are dicts, sorted sets are SortedSets."""
        self.ends: dict[bytes, int] = {}
        """The millisecond of server time at which a key expires."""
        self.channels: dict[bytes, Push] = {}
        self.tracked: dict[bytes, list[Push]] = {}
        """By key: the connections that track its next change."""
        self.refuses_hello = False
        """It speaks RESP2 only."""
        self.refuses_tracking = False
        self.patches: dict[str, bytes] = {}
        """Scripts to run instead of the production ones: for tests that show that a test can fail."""
        redis = {b"call": self._redis_call, b"pcall": self._redis_pcall, b"error_reply": _error_reply}
        self._redis = _lua.table_from(redis)

    # -- for tests

    def now_us(self) -> int:
        return EPOCH_US + round(self.clock() * 1e6)

    def holder(self, key: bytes) -> bytes | None:
        """The owner that has the vote."""
        self._expire()
        found: bytes | None = self.data.get(key)
        return found

    def queued(self, key: bytes) -> list[bytes]:
        """The waiting ids, the next one first."""
        self._expire()
        found = self.data.get(key + b":q")
        return found.ordered() if found is not None else []

    def put(self, key: bytes, value: bytes, px: int | None = None) -> None:
        """SET by another program."""
        self.run_words([b"SET", key, value] + ([b"PX", b"%d" % px] if px is not None else []))

    def drop(self, key: bytes) -> None:
        """DEL by another program."""
        self.run_words([b"DEL", key])

    def forget(self, key: bytes) -> None:
        """The key expires, without a push."""
        self.data.pop(key, None)
        self.ends.pop(key, None)

    def touch(self, key: bytes) -> None:
        """A key has changed. Each connection that tracks it gets one push."""
        for push in self.tracked.pop(key, ()):
            push([b"invalidate", [key]])

    # -- running commands

    def run(self, payload: bytes, push: Push | None = None) -> list[Any]:
        """The replies to a payload. `push`: where the connection that sent it receives pushes."""
        replies: list[Any] = []
        caching = False
        for words in commands_in(payload):
            if caching and push is not None:
                for key in words[1:]:
                    self.tracked.setdefault(key, []).append(push)
            caching = words[:2] == [b"CLIENT", b"CACHING"]
            if words[0] == b"SUBSCRIBE" and push is not None:
                self.channels[words[1]] = push
            else:
                replies.append(self.run_words(words))
        return replies

    def run_words(self, words: list[bytes]) -> Any:
        """One command; an error reply is a Fault."""
        try:
            return self._evaluate(words) if words[0] == b"EVALSHA" else self._call(words)
        except ServerError as error:
            return from_reply(str(error))

    def _evaluate(self, words: list[bytes]) -> Any:
        name, count = SCRIPTS[words[1]], int(words[2])
        text = self.patches.get(name, TEXT[name])
        if text not in _compiled:
            _compiled[text] = _lua.execute(SANDBOX % text)
        keys, args = words[3 : 3 + count], words[3 + count :]
        try:
            return _from_lua(_compiled[text](_lua.table_from(keys), _lua.table_from(args), self._redis))
        except LuaError as error:
            raise ServerError(str(error)) from None

    def _redis_call(self, *args: Any) -> Any:
        return _to_lua(self._call([_word(arg) for arg in args]))

    def _redis_pcall(self, *args: Any) -> Any:
        try:
            return self._redis_call(*args)
        except ServerError as error:
            return _error_reply(str(error).encode())

    def _call(self, words: list[bytes]) -> Any:
        self._expire()
        method = getattr(self, f"_{words[0].decode().lower()}", None)
        if method is None:
            raise ServerError(f"ERR unknown command '{words[0].decode()}'")
        return method(*words[1:])

    def _expire(self) -> None:
        now = self.now_us() // 1000
        for key in [key for key, end in self.ends.items() if end <= now]:
            self.forget(key)

    def _typed(self, key: bytes, kind: type) -> Any:
        """The value of a key, made if it is missing."""
        value = self.data.get(key)
        if value is not None and type(value) is not kind:
            raise ServerError("WRONGTYPE Operation against a key holding the wrong kind of value")
        return kind() if value is None else value

    def _keep(self, key: bytes, value: Any) -> None:
        """Store a collection; an empty one is no key."""
        if value:
            self.data[key] = value
        else:
            self.forget(key)
        self.touch(key)

    # -- strings and keys

    def _get(self, key: bytes) -> bytes | None:
        found: bytes = self._typed(key, bytes)
        return found if key in self.data else None

    def _mget(self, *keys: bytes) -> list[bytes | None]:
        return [self._get(key) for key in keys]

    def _set(self, key: bytes, value: bytes, *options: bytes) -> bytes | None:
        if b"NX" in options and key in self.data:
            return None
        self.forget(key)
        self.data[key] = value
        if b"PX" in options:
            self.ends[key] = self.now_us() // 1000 + int(options[options.index(b"PX") + 1])
        elif b"EX" in options:
            self.ends[key] = self.now_us() // 1000 + 1000 * int(options[options.index(b"EX") + 1])
        elif b"EXAT" in options:
            self.ends[key] = 1000 * int(options[options.index(b"EXAT") + 1])
        self.touch(key)
        return b"OK"

    def _del(self, *keys: bytes) -> int:
        found = [key for key in keys if key in self.data]
        for key in found:
            self.forget(key)
            self.touch(key)
        return len(found)

    def _delifeq(self, key: bytes, value: bytes) -> int:
        return self._del(key) if self.data.get(key) == value else 0

    def _exists(self, key: bytes) -> int:
        return int(key in self.data)

    def _pttl(self, key: bytes) -> int:
        if key not in self.data:
            return -2
        return self.ends[key] - self.now_us() // 1000 if key in self.ends else -1

    def _pexpire(self, key: bytes, ms: bytes) -> int:
        if key not in self.data:
            return 0
        self.ends[key] = self.now_us() // 1000 + int(ms)
        self.touch(key)
        return 1

    # -- hashes and sorted sets

    def _hset(self, key: bytes, *pairs: bytes) -> int:
        found = self._typed(key, dict)
        found.update(zip(pairs[::2], pairs[1::2], strict=True))
        self._keep(key, found)
        return len(pairs) // 2

    def _hget(self, key: bytes, field: bytes) -> bytes | None:
        found: bytes | None = self._typed(key, dict).get(field)
        return found

    def _hexists(self, key: bytes, field: bytes) -> int:
        return int(field in self._typed(key, dict))

    def _hgetall(self, key: bytes) -> list[bytes]:
        return [word for pair in self._typed(key, dict).items() for word in pair]

    def _hdel(self, key: bytes, *fields: bytes) -> int:
        found = self._typed(key, dict)
        gone = [field for field in fields if found.pop(field, None) is not None]
        if gone:
            self._keep(key, found)
        return len(gone)

    def _zadd(self, key: bytes, *words: bytes) -> int:
        found, (score, member) = self._typed(key, SortedSet), words[-2:]
        new = member not in found
        if new or b"NX" not in words[:-2]:
            found[member] = float(score)
            self._keep(key, found)
        return int(new)

    def _zrem(self, key: bytes, member: bytes) -> int:
        found = self._typed(key, SortedSet)
        if found.pop(member, None) is None:
            return 0
        self._keep(key, found)
        return 1

    def _zrange(self, key: bytes, start: bytes, stop: bytes, *_: bytes) -> list[bytes]:
        found = self._typed(key, SortedSet)
        members = found.ordered()[int(start) : int(stop) + 1 or None]
        return [word for member in members for word in (member, b"%.17g" % found[member])]

    def _zpopmin(self, key: bytes) -> list[bytes]:
        first = self._zrange(key, b"0", b"0")
        if first:
            self._zrem(key, first[0])
        return first

    # -- the server

    def _time(self) -> list[bytes]:
        return [b"%d" % part for part in divmod(self.now_us(), 1_000_000)]

    def _info(self, section: bytes) -> bytes:
        fields = {b"run_id": self.run_id, b"role": b"master", b"master_replid2": b"0" * 40, b"maxmemory": b"0"}
        return b"".join(b"%b:%b\r\n" % field for field in fields.items())

    def _publish(self, channel: bytes, text: bytes) -> int:
        if channel not in self.channels:
            return 0
        self.channels[channel]([b"message", channel, text])
        return 1

    def _wait(self, replicas: bytes, timeout: bytes) -> int:
        return 0

    def _ok(self, *_: bytes) -> bytes:
        return b"OK"

    _ping = _select = _ok

    def _client(self, what: bytes, *_: bytes) -> bytes:
        if what == b"TRACKING" and (self.refuses_tracking or self.refuses_hello):
            raise ServerError("NOPERM this user has no permissions to run the 'client|tracking' command")
        return b"OK"

    def _hello(self, *_: bytes) -> bytes:
        if self.refuses_hello:
            raise ServerError("NOPROTO unsupported protocol version")
        return b"OK"

    def _script(self, load: bytes, text: bytes) -> bytes:
        return next(SHA[name] for name, known in TEXT.items() if known == text)


def _word(value: Any) -> bytes:
    """An argument of redis.call, as Redis spells numbers."""
    return value if isinstance(value, bytes) else b"%.17g" % value


def _error_reply(text: bytes) -> Any:
    return _lua.table_from({b"err": text})


def _to_lua(reply: Any) -> Any:
    if reply is None:
        return False
    return _lua.table_from([_to_lua(each) for each in reply]) if isinstance(reply, list) else reply


def _from_lua(value: Any) -> Any:
    """A script's result as a reply: numbers are cut to integers, and nil ends a table."""
    if value is None or value is False:
        return None
    if isinstance(value, bytes):
        return value
    if not _is_table(value):
        return math.trunc(value)
    if value[b"err"] is not None:
        raise ServerError(value[b"err"].decode())
    replies: list[Any] = []
    while value[len(replies) + 1] is not None:
        replies.append(_from_lua(value[len(replies) + 1]))
    return replies
