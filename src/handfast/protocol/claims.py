"""The sole codec of votes, claims and pushes.

A claim is what a node keeps of a waiter: `ends ttl step proposal generation channel owner`. `ends` is the second of
server time until which the claim is good, `ttl` the milliseconds that the waiter wants, `step` the tokens (0:
unfenced), `proposal` its proposed token, `generation` the acquisition of an explicit owner (`-`: none). The owner
comes last, because it may contain spaces. The record of a vote that was given is `stamp ticket id claim`.

A push is `yours id stamp token s µs [promotion marker]` (the vote of this node is yours since server time s, µs),
`inquire id stamp` (a lower ticket waits for the vote that has this stamp) or `look id` (claim again: the new holder's
vote ends sooner than was said). The id names the acquisition.

The reply of a vote is described in scripts/claim.lua. Changing a format means changing this module and the Lua files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "Granted",
    "Inquiry",
    "Look",
    "Proof",
    "Push",
    "QueuedClaim",
    "Refused",
    "VoteRecord",
    "Yours",
    "decode_claim",
    "decode_push",
    "decode_record",
    "decode_vote",
    "token_in",
]


class Proof(NamedTuple):
    """What a guarded node shows with a vote: see core/guard.py."""

    promotion: bytes
    marker: bytes


class Granted(NamedTuple):
    """The node has given its vote."""

    left_ms: int
    """What remains of the vote's ttl; -1: all of it."""
    token: int
    stamp: int
    """0 for a vote that was given without a ticket."""
    inquired: bool
    """A lower ticket waits for this vote."""
    server_us: int
    """0 if the node did not say."""
    proof: Proof | None


class Refused(NamedTuple):
    """The node has given its vote to somebody else."""

    left_ms: int
    """-1: the key has no end."""
    holder: bytes
    plain: bool
    """Nothing but the key tells of the holder: it may be another program's."""
    server_us: int
    proof: Proof | None


class Yours(NamedTuple):
    """A push: the vote of this node was handed over."""

    id: bytes
    stamp: int
    token: int
    server_us: int
    proof: Proof | None


class Inquiry(NamedTuple):
    """A push: a lower ticket waits for the vote with this stamp."""

    id: bytes
    stamp: int


class Look(NamedTuple):
    """A push: the vote of this node may be free sooner than the node has said."""

    id: bytes


Push = Yours | Inquiry | Look


class QueuedClaim(NamedTuple):
    """A waiter as a node's queue knows it."""

    ticket: float
    id: bytes
    owner: bytes
    ends: int
    """The last second of server time at which it is good."""
    channel: bytes


class VoteRecord(NamedTuple):
    """To which claim a node has given its vote."""

    stamp: int
    claim: QueuedClaim


def _proof(text: bytes) -> Proof | None:
    if not text:
        return None
    promotion, _, marker = text.partition(b" ")
    return Proof(promotion, marker)


def _micros(seconds: bytes, micros: bytes) -> int:
    return int(seconds) * 1_000_000 + int(micros)


def decode_vote(reply: Any) -> Any:
    """Granted or Refused from a node's reply; what is no vote (a fault, a status) comes back as it is."""
    if type(reply) is int:
        return Granted(-1, reply, 0, False, 0, None)
    if type(reply) is not list:
        return reply
    granted, left, third, fourth, seconds, micros, proof, *rest = reply
    if granted:
        inquired = bool(rest and rest[0])
        return Granted(left, int(third), int(fourth), inquired, _micros(seconds, micros), _proof(proof))
    return Refused(left, third, bool(fourth), _micros(seconds, micros), _proof(proof))


def token_in(answer: Any) -> int:
    """The token of a vote that was granted; 0 for a published command, which has none."""
    return answer if type(answer) is int else answer.token if type(answer) is Granted else 0


def decode_push(text: bytes) -> Push | None:
    """The push in a message; None for a message that no version of this library sent.

    >>> decode_push(b"inquire h:1::ab 12")
    Inquiry(id=b'h:1::ab', stamp=12)
    """
    words = text.split(b" ", 6)
    try:
        if words[0] == b"inquire":
            return Inquiry(words[1], int(words[2]))
        if words[0] == b"look":
            return Look(words[1])
        if words[0] == b"yours":
            proof = _proof(words[6]) if len(words) > 6 else None
            return Yours(words[1], int(words[2]), int(words[3]), _micros(words[4], words[5]), proof)
    except (IndexError, ValueError):
        pass
    return None


def decode_claim(claimant: bytes, ticket: bytes, claim: bytes | None) -> QueuedClaim | None:
    """A waiter in a node's queue; None for what somebody else has put there."""
    words = (claim or b"").split(b" ", 6)
    if len(words) != 7 or not all(word.isdigit() for word in words[:4]):
        return None
    return QueuedClaim(float(ticket), claimant, words[6], int(words[0]), words[5])


def decode_record(record: bytes | None) -> VoteRecord | None:
    """The record of a vote; None if there is none.

    >>> decode_record(b"12 7 h:1::ab 99 1000 1 0 - wake h:1::ab").claim.ends
    99
    """
    words = (record or b"").split(b" ", 3)
    if len(words) != 4 or not words[0].isdigit():
        return None
    claim = decode_claim(words[2], words[1], words[3])
    return None if claim is None else VoteRecord(int(words[0]), claim)
