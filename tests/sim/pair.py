"""A real server and a simulated one, asked the same at the same time of day.

Each question goes to the real server between two readings of its clock; the simulated one answers at the first of them.
So claims, which begin with a second, are the same on both, and where a number is a time or a ttl it differs by no more
than the question took. A question during which a second has ended is answered by chance, and proves nothing: `Unlucky`;
so is one that is answered differently after a millisecond has ended during one.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import hiredis

from handfast.core.handshake import load_scripts
from handfast.core.resp import encode
from handfast.net.faults import from_reply
from handfast.testing import Server
from sim.net import Net
from sim.node import Node, commands_in
from sim.world import Clock, World

__all__ = ["CHANNEL", "Pair", "Unlucky"]

CHANNEL = b"handfast:hand:here"
TIME = encode(b"TIME")
SLACK_MS, SLACK_US = 2_000, 2_000_000
"""More than a question takes on a busy machine, less than any two numbers differ by that ought to differ."""
LARGE = 2_000
"""Numbers beyond this are times or ttls; those of tests' own choosing are smaller."""

# All that lasts gets older, or (negative) younger: what else would be to wait. Claims carry the second of their end.
AGE = b"""
for _, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if kind == 'list' then
    for i, claim in ipairs(redis.call('LRANGE', key, 0, -1)) do
      redis.call('LSET', key, i - 1, string.format('%010d', string.sub(claim, 1, 10) - ARGV[1]) .. string.sub(claim, 11))
    end
  elseif redis.call('PTTL', key) > 0 then
    redis.call('PEXPIRE', key, redis.call('PTTL', key) - ARGV[1] * 1000)
  end
end
return 1
"""


class Unlucky(Exception):
    """A second has ended in the middle of a question."""


def _error(text: str) -> tuple[str, str]:
    return "error", from_reply(text).kind


class Real:
    """A connection to a real server."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self._reader = hiredis.Reader(replyError=_error)
        self.pushes: list[Any] = []

    def ask(self, payload: bytes) -> list[Any]:
        # What confirms a subscription is a push; pushes that a command causes come before the reply to the PING.
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
    """A connection to a simulated one, without a network; it does not complain of anything."""

    def __init__(self) -> None:
        self._world = World(0)
        self.node = Node(self._world, Net(self._world), 0, Clock(self._world), self)
        self._reader = hiredis.Reader(replyError=_error)
        self.pushes: list[Any] = []
        self.out: list[bytes] | None = None
        self.node._connections[self] = None  # type: ignore[index]

    def complain(self, number: int, text: str) -> None: ...
    def voted(self, node: Node, owner: bytes) -> None: ...
    def passed_on(self, *_: Any) -> None: ...

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
        for key, end in list(self.node.ends.items()):
            self.node.ends[key] = end - 1000 * seconds
            self.node.touch(key)
            self.node.get(key)
        for claims in self.node.queues.values():
            claims[:] = [b"%010d" % (int(claim[:10]) - seconds) + claim[10:] for claim in claims]
        self._said()


def alike(real: Any, simulated: Any) -> bool:
    """Equal, but for the time that lies between the two."""
    if isinstance(real, list | tuple) and isinstance(simulated, list | tuple):
        micros = 4 if len(real) > 4 and real[0] in (0, 1) else None  # in what answers a claim
        return len(real) == len(simulated) and all(
            i == micros or alike(*both) for i, both in enumerate(zip(real, simulated, strict=True))
        )
    if isinstance(real, bytes) and isinstance(simulated, bytes):
        if real.isdigit() and simulated.isdigit():
            return alike(int(real), int(simulated))
        told, meant = real.split(b" "), simulated.split(b" ")
        if len(told) == 1 or len(told) != len(meant):
            return real == simulated
        micros = 2 if len(told) == 4 else None  # in a hand-over: token, second, microsecond, owner
        return all(i == micros or alike(*both) for i, both in enumerate(zip(told, meant, strict=True)))
    if isinstance(real, int) and isinstance(simulated, int) and min(real, simulated) > LARGE:
        return abs(real - simulated) < (SLACK_US if real > 1e15 else SLACK_MS)
    return bool(real == simulated)


def _sorted(pushes: list[Any]) -> list[Any]:
    """In an order of their own: a server tells of a change before or after its reply."""
    return sorted(pushes, key=lambda push: (push[0], repr(push[1]), repr(push[-1])[-40:]))


class Pair:
    """Both, asked the same."""

    def __init__(self, server: Server, keys: Sequence[bytes]) -> None:
        self.real, self.simulated = Real(server), Simulated()
        self._keys = keys
        self._slipped = False
        """A millisecond has ended during a question."""
        # Of a queue not how long it is kept: the simulated one keeps it for ever.
        self._reads = b"".join(
            [encode(b"GET", key) for key in keys]
            + [encode(b"LRANGE", key, b"0", b"-1") for key in keys if key.endswith(b":q")]
            + [encode(b"PTTL", key) for key in keys if key.endswith(b"}")]
        )
        first = (b"HELLO", b"3"), (b"FLUSHALL",), (b"CLIENT", b"TRACKING", b"ON", b"OPTIN"), (b"SUBSCRIBE", CHANNEL)
        self.both(b"".join(encode(*words) for words in first) + load_scripts(), compare=False)
        self.real.pushes.clear()
        self.simulated.pushes.clear()

    def both(self, payload: bytes, *, compare: bool = True) -> list[Any]:
        """The real server's replies; what is there afterwards is compared too."""
        # All in one write: a round trip is what takes the time.
        before, *real, after = self.real.ask(TIME + payload + self._reads + TIME)
        simulated = self.simulated.ask(payload + self._reads, int(before[0]) + int(before[1]) / 1e6 + 1e-7)
        if compare:
            if before[0] != after[0]:
                raise Unlucky
            # A ttl that is a millisecond shorter there may be refreshed, or not.
            self._slipped |= int(before[1]) // 1000 != int(after[1]) // 1000
            pushes = _sorted(self.real.pushes), _sorted(self.simulated.pushes)
            same = alike(real, simulated) and alike(*pushes)
            if not same and self._slipped:
                raise Unlucky
            assert same, (commands_in(payload), real, simulated, *pushes)
        self.real.pushes.clear()
        self.simulated.pushes.clear()
        return real[: len(real) - self._reads.count(b"*")]

    def age(self, seconds: int) -> None:
        """Time passes; where it is negative, a clock was set back."""
        self.real.ask(encode(b"EVAL", AGE, b"%d" % len(self._keys), *self._keys, b"%d" % seconds))
        self.simulated.age(seconds)
        self.real.pushes.clear()  # of when exactly a server notices the end of a key nothing is said
        self.simulated.pushes.clear()
