"""A real server and a simulated one that get the same commands at the same time of day.

Each command goes to the real server between two readings of its clock; the simulated server runs it at the first of them.
So claims, which begin with a second, are nearly the same on both, and where a number is a time or a ttl it differs by no
more than the question took. A question during which a second has ended is answered by chance, and proves nothing:
`Unlucky`; so is one that is answered differently after a millisecond has ended during one.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import hiredis

from handfast.net.faults import from_reply
from handfast.protocol.resp import encode
from handfast.protocol.scripts import load_scripts
from handfast.testing import Server
from sim.net import Net
from sim.node import Node
from sim.resp import commands_in
from sim.store import Hash, is_generation
from sim.world import Clock, World

__all__ = ["CHANNEL", "Pair", "Unlucky"]

CHANNEL = b"handfast:wake:here"
TIME = encode(b"TIME")
SLACK_MS, SLACK_US = 2_000, 2_000_000
"""More than a question takes on a busy machine, less than any two numbers differ by that ought to differ."""
LARGE = 2_000
"""Numbers beyond this are times or ttls; the tests' own numbers are smaller."""

# Makes all keys older, or (negative) younger, instead of waiting. Claims contain the second of their end,
# and generations the millisecond.
AGE = b"""
local seconds = tonumber(ARGV[1])
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'hash' then
    local all = redis.call('HGETALL', key)
    for i = 1, #all, 2 do
      local old, new = all[i + 1], all[i + 1]
      local is_record = string.sub(all[i], 1, 1) == '*'
      if string.sub(key, -2) == ':g' and all[i] ~= 't' and not is_record then
        new = string.format('%.0f', tonumber(old) - 1000 * seconds)
      elseif all[i] ~= 't' then
        new = string.gsub(old, is_record and '^(%S+ %S+ %S+ )(%d+)' or '^()(%d+)', function(before, ends)
          return (type(before) == 'string' and before or '') .. string.format('%.0f', tonumber(ends) - seconds)
        end)
      end
      redis.call('HSET', key, all[i], new)
    end
  end
  if redis.call('PTTL', key) > 0 then redis.call('PEXPIRE', key, redis.call('PTTL', key) - seconds * 1000) end
end
return 1
"""


class Unlucky(Exception):
    """A second or millisecond has ended during a command."""

    def __init__(self, difference: object = None) -> None:
        super().__init__(difference)
        self.difference = difference
        """What was not the same afterwards, if anything."""


def _error(text: str) -> tuple[str, str]:
    return "error", from_reply(text).kind


