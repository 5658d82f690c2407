"""`handfast doctor`: whether the servers can be trusted with locks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from handfast.cli.declare import JSON, SERVER_OPTIONS, Command, Option

if TYPE_CHECKING:
    from handfast.operate.doctor import Check

__all__ = ["COMMAND"]

SIGNS: Final = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "bad": ("✗", "red")}
MIN_ROOM: Final = 15
STATUS: Final = {"ok": 0, "warn": 1, "bad": 2}


def _examine(options: Any) -> int:
    from handfast.cli.clients import deployment
    from handfast.cli.output import Progress, is_terminal, print_json, terminal_width
    from handfast.operate.doctor import examine, worst

    checks: list[Check] = []
    with deployment(options) as servers, Progress("connecting") as progress:
        for check in examine(servers, probe=not options.read_only):
            progress.show(f"{check.node} {check.name}")
            checks.append(check)
    level = worst(checks)
    if options.json:
        print_json({"level": level, "checks": checks})
    else:
        width = terminal_width() if is_terminal(sys.stdout) else None
        print("\n".join(_lines(checks, width, quiet=options.quiet)))
    return STATUS[level]


def _lines(checks: list[Check], columns: int | None, *, quiet: bool) -> Iterator[str]:
    from handfast.cli.output import coloured

    width = max((len(check.name) for check in checks), default=0)
    node: str | None = None
    for check in checks:
        if quiet and check.level == "ok":
            continue
        if check.node != node:
            node = check.node
            yield coloured(node or "all servers", "bold")
        sign, colour = SIGNS[check.level]
        indent = " " * (width + 6)
        first, *others = _wrapped(check.found, columns, indent)
        yield f"  {coloured(sign, colour)} {check.name:<{width}}  {first}"
        yield from (indent + line for line in others)
        if check.advice:
            first, *others = _wrapped(f"→ {check.advice}", columns, indent)
            yield indent + coloured(first, "cyan")
            yield from (f"{indent}  {coloured(line, 'cyan')}" for line in others)
    counts = {level: sum(1 for check in checks if check.level == level) for level in SIGNS}
    yield f"{counts['bad']} bad, {counts['warn']} to look at, {counts['ok']} fine"


def _wrapped(text: str, columns: int | None, indent: str) -> list[str]:
    """Lines that fit beside the names of the checks, if the terminal is wide enough for both."""
    from textwrap import wrap

    from handfast.cli.output import printable

    room = (columns or 0) - len(indent) - 2
    return (wrap(printable(text), room) if room > MIN_ROOM else []) or [printable(text)]


COMMAND: Final = Command(
    name="doctor",
    summary="Check whether the servers can be trusted with locks.",
    description="""
For each server: whether it can be reached and how fast, its version and what it can do, its role, whether it may
evict locks, its memory, its clock, what this user may do, wake-ups, persistence and what a restart means, replicas,
and the restart guard. For all together: whether a majority answers and may vote, whether the servers are different
ones, and whether their clocks agree. ✓ is fine, ! is to be looked at, ✗ must be put right; → says how.

To see what the user may do, the doctor writes a key of its own and deletes it.
""",
    run=_examine,
    options=(
        JSON,
        Option("--quiet", "Only what is not fine."),
        Option("--read-only", "Write nothing to the servers; rights are not checked."),
        *SERVER_OPTIONS,
    ),
    examples=(
        ("A quorum.", "handfast doctor --url redis://10.0.0.1 --url redis://10.0.0.2 --url redis://10.0.0.3"),
        ("For a monitor.", "handfast doctor --quiet || alert"),
    ),
    statuses=(
        ("0", "Everything is fine."),
        ("1", "Something is to be looked at."),
        ("2", "Something must be put right."),
    ),
)
