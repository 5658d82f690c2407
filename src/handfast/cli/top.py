"""`handfast top`: the locks, in place."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from heapq import nlargest
from itertools import chain
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from handfast.cli import CommandError
from handfast.cli.declare import COUNT, JSON, SERVER_OPTIONS, Command, Option, interval
from handfast.cli.ls import FILTER
from handfast.cli.signals import ENDS, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.live import Live

    from handfast.operate.locks import LockInfo
    from handfast.operate.servers import Deployment

__all__ = ["COMMAND"]

SORTS: Final = ("waiting", "held", "ttl", "name")
BATCH_ROWS: Final = 1000
"""Rows of a snapshot that does not go to a terminal."""
HEAD: Final = 3
"""Lines above the locks."""


class Snapshot(NamedTuple):
    """The locks of one reading, as far as they are shown."""

    at: float
    first: list[LockInfo]
    locks: int
    waiters: int
    faults: dict[str, str]


def _top(options: Any) -> int:
    from handfast.cli.clients import deployment
    from handfast.cli.output import Progress, print_json

    with deployment(options) as servers:
        with Progress("connecting"):
            servers.check()
        if sys.stdout.isatty() and not options.json:
            _live(servers, options)
            return 0
        for snapshot in _snapshots(servers, options, lambda: BATCH_ROWS):
            if options.json:
                print_json(snapshot._asdict())
            else:
                print("\n".join(_lines(snapshot, servers, None)), end="\n\n")
            sys.stdout.flush()
    return 0


def _snapshots(servers: Deployment, options: Any, rows: Callable[[], int]) -> Iterator[Snapshot]:
    from handfast.cli.output import Progress, pause

    looks = 0
    while not options.count or looks < options.count:
        if looks:
            pause(options.interval)
            snapshot = _snapshot(servers, options, rows())
        else:
            with Progress("looking at the locks"):
                snapshot = _snapshot(servers, options, rows())
        looks += 1
        yield snapshot


def _snapshot(servers: Deployment, options: Any, rows: int) -> Snapshot:
    """The first locks in the wanted order. No others are kept, however many there are."""
    from handfast.operate.locks import held

    locks = waiters = 0

    def counted() -> Iterator[LockInfo]:
        nonlocal locks, waiters
        try:
            for info in held(servers, options.pattern):
                locks += 1
                waiters += info.waiters
                yield info
        except ConnectionError:
            return  # the snapshot says so

    first = nlargest(rows, counted(), key=_order(options.sort))
    return Snapshot(time.time(), first, locks, waiters, servers.faults)


def _order(sort: str) -> Callable[[LockInfo], Any]:
    def order(info: LockInfo) -> Any:
        if sort == "ttl":
            return (-info.ttl if info.ttl is not None else float("-inf"), info.name)
        if sort == "name":
            return tuple(-ord(letter) for letter in info.name)
        held = info.since or 0.0
        return (info.waiters, held) if sort == "waiting" else (held, info.waiters)

    return order


def _lines(snapshot: Snapshot, servers: Deployment, width: int | None) -> list[str]:
    from handfast.cli.output import fitted
    from handfast.cli.rows import lock_row, lock_table

    quorum, kinds = len(servers.nodes) > 1, any(info.kind != "lock" for info in snapshot.first)
    rows = [lock_row(info, quorum=quorum, kinds=kinds) for info in snapshot.first]
    table = lock_table(rows, width, quorum=quorum, kinds=kinds)
    up = len(servers.nodes) - len(snapshot.faults)
    clock = time.strftime("%H:%M:%S", time.localtime(snapshot.at))
    head = f"handfast  {clock}  {snapshot.locks} locks  {snapshot.waiters} waiting  {up} of {len(servers.nodes)} nodes"
    faults = "; ".join(f"{label}: {text}" for label, text in snapshot.faults.items())
    lines = [head, faults]
    if width is not None:
        lines = [fitted(line, width).rstrip() for line in lines]
    return [*lines, table.header(), *map(table.line, rows)]


def _live(servers: Deployment, options: Any) -> None:
    try:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text
    except ModuleNotFoundError:
        raise CommandError("top needs rich: pip install 'handfast[cli]'; or use handfast ls, or top --json", 1) from None

    console = Console(highlight=False)
    snapshots = _snapshots(servers, options, lambda: max(1, console.height - HEAD))
    first = next(snapshots)  # the progress is shown on the usual screen
    with _full_screen(Live(console=console, screen=True, auto_refresh=False)) as live:
        for snapshot in chain([first], snapshots):
            shown = Text(no_wrap=True, overflow="crop")
            for number, line in enumerate(_lines(snapshot, servers, console.width)[: console.height]):
                shown.append(line + "\n", style=("bold", "red", "reverse")[number] if number < HEAD else "")
            live.update(shown, refresh=True)


@contextmanager
def _full_screen(live: Live) -> Iterator[Live]:
    """Restores the terminal's screen and cursor, whichever signal ends or stops the process."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    def stop(number: int, frame: FrameType | None) -> None:
        live.stop()
        os.kill(os.getpid(), signal.SIGSTOP)
        live.start()  # SIGCONT has come

    for number in ENDS - {signal.SIGINT} | {signal.SIGTSTP}:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop if number == signal.SIGTSTP else end)
    with live:
        yield live


COMMAND: Final = Command(
    name="top",
    summary="Watch the locks that matter most, in place.",
    description="""
Shows as many locks as fit on the screen, and looks again every second. The order is by waiting processes, by the time
held, by the time left, or by name. Ctrl-C ends it. When it does not write to a terminal, each look is printed in full,
up to 1000 locks.

On a terminal it needs rich: pip install 'handfast[cli]'.
""",
    run=_top,
    arguments=(FILTER,),
    options=(
        Option("--sort", "What comes first, waiting by default.", "ORDER", default="waiting", choices=SORTS),
        interval("1s"),
        COUNT,
        JSON,
        *SERVER_OPTIONS,
    ),
    examples=(("Who blocks others?", "handfast top"), ("What is held longest?", "handfast top --sort held 'orders:*'")),
)
