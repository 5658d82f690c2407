"""Agreement on a token.

Every granting node stored and answered max(own counter + 1, proposal). If M of them answered the same value, that is the
token. Otherwise: of the M smallest answers take the largest, t, and raise the others among those M to t, checked
against the owner; M nodes at t make it the token.

Order: a majority then has counters >= t, and every later majority meets it. Uniqueness: two majorities meet in a
node where the two ownerships are disjoint in time, and that node never gives the same value twice.
"""

from __future__ import annotations

from handfast.core import commands
from handfast.core.commands import Request
from handfast.core.effects import Effects
from handfast.core.group import Group
from handfast.core.quorum import Ballot, said_yes

__all__ = ["agree", "agreed", "value"]


def value(answer: int | list[int]) -> int:
    """The counter in a yes: an integer, or an array of one for a re-entry."""
    return answer[0] if isinstance(answer, list) else answer


def agreed(group: Group, ballot: Ballot) -> int | None:
    """The value that enough nodes answered alike, if there is one: the usual case, and nothing more to send."""
    counters = [value(answer) for answer in ballot.answers if said_yes(answer)]
    group.seen_token = max(group.seen_token, *counters)
    for counter in counters:
        if counters.count(counter) >= group.need:
            return counter
    return None


async def agree(io: Effects, request: Request, owner: bytes, ballot: Ballot, patience: float) -> int | None:
    """The token of a won ballot whose nodes differ, or None if it could not be settled."""
    group = request.group
    granted = sorted((value(a), node) for node, a in enumerate(ballot.answers) if said_yes(a))
    chosen = granted[: group.need]
    token = chosen[-1][0]
    behind = [node for counter, node in chosen if counter < token]
    payloads: list[bytes | None] = [None] * group.n
    for node in behind:
        payloads[node] = commands.raise_to(request, owner, token)
    raised = Ballot(group.n, len(behind), len(behind))
    await io.exchange(payloads, raised, patience)
    return token if raised.won else None
