"""FQ, the floor of a hand-over on a quorum: claims with tickets on five nodes, inquire and yield, and nothing else.

Each node keeps a sorted set of owners by ticket and hands its vote over; a majority of votes is the lock. There are no
stamps, no validity, no tokens and no expiry: such a program is fast, and wrong as soon as anything fails. A ticket is
the time of this machine's clock, which all processes share.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator
from itertools import count

from bench.candidate import PairFailed
from bench.commands import encode, lock_key, sha1
from bench.floors import Wire
from bench.worker import Taking, WaitingCandidate

# KEYS 1 lock ("ticket owner")  2 queue. An owner begins with the 32 letters of its process' channel.
GIVE = b"""
local function give()
  local first = redis.call('zpopmin', KEYS[2])
  if first[1] then
    redis.call('set', KEYS[1], first[2] .. ' ' .. first[1], 'PX', 10000)
    redis.call('publish', string.sub(first[1], 1, 32), 'yours ' .. first[1])
  else
    redis.call('del', KEYS[1])
  end
end
local held = redis.call('get', KEYS[1])
local ticket, owner = string.match(held or '', '^(%d+) (.*)$')
"""
CLAIM = (
    GIVE
    + b"""
redis.call('zadd', KEYS[2], ARGV[2], ARGV[1])
if not held then give()
elseif tonumber(ticket) > tonumber(ARGV[2]) then
  redis.call('publish', string.sub(owner, 1, 32), 'inquire ' .. owner)
end
return 1
"""
)
PASS = (
    GIVE
    + b"""
redis.call('zrem', KEYS[2], ARGV[1])
if owner == ARGV[1] then give() end
return 1
"""
)
YIELD = (
    GIVE
    + b"""
if owner == ARGV[1] then
  redis.call('zadd', KEYS[2], ticket, owner)
  give()
end
return 1
"""
)


class Claimant:
    """One process: a connection to each node, and one lock at a time."""

    def __init__(self, urls: list[str], name: str) -> None:
        self.channel = os.urandom(16).hex().encode()
        self.wires = [Wire(url) for url in urls]
        self.need = len(urls) // 2 + 1
        self.poller = select.epoll()
        self.by_fd = {wire.sock.fileno(): (node, wire) for node, wire in enumerate(self.wires)}
        for wire in self.wires:
            wire.ask(encode(b"HELLO", b"3"))
            wire.load((CLAIM, PASS, YIELD))
            wire.ask(encode(b"SUBSCRIBE", self.channel))
            self.poller.register(wire.sock.fileno(), select.EPOLLIN)
        key = lock_key(name)
        self.keys = (b"2", key + b":fq", key + b":fq:q")  # a name of its own: other floors leave keys of other types
        self.numbers = count()
        self.votes: set[int] = set()

    def send(self, script: bytes, *args: bytes, nodes: list[Wire] | None = None) -> None:
        command = encode(b"EVALSHA", sha1(script), *self.keys, *args)
        for wire in self.wires if nodes is None else nodes:
            wire.sock.sendall(command)

    def take(self) -> bytes:
        owner = b"%b%08x" % (self.channel, next(self.numbers))
        self.votes.clear()
        self.send(CLAIM, owner, b"%d" % (time.time_ns() // 1000))
        while len(self.votes) < self.need:
            for fd, _ in self.poller.poll():
                self.receive(*self.by_fd[fd], owner)
        return owner

    def receive(self, node: int, wire: Wire, owner: bytes) -> None:
        wire.reader.feed(wire.sock.recv(65536))
        while (reply := wire.reader.gets()) is not False:
            if isinstance(reply, Exception):
                raise PairFailed(repr(reply))
            if not isinstance(reply, list):
                continue
            kind, _, whose = reply[2].partition(b" ")
            if whose != owner:
                continue
            if kind == b"yours":
                self.votes.add(node)
            elif len(self.votes) < self.need and node in self.votes:
                self.votes.discard(node)
                self.send(YIELD, owner, nodes=[wire])

    def give(self, owner: bytes) -> None:
        self.send(PASS, owner)

    def close(self) -> None:
        self.poller.close()
        for wire in self.wires:
            wire.sock.close()


@contextlib.contextmanager
def queue(url: str, name: str) -> Iterator[Taking]:
    """`url`: the nodes, separated by spaces."""
    with contextlib.closing(Claimant(url.split(), name)) as claimant:
        yield claimant.take, claimant.give


FLOOR = WaitingCandidate("floor", queue, peer=False)
