"""`handfast watch`: a line for each change."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from handfast.cli.declare import COUNT, JSON, SERVER_OPTIONS, Command, interval
from handfast.cli.ls import FILTER

if TYPE_CHECKING:
    from handfast.operate.changes import Change

__all__ = ["COMMAND"]

COLOURS: Final = {
    "held": "dim", "acquired": "green", "released": "dim", "handed over": "cyan", "broken": "red", "waiting": "yellow",
    "node down": "red", "node up": "green", "minority": "red",
}  # fmt: skip


def _watch(options: Any) -> int:
    from handfast.cli.clients import deployment
    from handfast.cli.output import Progress, print_json
    from handfast.operate.changes import Watcher

    with deployment(options) as servers:
        with Progress("connecting"):
            servers.check()
        watcher = Watcher(servers, options.pattern)
        for change in _changes(watcher, options.interval, options.count):
            print_json(change) if options.json else print(_line(change))
            sys.stdout.flush()
    return 0


def _changes(watcher: Any, seconds: float, count: int) -> Iterator[Change]:
    from handfast.cli.output import pause

    looks = 0
    while not count or looks < count:
        if looks:
            pause(seconds)
        looks += 1
        yield from watcher.look()


def _line(change: Change) -> str:
    from handfast.cli.output import coloured, printable

    clock = time.strftime("%H:%M:%S", time.localtime(change.at)) + f".{int(change.at * 1000) % 1000:03}"
    kind = coloured(f"{change.kind:<11}", COLOURS[change.kind])
    return f"{clock}  {kind}  {printable(change.name or change.node)}  {printable(change.text)}".rstrip()


COMMAND: Final = Command(
    name="watch",
    summary="Print a line for each lock that changes hands.",
    description="""
Looks at the servers again and again, and prints what has changed: acquired, released, handed over, waiting (how many
wait now), minority (nobody has a majority of the votes), broken (by an operator), node down, node up. The first lines
(held) are what is held at the start. A lock that is taken and released between two looks is not seen. Ctrl-C ends it.
""",
    run=_watch,
    arguments=(FILTER,),
    options=(
        JSON,
        interval("500ms"),
        COUNT,
        *SERVER_OPTIONS,
    ),
    examples=(
        ("One service.", "handfast watch 'orders:*'"),
        ("For a program.", "handfast watch --json | tee locks.jsonl"),
    ),
)
