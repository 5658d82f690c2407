"""Agreement on a token.

Every granting node stored and answered max(own counter + 1, proposal). If M of them answered the same value, that is the
token. Otherwise: of the M smallest answers take the largest, t, and raise the others among those M to t, checked against
the acquisition; M nodes at t make it the token.

Order: a majority then has counters >= t, and every later majority meets it. Uniqueness: two majorities meet in a node
where the two ownerships are disjoint in time, and that node never gives the same value twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from handfast.core.config import LockKeys
from handfast.core.io import IO
from handfast.core.nodes import NodeGroup
from handfast.core.votes import Ballot
from handfast.protocol import commands
from handfast.protocol.commands import Identity

__all__ = ["agree", "agreed"]


def agreed(group: NodeGroup, counters: Mapping[int, int]) -> int | None:
    """The value that enough nodes answered alike, if there is one: the usual case, and nothing more to send."""
    values = list(counters.values())
    group.seen_token = max(group.seen_token, *values)
    for value in values:
        if values.count(value) >= group.need:
            return value
    return None


async def agree(
    io: IO, target: LockKeys, who: Identity, counters: Mapping[int, int], timeout: float
) -> tuple[int | None, set[int]]:
    """The token of a majority of votes, and the nodes that have it; None if it could not be raised everywhere."""
    group, config = target.group, target.config
    if group.n == 1:
        return counters[0], {0}
    token = agreed(group, counters)
    if token is not None:
        return token, {node for node, value in counters.items() if value == token}
    chosen = sorted((value, node) for node, value in counters.items())[: group.need]
    token = chosen[-1][0]
    behind = [node for value, node in chosen if value < token]
    payloads: list[bytes | None] = [None] * group.n
    # All nodes of an explicit owner: a later acquisition under it keeps this token.
    asked = [*counters] if who.generation != commands.NO_GENERATION else behind
    for node in asked:
        payloads[node] = commands.raise_token(target.keys, config.mark_keys, who, token, config.retention)
    raised = Ballot(group.n, len(asked), len(asked))
    await io.broadcast(payloads, raised, timeout)
    at_token = {node for value, node in chosen if value == token}
    at_token |= {node for node in behind if raised.votes >> node & 1}
    return (token if len(at_token) >= group.need else None), at_token
