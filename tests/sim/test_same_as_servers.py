"""The simulated server is no other than the real ones: the same random commands get the same replies, and leave the same
data behind. Where time comes in (TTLs, TIME, tokens made of it), the same but for the moments that lie between the two.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from random import Random
from typing import Any

import hiredis
import pytest

from handfast.core import commands, guard
from handfast.core.commands import Request
from handfast.core.group import Group
from handfast.core.handshake import load_scripts
from handfast.core.resp import encode
from handfast.core.terms import Settings
from handfast.options import policy
from handfast.testing import Server
from handfast.testing.sim.net import Connection, Net
from handfast.testing.sim.node import Node, commands_in
from handfast.testing.sim.observer import Observer, Owed
from handfast.testing.sim.world import Actor, Clock, World

OWNERS = (b"one", b"two", b"three")
CHANNEL = b"handfast:hand:here"
SLACK_S, SLACK_MS, SLACK_US = 30, 30_000, 30_000_000
"""More than a test takes, less than any of the numbers that are compared with it."""


def _error(text: str) -> tuple[str, str]:
    return "error", text.split(" ")[0]


class Real:
    """A connection to a real server."""

    def __init__(self, server: Server) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=5)
        self._reader = hiredis.Reader(replyError=_error)

    def ask(self, payload: bytes) -> list[Any]:
        self._socket.sendall(payload)
        replies: list[Any] = []
        # What confirms a subscription is a push.
        while len(replies) < sum(1 for words in commands_in(payload) if words[0] != b"SUBSCRIBE"):
            reply = self._reader.gets()
            if reply is False:
                self._reader.feed(self._socket.recv(65536))
            elif not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies

    def close(self) -> None:
        self._socket.close()


class Simulated:
    """A connection to a simulated one, in its own world."""

    def __init__(self) -> None:
        self._world = world = World(0)
        net, clock = Net(world), Clock(world, time.time())
        observer = Observer(world, Owed(exclusive=True, ordered=True, unique=True, lively=True))
        self.node = Node(world, net, 0, clock, observer)
        self._reader = hiredis.Reader(replyError=_error)
        self._connection = net.dial(0, Actor(world, "test"), self, self.node)
        world.run(1.0)

    def received(self, connection: Connection, data: bytes) -> None:
        self._reader.feed(data)

    def accepted(self, connection: Connection) -> None: ...

    def refused(self, connection: Connection) -> None: ...

    def broken(self, connection: Connection) -> None:
        raise AssertionError("the simulated server has broken off")

    def ask(self, payload: bytes) -> list[Any]:
        self._connection.send(payload)
        self._world.run(self._world.now + 0.01)
        replies: list[Any] = []
        while (reply := self._reader.gets()) is not False:
            if not isinstance(reply, hiredis.PushNotification):
                replies.append(reply)
        return replies


def alike(real: Any, simulated: Any) -> bool:
    """Equal, but for time: claims begin with a second, TTLs count down, tokens may be TIME."""
    if isinstance(real, list | tuple) and isinstance(simulated, list | tuple):
        return len(real) == len(simulated) and all(map(alike, real, simulated))
    if isinstance(real, bytes) and isinstance(simulated, bytes):
        if real.isdigit() and simulated.isdigit():
            return alike(int(real), int(simulated))
        if CHANNEL in real:
            return real[10:] == simulated[10:] and abs(int(real[:10]) - int(simulated[:10])) < SLACK_S
        return real == simulated
    if isinstance(real, int) and isinstance(simulated, int) and min(real, simulated) > 100_000:
        slack = SLACK_US if real > 1e15 else SLACK_S if 1e9 < real < 1e10 else SLACK_MS
        return abs(real - simulated) < slack
    return bool(real == simulated)


class Pair:
    """Both, asked the same."""

    def __init__(self, server: Server) -> None:
        self.real, self.simulated = Real(server), Simulated()
        self.both(encode(b"HELLO", b"3"), compare=False)
        self.both(load_scripts())

    def both(self, payload: bytes, other: bytes | None = None, *, compare: bool = True) -> tuple[Any, Any]:
        real, simulated = self.real.ask(payload), self.simulated.ask(other or payload)
        assert not compare or alike(real, simulated), (payload, real, simulated)
        return real[0], simulated[0]

    def same_data(self, keys: list[bytes]) -> None:
        for key in keys:
            self.both(encode(b"LRANGE", key, b"0", b"-1") if key.endswith(b":q") else encode(b"GET", key))
            if key.endswith(b"}"):
                self.both(encode(b"PTTL", key))


@pytest.fixture
def pair(server: Server) -> Iterator[Pair]:
    pair = Pair(server)
    yield pair
    pair.real.close()


def request(name: str, nodes: int, **options: Any) -> Request:
    chosen = policy({"ttl": 600.0, "max_ttl": 900.0, **options})
    group = Group([f"n{i}" for i in range(nodes)], chosen, guard=nodes > 1)
    return Request(Settings(group, chosen, b""), name, b"presented")


def random_command(rng: Random, target: Request) -> bytes:
    owner, token = rng.choice(OWNERS), rng.randrange(1, 90)
    settings = target.settings
    proposal = b"%d" % rng.randrange(1, 90) if settings.fence else b""
    made = rng.randrange(7)
    if made < 2:
        return commands._acquire(target, owner, settings.terms, proposal, settings.group._tail(b"%d" % rng.randrange(50)))
    if made == 2:
        return bytes(commands.release(target, owner, rng.choice((0, token))))
    if made == 3:
        return commands.extend(target, owner, rng.choice((b"300000", b"800000")))
    if made == 4:
        return commands.raise_to(target, owner, token)
    if made == 5:
        return commands.heal(target, owner, rng.choice((300_000, 800_000)), token)
    marker = guard.text(b"life", rng.choice((b"7", b"8")), 900_000, b"%d" % rng.randrange(3))
    seen = guard.text(b"life", b"7", 900_000, b"1") if rng.random() < 0.5 else b""
    return commands.script("mark", (settings.group.marker_key,), seen, marker, b"0")


@pytest.mark.parametrize("seed", range(6))
def test_votes_are_the_same(pair: Pair, seed: int) -> None:
    rng = Random(seed)
    options = rng.choice(({}, {"cohort": 3}, {"fence": False}))
    targets = [request(name, 3, **options) for name in ("a", "b")]
    keys = [key for t in targets for key in (t.key, t.key + b":f", t.group.mark_key, t.group.marker_key)]
    for _ in range(150):
        pair.both(random_command(rng, rng.choice(targets)))
        pair.same_data(keys)


@pytest.mark.parametrize("seed", range(6))
def test_queues_are_the_same(pair: Pair, seed: int) -> None:
    rng = Random(seed)
    target = request("a", 1, fair=True, cohort=rng.choice((0, 3)), fence=rng.random() < 0.7)
    known: dict[bytes, tuple[bytes, bytes]] = dict.fromkeys(OWNERS, (b"", b""))
    pair.both(encode(b"SUBSCRIBE", CHANNEL) + encode(b"PING"), compare=False)
    for _ in range(150):
        owner, here = rng.choice(OWNERS), rng.choice((CHANNEL, CHANNEL, CHANNEL, CHANNEL + b"-gone", b""))
        before = (b"?", b"?") if rng.random() < 0.2 else known[owner]
        if rng.random() < 0.6:
            made = [commands.claim(target, owner, target.settings.terms, here, each) for each in before]
            answers = pair.both(*made, compare=False)
            # All but the microseconds of the server's time.
            assert alike(answers[0][:4] + answers[0][5:], answers[1][:4] + answers[1][5:]), answers
            claims = tuple(a[5] if a[0] == 0 and len(a) > 5 else b"" for a in answers)
            known[owner] = (claims[0], claims[1])
        else:
            pair.both(*[commands.pass_on(target, owner, each) for each in before])
            known[owner] = (b"", b"")
        pair.same_data([target.key, target.key + b":q"])
        counts = pair.both(encode(b"GET", target.key + b":f"), compare=False)
        assert (counts[0] is None) == (counts[1] is None)
