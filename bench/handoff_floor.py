"""FH, the floor of a hand-off: waiters queue on the server, and a release hands the lock to the next of them.

A turn takes two commands; no lock whose holder releases it and asks again later needs fewer. One command takes the lock
or joins the queue, the other releases it. The release makes the next waiter the holder and sends it a RESP3 push on the
connection on which it waits. There is no code for waiters that die, for holders that lose the lock, for fencing tokens
or for the validity of the lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import count

from bench.candidate import TTL_MS, PairFailed
from bench.commands import KEY, OWNER, encode, lock_key, sha1, template
from bench.floors import Wire
from bench.worker import Taking, WaitingCandidate

TAKE = b"""
if redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
redis.call('rpush', KEYS[2], ARGV[1])
return 0
"""

# An owner begins with the 32 letters of its process' channel.
GIVE = b"""
if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
local next_owner = redis.call('lpop', KEYS[2])
if next_owner then
    redis.call('set', KEYS[1], next_owner, 'PX', ARGV[2])
    redis.call('publish', string.sub(next_owner, 1, 32), next_owner)
else
    redis.call('del', KEYS[1])
end
return 1
"""


def _command(script: bytes) -> bytes:
    return template(b"EVALSHA", sha1(script), b"2", KEY, KEY, OWNER, b"%d" % TTL_MS)


@contextlib.contextmanager
def queue(url: str, name: str) -> Iterator[Taking]:
    wire, channel, attempts = Wire(url), os.urandom(16).hex().encode(), count()
    sock, reader = wire.sock, wire.reader
    wire.ask(encode(b"HELLO", b"3"))
    wire.load((TAKE, GIVE))
    wire.ask(encode(b"SUBSCRIBE", channel))
    take_form, give_form = _command(TAKE), _command(GIVE)

    def take() -> bytes:
        key, owner = lock_key(name), b"%s%08x" % (channel, next(attempts))
        if wire.ask(take_form % (len(key), key, len(key) + 2, key + b":q", len(owner), owner)) == 1:
            return owner
        # The server wrote the reply before any release could run, so the next message is the push.
        while (push := reader.gets()) is False:
            reader.feed(sock.recv(65536))
        if push[2] != owner:
            raise PairFailed(f"{owner!r} received the push {push!r}")
        return owner

    def give(owner: bytes) -> None:
        key = lock_key(name)
        if (reply := wire.ask(give_form % (len(key), key, len(key) + 2, key + b":q", len(owner), owner))) != 1:
            raise PairFailed(f"release: {reply!r}")

    with contextlib.closing(sock):
        yield take, give


FLOOR = WaitingCandidate("floor", queue, peer=False)
