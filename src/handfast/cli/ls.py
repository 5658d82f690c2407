"""`handfast ls`: the held locks and their holders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from handfast.cli import UNAVAILABLE
from handfast.cli.declare import JSON, SERVER_OPTIONS, Argument, Command, Option

if TYPE_CHECKING:
    from handfast.operate.locks import LockInfo

__all__ = ["COMMAND", "FILTER", "TOO_FEW"]

TOO_FEW: Final = "too few servers answered, so this may not be all; see: handfast doctor"

SORTED: Final = 2000
"""The most locks that are sorted. If there are more, they are printed as they are found, so that memory stays small."""


def _list(options: Any) -> int:
    from handfast.cli.clients import deployment
    from handfast.cli.output import Progress, note, print_json, printable
    from handfast.operate.locks import held

    with deployment(options) as servers, Progress("asking the servers") as progress:
        locks = _counted(held(servers, options.pattern), progress)
        if options.json or options.names:
            for info in locks:
                print_json(info) if options.json else print(printable(info.name))
        else:
            _print_table(locks, progress, options, quorum=len(servers.nodes) > 1)
        for label, text in servers.faults.items():
            note(f"{label}: {text}")
        if servers.sees_all:
            return 0
        note(TOO_FEW)
        return UNAVAILABLE


def _counted(locks: Iterator[LockInfo], progress: Any) -> Iterator[LockInfo]:
    from handfast.cli.output import is_terminal

    counts = not is_terminal(sys.stdout)
    for number, info in enumerate(locks, 1):
        if counts or number < SORTED:
            progress.show(f"{number} locks")
        yield info


def _print_table(locks: Iterator[LockInfo], progress: Any, options: Any, *, quorum: bool) -> None:
    from handfast.cli.output import coloured, is_terminal, note, terminal_width
    from handfast.cli.rows import lock_row, lock_table

    first = sorted(islice(locks, SORTED), key=lambda info: info.name)
    if not first and is_terminal(sys.stdout):
        progress.end()
        note("no lock is held" if options.pattern == "*" else f"no lock is held whose name matches {options.pattern}")
        return
    kinds = any(info.kind != "lock" for info in first) or len(first) == SORTED
    rows = [lock_row(info, quorum=quorum, kinds=kinds) for info in first]
    table = lock_table(rows, terminal_width() if is_terminal(sys.stdout) else None, quorum=quorum, kinds=kinds)
    progress.end()
    print(coloured(table.header(), "bold"))
    others = (lock_row(info, quorum=quorum, kinds=kinds) for info in locks)
    for info, row in chain(zip(first, rows, strict=True), ((None, row) for row in others)):
        line = table.line(row)
        print(coloured(line, "yellow") if info is not None and info.state != "held" else line)


FILTER: Final = Argument("PATTERN", "Only names that match: *, ? and [...] as in a shell. Quote it.", default="*")

COMMAND: Final = Command(
    name="ls",
    summary="List the locks that are held.",
    description="""
One line for each lock: its name, its owner (host, process and label), its token, the time until it ends unless
renewed, for how long it has been held, how many processes wait for it, and on a quorum the vote of each node: ● the
owner's, ○ free, ◐ another owner's, ✗ no answer. A column KIND tells locks with an owner that the caller chose from
the others, if there are any.

Up to 2000 locks are sorted by name; more are printed as they are found. The servers are scanned in small steps, so
that they are not blocked. With --json each lock is a line of its own.
""",
    run=_list,
    arguments=(FILTER,),
    options=(JSON, Option("--names", "Print names only."), *SERVER_OPTIONS),
    examples=(
        ("All locks of one service.", "handfast ls 'orders:*'"),
        ("Locks with waiters.", "handfast ls --json | jq 'select(.waiters > 0) | .name'"),
    ),
    statuses=(
        ("0", "All locks are listed. A few nodes of a quorum may be down: each majority has one that answers."),
        (str(UNAVAILABLE), "Too few servers answered; what is listed may not be all."),
    ),
)