class Real:
    """A connection to a real server."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self._reader = hiredis.Reader(replyError=_error)
        self.pushes: list[Any] = []

    def ask(self, payload: bytes) -> list[Any]:
        # A push confirms a subscription; pushes that a command causes come before the reply to PING.
        awaited = sum(1 for words in commands_in(payload) if words[0] != b"SUBSCRIBE") + 1
        self._socket.sendall(payload + encode(b"PING"))
        replies: list[Any] = []
        while len(replies) < awaited:
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(65536))
            elif isinstance(reply, hiredis.PushNotification):
                self.pushes.append(reply)
            else:
                replies.append(reply)
        return replies[:-1]

    def close(self) -> None:
        self._socket.close()


class Simulated:
    """A connection to a simulated server, without a network and without an observer."""

    def __init__(self) -> None:
        self._world = World(0)
        self.node = Node(self._world, Net(self._world), 0, Clock(self._world), self)
        self._reader = hiredis.Reader(replyError=_error)
        self.pushes: list[Any] = []
        self.out: list[bytes] | None = None
        self.handled = 0
        self.node._connections[self] = None  # type: ignore[index]

    def complain(self, number: int, text: str) -> None: ...
    def voted(self, node: Node, key: bytes, owner: bytes) -> None: ...
    def handed_over(self, *_: Any) -> None: ...

    def reply(self, data: bytes) -> None:
        if self.out is not None:
            self.out.append(data)
        else:
            self._reader.feed(data)

    def ask(self, payload: bytes, at: float) -> list[Any]:
        self.node.clock = Clock(self._world, at)
        self.node.receive(self, payload)  # type: ignore[arg-type]
        return self._said()

    def _said(self) -> list[Any]:
        replies: list[Any] = []
        while (reply := self._reader.gets()) is not False:
            (self.pushes if isinstance(reply, hiredis.PushNotification) else replies).append(reply)
        return replies

    def age(self, seconds: int) -> None:
        node = self.node
        for key, value in node.data.items():
            if isinstance(value, Hash):
                for field, text in value.items():
                    if key.endswith(b":g") and is_generation(field):
                        value[field] = b"%d" % (int(text) - 1000 * seconds)
                    elif field != b"t":
                        words = text.split(b" ")
                        at = 3 if field.startswith(b"*") else 0
                        words[at] = b"%d" % (int(words[at]) - seconds)
                        value[field] = b" ".join(words)
        for key, end in list(node.ends.items()):
            node.ends[key] = end - 1000 * seconds
            node.touch(key)
            node.find(key)
        self._said()


def alike(real: Any, simulated: Any) -> bool:
    """Whether two values are equal, apart from the time between them."""
    if isinstance(real, dict) and isinstance(simulated, dict):
        return real.keys() == simulated.keys() and all(alike(real[key], simulated[key]) for key in real)
    if isinstance(real, list | tuple) and isinstance(simulated, list | tuple):
        micros = 5 if len(real) > 6 and real[0] in (0, 1) else None  # in the reply to a claim
        return len(real) == len(simulated) and all(
            i == micros or alike(*both) for i, both in enumerate(zip(real, simulated, strict=True))
        )
    if isinstance(real, bytes) and isinstance(simulated, bytes):
        if real.isdigit() and simulated.isdigit():
            return alike(int(real), int(simulated))
        told, meant = real.split(b" "), simulated.split(b" ")
        if len(told) == 1 or len(told) != len(meant):
            return real == simulated
        micros = 5 if told[0] == b"yours" else None
        return all(i == micros or alike(*both) for i, both in enumerate(zip(told, meant, strict=True)))
    if isinstance(real, int | float) and isinstance(simulated, int | float) and min(real, simulated) > LARGE:
        slack = SLACK_US if real > 1e15 else 2 if 1e9 < real < 1e10 else SLACK_MS
        return abs(real - simulated) < slack
    return bool(real == simulated)


def _sorted(pushes: list[Any]) -> list[Any]:
    """Sorted, because a server sends a push before or after its reply."""
    return sorted(pushes, key=lambda push: (push[0], repr(push[1]), repr(push[-1])[-40:]))


class Pair:
    """Both servers, with the same commands."""

    def __init__(self, server: Server, keys: Sequence[bytes]) -> None:
        self.real, self.simulated = Real(server), Simulated()
        self._keys = keys
        self._slipped = False
        """A millisecond has ended during a question."""
        reads = {b":q": (b"ZRANGE", b"0", b"-1", b"WITHSCORES"), b":c": (b"HGETALL",), b":g": (b"HGETALL",)}
        self._reads = b"".join(
            [encode(command, key, *rest) for key in keys for command, *rest in [reads.get(key[-2:], (b"GET",))]]
            + [encode(b"PTTL", key) for key in keys]
        )
        first = (b"HELLO", b"3"), (b"FLUSHALL",), (b"CLIENT", b"TRACKING", b"ON", b"OPTIN"), (b"SUBSCRIBE", CHANNEL)
        self.both(b"".join(encode(*words) for words in first) + load_scripts(), compare=False)
        self.real.pushes.clear()
        self.simulated.pushes.clear()

    def both(self, payload: bytes, simulated_payload: bytes | None = None, *, compare: bool = True) -> list[Any]:
        """Send the commands to both, compare replies and data, and return the real server's replies."""
        # All in one write, because round trips take most of the time.
        before, *real, after = self.real.ask(TIME + payload + self._reads + TIME)
        at = int(before[0]) + int(before[1]) / 1e6 + 1e-7
        simulated = self.simulated.ask((simulated_payload or payload) + self._reads, at)
        if compare:
            if before[0] != after[0]:
                raise Unlucky
            # A ttl that is a millisecond shorter there may be refreshed, or not.
            self._slipped |= int(before[1]) // 1000 != int(after[1]) // 1000
            pushes = _sorted(self.real.pushes), _sorted(self.simulated.pushes)
            same = alike(real, simulated) and alike(*pushes)
            difference = (commands_in(payload), real, simulated, *pushes)
            if not same and self._slipped:
                raise Unlucky(difference)
            assert same, difference
        self.real.pushes.clear()
        self.simulated.pushes.clear()
        return real[: len(real) - self._reads.count(b"*")]

    def age(self, seconds: int) -> None:
        """Let time pass; a negative time means that a clock was set back."""
        self.real.ask(encode(b"EVAL", AGE, b"%d" % len(self._keys), *self._keys, b"%d" % seconds))
        self.simulated.age(seconds)
        self.real.pushes.clear()  # the moment at which a server notices the end of a key is not compared
        self.simulated.pushes.clear()
