"""Who holds a lock and who waits for it, for people who ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from handfast.core import commands
from handfast.core.commands import Request
from handfast.core.effects import Effects, Fault
from handfast.core.quorum import Census
from handfast.errors import NoQuorum

__all__ = ["Holder", "holder", "waiters"]


class Holder(NamedTuple):
    """Who holds a lock, as a majority of its nodes sees it."""

    owner: str
    remaining: float | None
    """Seconds until it ends on the servers unless renewed; None if its key has no end."""
    token: int | None
    """Its fencing token, where that can be known; in a cohort the last of those that may be given out in this turn."""


async def _asked(io: Effects, request: Request, payload: bytes, width: int) -> dict[int, list[Any]]:
    """What each node answered; NoQuorum unless a majority did."""
    group = request.group
    said: dict[int, list[Any]] = {}
    faults: dict[str, str] = {}

    def judge(node: int, replies: list[Any]) -> Any:
        fault = next((reply for reply in replies if type(reply) is Fault), None)
        if fault is None:
            said[node] = replies
        return fault or 1

    patience = request.settings.terms.patience
    if not io.settled:
        await io.settle(group.need, max(0.5, patience))
    poll = Census(group.n, width, judge)
    await io.exchange(payload, poll, patience)
    if len(said) < group.need:
        for node, answer in zip(group.nodes, poll.answers, strict=True):
            silent = node.fault.text if node.fault is not None else f"no answer in {patience * 1000:.0f} ms"
            faults[node.label] = answer.text if type(answer) is Fault else "answered" if answer else silent
        raise NoQuorum(request.name, granted=len(said), needed=group.need, total=group.n, nodes=faults)
    return said


async def holder(io: Effects, request: Request) -> Holder | None:
    """Who holds it: the owner that has all of its names on a majority; None if nobody has."""
    group, names = request.group, len(request.keys)
    said = await _asked(io, request, commands.peek(request, counted=True), 3 * names)
    seen: dict[bytes, list[list[Any]]] = {}
    for replies in said.values():
        owners = {replies[3 * i] for i in range(names)}
        owner = owners.pop() if len(owners) == 1 else None
        if owner is not None:
            seen.setdefault(owner, []).append(replies)
    for owner, votes in seen.items():
        if len(votes) >= group.need:
            # For as long as a majority keeps it.
            lefts = sorted((min(_left(replies[3 * i + 1]) for i in range(names)) for replies in votes), reverse=True)
            left = lefts[group.need - 1]
            remaining = None if left == float("inf") else left / 1000
            token = _token(votes, names, group.need) if request.settings.fence else None
            return Holder(owner.decode(errors="replace"), remaining, token)
    return None


def _left(ms: int) -> float:
    return float("inf") if ms < 0 else ms


def _token(votes: Sequence[list[Any]], names: int, need: int) -> int | None:
    """The counter that enough of the holder's nodes agree on."""
    counters = [max(int(replies[3 * i + 2] or 0) for i in range(names)) for replies in votes]
    return next((counter for counter in counters if counter and counters.count(counter) >= need), None)


async def waiters(io: Effects, request: Request, mine: list[str]) -> list[str]:
    """Those who wait, the next one first: of a fair lock one for each process, and `mine`, all of this client's own."""
    queued: list[str] = []
    if request.settings.fair:
        said = await _asked(io, request, commands.queue(request), 2)
        # What is no claim was put there by somebody else, and is passed over by the server too.
        claims = [claim for claim in said[0][0] if claim[:43].isdigit()]
        queued = [commands.owner_in(claim).decode(errors="replace") for claim in claims]
    start = request.settings.owner_start.decode(errors="replace")
    # The head of our own line stands in the server's queue already.
    return queued + [start + who for who in (mine[1:] if queued else mine)]
