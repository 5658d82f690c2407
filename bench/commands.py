"""The bytes that the floors send, and the replies that mean a grant.

Plain: `SET key owner NX PX ttl`, released by the published owner-checked delete. Fenced: acquired by a script that also
counts a token, and does nothing else.
A floor builds every command from its name and owner at the time of the send, because a real client does not know its
names beforehand. The parts that are the same for every name are prepared.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.candidate import TTL_MS

RELEASE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end"

Request = Callable[[bytes], tuple[bytes, object]]
"""Takes an attempt's owner; returns the bytes to send, and the reply that means a grant."""


@dataclass(frozen=True)
class Commands:
    """What one floor sends. `scripts` are loaded on every node before the first round."""

    scripts: tuple[bytes, ...]
    acquire: Callable[[str], Request]
    release: Callable[[str], Request]


class _AnyToken:
    """Equals every integer: on one node the server chooses the token, and a refusal is an array."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, reply: object) -> bool:
        return reply.__class__ is int


def encode(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w) for w in words)


def sha1(script: bytes) -> bytes:
    return hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()


def lock_key(name: str) -> bytes:
    return b"floor:{%s}" % name.encode()


# Placeholders of a template, filled at the time of the send.
KEY, FENCE, OWNER, TOKEN = b"\0key", b"\0fence", b"\0owner", b"\0token"


def owners() -> Callable[[], bytes]:
    """128 random bits for each attempt, read from the system in blocks: the cheapest way, and handfast's way too."""
    left: list[bytes] = []

    def owner() -> bytes:
        if not left:
            text = os.urandom(4096).hex().encode()
            left.extend([text[i : i + 32] for i in range(0, len(text), 32)])
        return left.pop()

    return owner


def proposals() -> Callable[[], int]:
    """max(wall µs, last + 1), as a quorum client proposes its token."""
    last = 0

    def propose() -> int:
        nonlocal last
        last = max(time.time_ns() // 1000, last + 1)
        return last

    return propose


def template(*words: bytes) -> bytes:
    """The command with `$%d %b` at each placeholder; FENCE is the key and `:f`."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        if word == FENCE:
            parts.append(b"$%d\r\n%b:f\r\n")
        elif word in (KEY, OWNER, TOKEN):
            parts.append(b"$%d\r\n%b\r\n")
        else:
            parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


def _by_key_and_owner(yes: object, *words: bytes) -> Callable[[str], Request]:
    form = template(*words)

    def command(name: str) -> Request:
        def request(owner: bytes) -> tuple[bytes, object]:
            key = lock_key(name)
            return form % (len(key), key, len(owner), owner), yes

        return request

    return command


_release = _by_key_and_owner(1, b"EVALSHA", sha1(RELEASE), b"1", KEY, OWNER)


def plain() -> Commands:
    acquire = _by_key_and_owner(b"OK", b"SET", KEY, OWNER, b"NX", b"PX", b"%d" % TTL_MS)
    return Commands((RELEASE,), acquire, _release)


TAKE_TOKEN = b"""
if not redis.call('set', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return {} end
local token, count = tonumber(ARGV[3]), tonumber(redis.call('get', KEYS[2]) or '0')
if token == 0 then
  local time = redis.call('TIME')
  token = time[1] * 1000000 + time[2]
end
if token <= count then token = count + 1 end
redis.call('set', KEYS[2], string.format('%.0f', token))
return token
"""
"""The least that a fenced acquisition must do on a node."""


def acquire_words(proposal: bytes) -> list[bytes]:
    return [b"EVALSHA", sha1(TAKE_TOKEN), b"2", KEY, FENCE, OWNER, b"%d" % TTL_MS, proposal]


def fenced(quorum: bool) -> Commands:
    propose = proposals()
    form_one, form_quorum = template(*acquire_words(b"0")), template(*acquire_words(TOKEN))
    any_token = _AnyToken()

    def acquire_quorum(name: str) -> Request:
        def request(owner: bytes) -> tuple[bytes, object]:
            key, token = lock_key(name), propose()
            digits = b"%d" % token
            # Only a node that replies with the proposed token has voted for it.
            return form_quorum % (len(key), key, len(key) + 2, key, len(owner), owner, len(digits), digits), token

        return request

    def acquire_one(name: str) -> Request:
        def request(owner: bytes) -> tuple[bytes, object]:
            key = lock_key(name)
            return form_one % (len(key), key, len(key) + 2, key, len(owner), owner), any_token

        return request

    return Commands((RELEASE, TAKE_TOKEN), acquire_quorum if quorum else acquire_one, _release)


def commands_for(nodes: int, with_fence: bool) -> Commands:
    return fenced(quorum=nodes > 1) if with_fence else plain()
