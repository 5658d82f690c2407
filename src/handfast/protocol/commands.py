"""One encoder for each transition. Keys come from keys.py, and the header of each script explains its arguments.

Every acquisition uses the commands about one name. They are joined from parts that their callers keep ready: encoding a
command of twenty words takes longer than sending it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from handfast.protocol import keys as names
from handfast.protocol.resp import bulk, encode
from handfast.protocol.scripts import SHA

__all__ = [
    "INFO_REPLICATION",
    "NO_GENERATION",
    "UNLIMITED",
    "Identity",
    "acquire_all",
    "claim",
    "claim_rules",
    "claim_terms",
    "delete_owned",
    "extend",
    "pass_on",
    "peek",
    "queue",
    "raise_token",
    "restore_vote",
    "script",
    "set_marker",
    "set_nx",
    "track",
    "yield_vote",
]

NO_GENERATION: Final = b"-"
UNLIMITED: Final = 1 << 52
"""The longest ttl in ms, if there is no limit. A double still counts such numbers by ones."""


class Identity:
    """The identity of an acquisition. Its id is its owner or, for an explicit owner, its generation.

    An acquisition of several names has an id for each of them, so that a push shows which name it concerns.
    """

    __slots__ = ("generation", "id", "owner")

    def __init__(self, id: bytes, owner: bytes, generation: bytes = NO_GENERATION) -> None:  # noqa: A002
        self.id = id
        self.owner = owner
        self.generation = generation

    @property
    def words(self) -> bytes:
        """Id and generation, as the last arguments of a command; empty if the id is the owner."""
        return b"" if self.id is self.owner else bulk(self.id) + bulk(self.generation)

    @classmethod
    def explicit(cls, owner: bytes, generation: bytes) -> Identity:
        """The identity of one of possibly several acquisitions of an explicit owner."""
        return cls(generation, owner, generation)

    def for_name(self, index: int) -> Identity:
        """The identity for one of several names."""
        return Identity(b"%b#%d" % (self.id, index), self.owner, self.generation)


def script(name: str, keys: Sequence[bytes], *args: bytes) -> bytes:
    return encode(b"EVALSHA", SHA[name], b"%d" % len(keys), *keys, *args)


def _head(name: str, args: int) -> tuple[bytes, bytes]:
    """The start of a command about one name: without and with a guard."""
    start = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n%d\r\n"
    return start % (3 + 5 + args, SHA[name], 5), start % (3 + 7 + args, SHA[name], 7)


# Without arguments that have the usual values, without those of an identity, and with all: see claim.lua.
_CLAIM: Final = _head("claim", 6), _head("claim", 9), _head("claim", 11)
_PASS: Final = _head("pass", 2), _head("pass", 3), _head("pass", 5)
_YIELD: Final = _head("yield", 3), _head("yield", 5)


def claim_terms(ttl_ms: bytes, step: int, retention: int) -> bytes:
    """The ttl, the number of tokens and the retention of counters, as arguments of a claim."""
    return bulk(ttl_ms) + bulk(b"%d" % step) + bulk(b"%d" % retention)


def claim_rules(longest_ms: int, *, overtakes: bool) -> bytes:
    """The longest ttl, and whether the claim overtakes the queue, as arguments of a claim. Empty if neither matters."""
    return bulk(b"%d" % longest_ms) + bulk(b"%d" % overtakes) if longest_ms != UNLIMITED or overtakes else b""


_NO_RULES: Final = bulk(b"%d" % UNLIMITED) + bulk(b"0")


def claim(
    keys: bytes,
    guard: bytes,
    who: Identity,
    terms: bytes,
    ticket: bytes = b"",
    channel: bytes = b"",
    proposal: bytes = b"0",
    rules: bytes = b"",
) -> bytes:
    """Take the vote or, with a ticket, enter the queue. `keys`: see `keys.queue_keys`. `guard`: the guard's keys as
    arguments; empty without a guard."""
    owner = who.owner
    if rules == b"" and proposal == b"0" and who.id is owner:
        return b"%b%b%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
            _CLAIM[0][guard != b""], keys, guard, len(owner), owner, terms,
            len(ticket), ticket, len(channel), channel,
        )  # fmt: skip
    words = who.words
    return b"%b%b%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n%b%b" % (
        _CLAIM[2 if words else 1][guard != b""], keys, guard, len(owner), owner, terms,
        len(ticket), ticket, len(channel), channel, len(proposal), proposal, rules or _NO_RULES, words,
    )  # fmt: skip


def pass_on(keys: bytes, guard: bytes, who: Identity, token: bytes, retention: bytes) -> bytes:
    """End an acquisition: leave the queue, hand the vote over."""
    owner = who.owner
    if token == b"0" and who.id is owner:
        return b"%b%b%b$%d\r\n%b\r\n%b" % (_PASS[0][guard != b""], keys, guard, len(owner), owner, retention)
    words = who.words
    return b"%b%b%b$%d\r\n%b\r\n%b$%d\r\n%b\r\n%b" % (
        _PASS[2 if words else 1][guard != b""], keys, guard, len(owner), owner, retention, len(token), token, words,
    )  # fmt: skip


def yield_vote(keys: bytes, guard: bytes, who: Identity, stamp: int, retention: bytes) -> bytes:
    """Give the vote with this stamp back to the queue."""
    words = who.words
    head = _YIELD[words != b""][guard != b""]
    return b"%b%b%b%b%b%b%b" % (head, keys, guard, bulk(who.owner), retention, bulk(b"%d" % stamp), words)


def acquire_all(
    keys: Sequence[bytes],
    guard: Sequence[bytes],
    who: Identity,
    ttl_ms: bytes,
    step: int,
    proposal: bytes,
    retention: int,
    longest_ms: int,
    barge: bool,
) -> bytes:
    """Take the votes for several names, all or none."""
    all_keys = [*keys, *names.with_suffix(keys, names.QUEUE, names.CLAIMS, names.FENCE, names.GENERATIONS), *guard]
    return script(
        "acquire_all", all_keys, who.owner, who.generation, ttl_ms, b"%d" % len(keys), b"%d" % step, proposal,
        b"%d" % retention, b"%d" % longest_ms, b"%d" % barge,
    )  # fmt: skip


def extend(keys: Sequence[bytes], who: Identity, ttl_ms: bytes, longest_ms: bytes) -> bytes:
    # Do not name keys that are not needed: while a slot moves, a cluster refuses keys that do not exist.
    generations = names.with_suffix(keys, names.GENERATIONS) if who.generation != NO_GENERATION else []
    return script("extend", [*keys, *generations], who.owner, who.generation, ttl_ms, longest_ms)


def restore_vote(
    keys: Sequence[bytes], mark: Sequence[bytes], who: Identity, ttl_ms: int, token: int, retention: int
) -> bytes:
    """Restore votes that a node has lost. `mark`: the key of the high-water mark, if there is one."""
    all_keys = [*keys, *names.with_suffix(keys, names.FENCE, names.GENERATIONS), *mark]
    return script(
        "restore_vote", all_keys, who.owner, who.generation, b"%d" % ttl_ms, b"%d" % len(keys), b"%d" % token,
        b"%d" % retention,
    )  # fmt: skip


def raise_token(keys: Sequence[bytes], mark: Sequence[bytes], who: Identity, token: int, retention: int) -> bytes:
    """Lift the counters to an agreed token."""
    all_keys = [*keys, *names.with_suffix(keys, names.FENCE, names.GENERATIONS), *mark]
    args = (b"%d" % len(keys), b"%d" % token, b"%d" % retention)
    return script("raise_token", all_keys, who.owner, who.generation, *args)


def set_marker(key: bytes, seen: bytes, marker: bytes, micros: int) -> bytes:
    return script("set_marker", (key,), seen, marker, b"%d" % micros)


# -- keys that other programs share ----------------------------------------------------------------------------------

DELETE_OWNED: Final = {
    "delifeq": b"*3\r\n$7\r\nDELIFEQ\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n",
    "delex": b"*4\r\n$5\r\nDELEX\r\n$%d\r\n%b\r\n$4\r\nIFEQ\r\n$%d\r\n%b\r\n",
    "": b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % SHA["delete_owned"] + b"$%d\r\n%b\r\n$%d\r\n%b\r\n",
}
"""The commands that compare and delete in one step, for Valkey, for Redis 8.4 and for any server. The handshake finds out
which of them a server has."""
INFO_REPLICATION: Final = encode(b"INFO", b"replication")


def set_nx(key: bytes, owner: bytes, ttl_ms: bytes) -> bytes:
    """The acquisition of the published protocol."""
    return b"*6\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$%d\r\n%b\r\n" % (
        len(key), key, len(owner), owner, len(ttl_ms), ttl_ms,
    )  # fmt: skip


def delete_owned(way: str, key: bytes, owner: bytes) -> bytes:
    return DELETE_OWNED[way] % (len(key), key, len(owner), owner)


# -- reading ---------------------------------------------------------------------------------------------------------

_TRACKED: Final = encode(b"CLIENT", b"CACHING", b"YES")
_UNTRACKED: Final = encode(b"PING")


def track(keys: Sequence[bytes], *, tracked: bool) -> bytes:
    """Read the holders of these keys and their ttls. `tracked`: also ask for a push when they change.

    Replies: one to drop, the holder (of several keys: a list of holders), the PTTL of each key.
    """
    read = encode(b"GET", keys[0]) if len(keys) == 1 else encode(b"MGET", *keys)
    return (_TRACKED if tracked else _UNTRACKED) + read + b"".join(encode(b"PTTL", key) for key in keys)


def peek(keys: Sequence[bytes]) -> bytes:
    """Four replies for each key: the holder, its PTTL, its counter, and the record of the vote."""
    return b"".join(
        encode(b"GET", key) + encode(b"PTTL", key) + encode(b"GET", key + names.FENCE)
        + encode(b"HGET", key + names.CLAIMS, b"*")
        for key in keys
    )  # fmt: skip


def queue(key: bytes) -> bytes:
    """Two replies: the waiting ids with their tickets, and their claims."""
    return encode(b"ZRANGE", key + names.QUEUE, b"0", b"-1", b"WITHSCORES") + encode(b"HGETALL", key + names.CLAIMS)
