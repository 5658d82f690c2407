"""The lab in a terminal: a bar for each scenario while it runs, a table at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from lab.ledger import Score
from lab.run import Run
from lab.rungs import LADDER

__all__ = ["Bars", "table"]

COLOURS: Final = {"safe": "green", "oversold": "red", "stuck": "yellow"}
EVERY: Final = 0.1
WIDE: Final = 110
"""Columns of a terminal in which there is room for words."""
ROOMY: Final = 80
"""… for bars and clocks."""


class Bars:
    """One bar per scenario, that goes on while the scenario does."""

    def __init__(self, console: Console, quiet: bool) -> None:
        seen = TextColumn("{task.fields[seen]}", table_column=Column(no_wrap=False))
        # In a narrow terminal the numbers come first.
        bar = [BarColumn(bar_width=24)] if console.width >= ROOMY else []
        clock = [TimeElapsedColumn()] if console.width >= ROOMY else []
        self._progress = Progress(TextColumn("{task.description}"), *bar, seen, *clock, console=console, disable=quiet)
        self._run: Run | None = None
        self._task = self._progress.add_task("starting", total=None, seen="servers, workers, balancer")

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[Bars]:
        with self._progress:
            ticking = asyncio.create_task(self._tick())
            try:
                yield self
            finally:
                ticking.cancel()
                self._finish()

    def begin(self, run: Run) -> None:
        self._finish()
        self._run = run
        self._task = self._progress.add_task(f"{run.name:22}", total=1.0, seen="")

    def _finish(self) -> None:
        self._look()
        if self._run is None:
            self._progress.remove_task(self._task)
        else:
            self._progress.update(self._task, completed=1.0)
            self._progress.stop_task(self._task)

    def _look(self) -> None:
        if self._run is not None:
            ledger = self._run.ledger
            over = f", [red]{ledger.oversold} oversold[/]" if ledger.oversold else ""
            self._progress.update(self._task, completed=self._run.progress, seen=f"{len(ledger.sales)} sold{over}")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self._look()


def table(scores: list[Score], console: Console) -> Table | Text:
    """What fits the console without cutting a number; in a wide one with what happens in each scenario."""
    for dropped in range(3):
        shown = _table(scores, dropped, wide=console.width >= WIDE)
        plain = _table(scores, dropped, wide=False)
        if Measurement.get(console, console.options.update_width(1000), plain).maximum <= console.width:
            return shown
    return Text("\n").join(line for score in scores for line in _two_lines(score))


def _table(scores: list[Score], dropped: int, wide: bool) -> Table:
    """`dropped`: 1 leaves the times out, 2 the orders per second too."""
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("rung/scenario", no_wrap=True)
    if wide:
        shown.add_column("what happens")
    last = (None, -2, -3)[dropped]
    for column in ("sold", "over\nsold", "lost", "stuck\ns", "orders\n/s", "p50\nms", "p99\nms")[:last]:
        shown.add_column(column, justify="right", no_wrap=True)
    shown.add_column("seen", no_wrap=True)
    titles = {f"{rung.name}/{scenario.name}": scenario.title for rung in LADDER for scenario in rung.scenarios}
    for score in scores:
        numbers = (
            str(score.sold),
            Text(str(score.oversold), style="red" if score.oversold else ""),
            str(score.lost),
            f"{score.stuck:.1f}",
            f"{score.rate:.0f}",
            f"{score.p50 * 1000:.0f}",
            f"{score.p99 * 1000:.0f}",
        )
        shown.add_row(score.scenario, *([titles[score.scenario]] if wide else []), *numbers[:last], _verdict(score))
    return shown


def _two_lines(score: Score) -> tuple[Text, Text]:
    numbers = f"  sold {score.sold} over {score.oversold} lost {score.lost} stuck {score.stuck:.1f}"
    return Text.assemble(score.scenario, " ", _verdict(score)), Text(numbers)


def _verdict(score: Score) -> Text:
    if score.broken:
        return Text("BROKEN", style="bold red")
    return Text(score.verdict if score.as_expected else f"{score.verdict}?", style=COLOURS[score.verdict])
