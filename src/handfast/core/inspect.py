"""Finds the holder and the waiters of a lock, for people and tools. No acquisition depends on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from handfast.core import guard
from handfast.core.config import LockRequest
from handfast.core.io import IO, Fault
from handfast.core.votes import AllReplies
from handfast.errors import NoQuorum
from handfast.protocol import commands
from handfast.protocol.claims import QueuedClaim, decode_claim, decode_record
from handfast.protocol.resp import encode

__all__ = ["Holder", "age", "counter", "holder", "pairs", "remaining", "waiters"]

PEEK_REPLIES = 4
"""The number of replies to `commands.peek` for each key."""


class Holder(NamedTuple):
    """The holder of a lock, as a majority of its nodes sees it.

    owner        The owner in the lock's key: host:pid:label:nonce, or the explicit owner.
    remaining    Seconds until the lease ends on the servers unless it is renewed; None if its key has no ttl.
    token        The holder's fencing token, if the servers know it. In a cohort, the last token of its turn.
    since        Seconds since the holder got the lock, if the servers know it.
    """

    owner: str
    remaining: float | None
    token: int | None
    since: float | None = None


async def _ask(io: IO, request: LockRequest, payload: bytes, width: int) -> dict[int, list[Any]]:
    """The replies of each node that answered. Raises NoQuorum unless a majority did."""
    group = request.group
    answered: dict[int, list[Any]] = {}

    def reduce(node: int, replies: list[Any]) -> Any:
        fault = next((reply for reply in replies if type(reply) is Fault), None)
        if fault is None:
            answered[node] = replies
        return fault or 1

    timeout = request.config.timing.timeout
    if not io.ready:
        await io.connect(group.need, max(0.5, timeout))
    ballot = AllReplies(group.n, width, reduce)
    await io.broadcast(payload, ballot, timeout)
    if len(answered) < group.need:
        nodes: dict[str, str] = {}
        for node, answer in zip(group.nodes, ballot.answers, strict=True):
            silent = node.fault.text if node.fault is not None else f"no answer in {timeout * 1000:.0f} ms"
            nodes[node.label] = answer.text if type(answer) is Fault else "answered" if answer else silent
        raise NoQuorum(request.name, granted=len(answered), needed=group.need, total=group.n, nodes=nodes)
    return answered


async def holder(io: IO, request: LockRequest) -> Holder | None:
    """The owner that has all names on a majority of the nodes; None if there is none."""
    group, names = request.group, len(request.keys)
    payload = commands.peek(request.keys) + encode(b"TIME")
    answered = await _ask(io, request, payload, PEEK_REPLIES * names + 1)
    seen: dict[bytes, list[list[Any]]] = {}
    for replies in answered.values():
        owners = {replies[PEEK_REPLIES * i] for i in range(names)}
        owner = owners.pop() if len(owners) == 1 else None
        if owner is not None:
            seen.setdefault(owner, []).append(replies)
    for owner, votes in seen.items():
        if len(votes) >= group.need:
            left = remaining(votes, names, group.need)
            token = counter(votes, names, group.need) if request.config.fence else None
            return Holder(owner.decode(errors="replace"), left, token, age(votes, token))
    return None


def remaining(votes: Sequence[list[Any]], names: int, need: int) -> float | None:
    """Seconds for which a majority of the nodes keeps the lease."""
    infinite = float("inf")
    lefts = [
        min(infinite if replies[PEEK_REPLIES * i + 1] < 0 else replies[PEEK_REPLIES * i + 1] for i in range(names))
        for replies in votes
    ]
    left = sorted(lefts, reverse=True)[need - 1]
    return None if left == infinite else left / 1000


def counter(votes: Sequence[list[Any]], names: int, need: int) -> int | None:
    """The counter that enough of the holder's nodes agree on."""
    counters = [max(int(replies[PEEK_REPLIES * i + 2] or 0) for i in range(names)) for replies in votes]
    return next((count for count in counters if count and counters.count(count) >= need), None)


def age(votes: Sequence[list[Any]], token: int | None) -> float | None:
    """Seconds since the vote was given, from the record of the hand-over, or from the token, which is a time."""
    ages: list[float] = []
    for replies in votes:
        record = decode_record(replies[3])
        began = record.stamp if record is not None and record.claim.owner == replies[0] else token
        if began is not None:
            ages.append((guard.server_time(replies[-1]) - began) / 1e6)
    return max(0.0, sorted(ages)[len(ages) // 2]) if ages else None


async def waiters(io: IO, request: LockRequest, name_of: Callable[[Any], str], local: Sequence[Any]) -> list[str]:
    """All waiters, the next one first: the head of each client, and behind this client's head its other waiters.

    On a quorum the tickets give the order, and a waiter counts if one node knows it.
    """
    start = request.config.owner_start.decode(errors="replace")
    mine = [start + name_of(caller) for caller in local]
    if request.config.exact or len(request.keys) > 1:
        return mine
    answered = await _ask(io, request, commands.queue(request.key), 2)
    claims: dict[bytes, QueuedClaim] = {}
    for ids, texts in answered.values():
        known = pairs(texts)
        for key, ticket in pairs(ids).items():
            claim = decode_claim(key, ticket, known.get(key))
            if claim is not None:
                claims.setdefault(key, claim)
    queued = [claim.owner.decode(errors="replace") for claim in sorted(claims.values())]
    # The head of the local queue is in the servers' queues already.
    return queued + (mine[1:] if queued else mine)


def pairs(reply: Any) -> dict[bytes, bytes]:
    """Read a map, a list of pairs or a flat list: the protocol's versions differ."""
    if isinstance(reply, dict):
        return dict(reply)
    if reply and isinstance(reply[0], list):
        return {key: b"%r" % value if isinstance(value, float) else value for key, value in reply}
    return dict(zip(reply[::2], reply[1::2], strict=True))
