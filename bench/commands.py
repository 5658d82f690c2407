"""The bytes the floors send, and the answers that grant them.

Plain: `SET key owner NX PX ttl`, released by the published owner-checked delete. Fenced: acquired by an
EVALSHA of the library's own acquire script instead, so that the floor pays for what the server must do
there and for nothing else.
Requests are encoded once per name; an attempt only puts its owner (and its proposed token) in.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.contestant import TTL_MS

RELEASE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

Request = Callable[[bytes], tuple[bytes, object]]
"""From an attempt's owner: the bytes to send, and the reply that means yes."""


@dataclass(frozen=True)
class Commands:
    """What one floor sends. `scripts` are loaded on every node before the first round."""

    scripts: tuple[bytes, ...]
    acquire: Callable[[str], Request]
    release: Callable[[str], Request]


class _AnyToken:
    """Equals every token: on one node the server chooses it, and a refusal is an array."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, reply: object) -> bool:
        return reply.__class__ is int


def encode(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def sha1(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def lock_key(name: str) -> bytes:
    return b"floor:{%s}" % name.encode()


# As long as what an attempt puts in their place, so that the lengths in the encoded request are right.
OWNER = b"o" * 32
TOKEN = b"t" * 16  # Microseconds since 1970 have 16 digits until the year 2286.


def owners() -> Callable[[], bytes]:
    """Unique 128-bit owners the cheapest way: random per process, counted per attempt."""
    start, count = secrets.token_hex(12).encode(), itertools.count()
    return lambda: b"%s%08x" % (start, next(count))


def proposals() -> Callable[[], int]:
    """max(wall µs, last + 1), as a quorum client proposes its token (DESIGN, section 7)."""
    last = 0

    def propose() -> int:
        nonlocal last
        last = max(time.time_ns() // 1000, last + 1)
        return last

    return propose


def _with_owner(yes: object, *words: bytes) -> Request:
    head, _, tail = encode(*words).partition(OWNER)
    return lambda owner: (head + owner + tail, yes)


def _release(name: str) -> Request:
    return _with_owner(1, b"EVALSHA", sha1(RELEASE), b"1", lock_key(name), OWNER)


def plain() -> Commands:
    def acquire(name: str) -> Request:
        return _with_owner(b"OK", b"SET", lock_key(name), OWNER, b"NX", b"PX", b"%d" % TTL_MS)

    return Commands((RELEASE,), acquire, _release)


def acquire_script(name: str, proposal: bytes) -> tuple[bytes, list[bytes], list[bytes]]:
    """The library's script with its keys and arguments (see the header of lua/acquire.lua).

    Not guarded, also on a quorum: the least the script can be asked to do. What the guard costs is
    handfast's.
    """
    from handfast.lua import TEXT

    key = lock_key(name)
    no_floor, max_ttl = b"0", b"30000"
    return (
        TEXT["acquire"],
        [key, key + b":f"],
        [OWNER, b"%d" % TTL_MS, b"1", proposal, no_floor, max_ttl],
    )


def fenced(quorum: bool) -> Commands:
    script, _, _ = acquire_script("", b"0")
    propose = proposals()

    def words(name: str, proposal: bytes) -> list[bytes]:
        _, keys, args = acquire_script(name, proposal)
        return [b"EVALSHA", sha1(script), b"%d" % len(keys), *keys, *args]

    def acquire_quorum(name: str) -> Request:
        head, _, rest = encode(*words(name, TOKEN)).partition(OWNER)
        middle, _, tail = rest.partition(TOKEN)

        def request(owner: bytes) -> tuple[bytes, object]:
            token = propose()
            # Only a node that answers the proposal itself is a vote for it.
            return head + owner + middle + b"%d" % token + tail, token

        return request

    def acquire_one(name: str) -> Request:
        return _with_owner(_AnyToken(), *words(name, b"0"))

    return Commands((RELEASE, script), acquire_quorum if quorum else acquire_one, _release)


def commands_for(nodes: int, with_fence: bool) -> Commands:
    return fenced(quorum=nodes > 1) if with_fence else plain()
