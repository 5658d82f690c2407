"""Locks as rows of a table: for `ls` and `top`."""

from __future__ import annotations

from collections.abc import Sequence

from handfast.cli.durations import shown
from handfast.cli.output import Column, Table, printable
from handfast.operate.locks import LockInfo, NodeVote

__all__ = ["lock_row", "lock_table", "strip"]

HELD, FREE, OTHER, SILENT = "●", "○", "◐", "✗"
"""The signs of a node's vote: the holder's, free, another owner's, unknown."""


def strip(info: LockInfo) -> str:
    """The votes of all nodes, one sign for each."""
    return "".join(_sign(vote, info.owner.text) for vote in info.votes)


def _sign(vote: NodeVote, owner: str) -> str:
    if vote.error:
        return SILENT
    return FREE if vote.owner is None else HELD if vote.owner == owner else OTHER


def lock_row(info: LockInfo, *, quorum: bool, kinds: bool) -> list[str]:
    row = [
        printable(info.name),
        printable(info.owner.short),
        "-" if info.token is None else str(info.token),
        shown(info.ttl) if info.ttl is not None else "no end",
        shown(info.since),
        str(info.waiters),
    ]
    if kinds:
        row.insert(1, "lock" if info.kind == "lock" else "owner")
    return [*row, strip(info)] if quorum else row


def lock_table(rows: Sequence[Sequence[str]], width: int | None, *, quorum: bool, kinds: bool) -> Table:
    """Widths for the rows; `width`: that of the terminal."""
    columns = [
        Column("NAME", least=12),
        Column("OWNER", least=12),
        Column("TOKEN", right=True, leaves=1),
        Column("TTL", right=True, leaves=4),
        Column("HELD", right=True, leaves=3),
        Column("WAITING", right=True, leaves=5),
    ]
    if kinds:
        columns.insert(1, Column("KIND", leaves=2))
    return Table([*columns, Column("VOTES")] if quorum else columns, rows, width)
