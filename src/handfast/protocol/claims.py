"""Decodes votes, claims and pushes. No other module does. The scripts write them.

A claim is a waiter's entry on a node: `ends ttl step proposal generation channel owner`. `ends` is the last second of
server time at which the claim is valid, `ttl` is in milliseconds, `step` is the number of tokens (0: unfenced),
`proposal` is the proposed token, `generation` is the acquisition of an explicit owner (`-`: none). The owner comes last,
because it may contain spaces. The record of a given vote is `stamp ticket id claim`.

A push is one of these. The id names the acquisition.
- `yours id stamp token s µs [marker]`: the acquisition has this node's vote since server time s, µs.
- `inquire id stamp`: a lower ticket waits for the vote with this stamp.
- `look id`: claim again, because the vote ends sooner than the node has said, or the waiter's own explicit owner has it.

scripts/claim.lua describes the reply to a claim. A change of a format concerns this module and the Lua files.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = [
    "Granted",
    "Inquiry",
    "Look",
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


class Granted(NamedTuple):
    """The node has given its vote."""

    left_ms: int
    """The remaining ttl of the vote; -1: all of it."""
    token: int
    stamp: int
    """The stamp of the vote; 0 for a vote that was given without a ticket."""
    inquired: bool
    """A lower ticket waits for this vote."""
    server_us: int
    """The node's time in µs; 0 if it did not tell it."""
    proof: bytes
    """The marker that a guarded node shows with a vote; empty without a guard. See core/guard.py."""


class Refused(NamedTuple):
    """Another owner has the node's vote."""

    left_ms: int
    """The remaining ttl of the holder; -1: the key has no ttl."""
    holder: bytes
    plain: bool
    """The holder is no explicit owner. Its name tells whether it is another program: see node_votes.is_foreign."""
    server_us: int
    proof: bytes


class Yours(NamedTuple):
    """A push: the vote of this node was handed over."""

    id: bytes
    stamp: int
    token: int
    server_us: int
    proof: bytes


class Inquiry(NamedTuple):
    """A push: a lower ticket waits for the vote with this stamp."""

    id: bytes
    stamp: int


class Look(NamedTuple):
    """A push: claim again, because the waiter may get this node's vote sooner than the node has said."""

    id: bytes


Push = Yours | Inquiry | Look


class QueuedClaim(NamedTuple):
    """A waiter in a node's queue."""

    ticket: float
    id: bytes
    owner: bytes
    ends: int
    """The last second of server time at which the claim is valid."""
    channel: bytes


class VoteRecord(NamedTuple):
    """The claim to which a node has given its vote."""

    stamp: int
    claim: QueuedClaim


def decode_vote(reply: Any) -> Any:
    """Decode a node's reply to Granted or Refused. A reply that is no vote (a fault, a status) is returned unchanged."""
    if type(reply) is int:
        return Granted(-1, reply, 0, False, 0, b"")
    if type(reply) is not list:
        return reply
    if reply[0]:
        _, left, token, stamp, seconds, micros, proof, inquired = reply
        return Granted(left, int(token), int(stamp), inquired == 1, int(seconds) * 1_000_000 + int(micros), proof)
    _, left, holder, plain, seconds, micros, proof = reply
    return Refused(left, holder, plain == 1, int(seconds) * 1_000_000 + int(micros), proof)


def token_in(answer: Any) -> int:
    """The token of a granted vote; 0 for a published command, which has none."""
    return answer if type(answer) is int else answer.token if type(answer) is Granted else 0


def decode_push(text: bytes) -> Push | None:
    """Decode the push in a message; None if no version of handfast sent it.

    >>> decode_push(b"inquire h:1::ab 12")
    Inquiry(id=b'h:1::ab', stamp=12)
    """
    words = text.split(b" ", 6)
    try:
        if words[0] == b"yours":
            server_us = int(words[4]) * 1_000_000 + int(words[5])
            return Yours(words[1], int(words[2]), int(words[3]), server_us, words[6] if len(words) > 6 else b"")
        if words[0] == b"inquire":
            return Inquiry(words[1], int(words[2]))
        if words[0] == b"look":
            return Look(words[1])
    except (IndexError, ValueError):
        pass
    return None


def decode_claim(claimant: bytes, ticket: bytes, claim: bytes | None) -> QueuedClaim | None:
    """Decode an entry of a node's queue; None if handfast did not write it."""
    words = (claim or b"").split(b" ", 6)
    if len(words) != 7 or not all(word.isdigit() for word in words[:4]):
        return None
    return QueuedClaim(float(ticket), claimant, words[6], int(words[0]), words[5])


def decode_record(record: bytes | None) -> VoteRecord | None:
    """Decode the record of a vote; None if there is none.

    >>> decode_record(b"12 7 h:1::ab 99 1000 1 0 - wake h:1::ab").claim.ends
    99
    """
    words = (record or b"").split(b" ", 3)
    if len(words) != 4 or not words[0].isdigit():
        return None
    claim = decode_claim(words[2], words[1], words[3])
    return None if claim is None else VoteRecord(int(words[0]), claim)
