"""Agreement on a token.

Every granting node has stored and answered max(own counter + 1, proposal). If M nodes answered the same value, that is
the token. Otherwise take the M smallest answers. Let t be the largest of them. The other nodes among those M are raised
to t, if they still have the vote of this acquisition and their counters are not above t. When M nodes are at t, the
token is t.

Order: a majority has counters >= t, and every later majority shares a node with it. Uniqueness: two majorities share a
node that had the two owners one after the other, and that node never gives the same value twice. A counter above t
shows that the acquisition lost its vote there and has got another: t may have been given to somebody else in between.
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
    """The value that a majority of nodes has answered, if there is one. This is the usual case: nothing more is sent."""
    values = list(counters.values())
    group.seen_token = max(group.seen_token, *values)
    for value in values:
        if values.count(value) >= group.need:
            return value
    return None


async def agree(
    io: IO, target: LockKeys, who: Identity, counters: Mapping[int, int], timeout: float
) -> tuple[int | None, set[int]]:
    """Agree on a token. Returns it with the nodes that have it; None if too few nodes could be raised to it."""
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
    # With an explicit owner, raise all nodes: a later acquisition of that owner keeps this token.
    asked = [*counters] if who.generation != commands.NO_GENERATION else behind
    for node in asked:
        payloads[node] = commands.raise_token(target.keys, config.mark_keys, who, token, config.retention)
    raised = Ballot(group.n, len(asked), len(asked))
    await io.broadcast(payloads, raised, timeout)
    at_token = {node for value, node in chosen if value == token}
    at_token |= {node for node in behind if raised.votes >> node & 1}
    return (token if len(at_token) >= group.need else None), at_token
