"""The lab in a terminal: a bar for each scenario while it runs, tables at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

from lab.ledger import Score
from lab.run import Run
from lab.rungs import RUNGS, scenarios_of

__all__ = ["EXPLANATION", "Bars", "VerdictBar", "facts", "table"]

COLOURS: Final = {"safe": "green", "oversold": "red", "stuck": "yellow"}
RUNNING: Final = "blue"
EVERY: Final = 0.1
WIDE: Final = 110
"""Columns of a terminal that has room for the titles of the scenarios."""
ROOMY: Final = 80
"""Columns of a terminal that has room for bars and clocks."""
NARROW: Final = 60
"""Columns of a terminal that has no room for a table of facts."""
OURS: Final = "* "
"""Stands before the names of the rungs that use handfast."""
EXPLANATION: Final = "* uses handfast.  o1 (w1): the order o1, served by the worker process w1."


def label(name: str) -> str:
    """A scenario's name, with the mark of handfast's rungs."""
    rung, _ = scenarios_of(name)[0]
    return f"{OURS if rung.handfast else ' ' * len(OURS)}{name}"


class VerdictBar(BarColumn):
    """A bar in the colour of the verdict: never green for a sale that oversold."""

    def render(self, task: Task) -> ProgressBar:
        colour = str(task.fields["colour"])
        return ProgressBar(
            total=task.total, completed=task.completed, width=24, complete_style=colour, finished_style=colour
        )


class Bars:
    """One bar per scenario. It grows while the scenario runs."""

    def __init__(self, console: Console, quiet: bool) -> None:
        seen = TextColumn("{task.fields[seen]}", table_column=Column(no_wrap=False))
        # A narrow terminal has room for the numbers only.
        bar = [VerdictBar()] if console.width >= ROOMY else []
        clock = [TimeElapsedColumn()] if console.width >= ROOMY else []
        self.progress = Progress(TextColumn("{task.description}"), *bar, seen, *clock, console=console, disable=quiet)
        self._run: Run | None = None
        starting = "servers, workers, balancer"
        self._task = self.progress.add_task("starting", total=None, seen=starting, colour=RUNNING)

    @contextlib.asynccontextmanager
    async def shown(self) -> AsyncIterator[Bars]:
        with self.progress:
            ticking = asyncio.create_task(self._tick())
            try:
                yield self
            finally:
                ticking.cancel()
                self._finish()

    def begin(self, run: Run) -> None:
        self._finish()
        self._run = run
        self._task = self.progress.add_task(f"{label(run.name):24}", total=1.0, seen="", colour=RUNNING)

    def _finish(self) -> None:
        self.update()
        if self._run is None:
            self.progress.remove_task(self._task)
        else:
            self.progress.stop_task(self._task)

    def update(self) -> None:
        if self._run is not None:
            score, ledger = self._run.score, self._run.ledger
            sold, oversold = (score.sold, score.oversold) if score else (len(ledger.sales), ledger.oversold)
            verdict = score.verdict if score else "oversold" if oversold else None
            colour = COLOURS[verdict] if verdict else RUNNING
            outcome = f"{oversold} oversold" if verdict == "oversold" else verdict
            seen = f"{sold} sold" + (f", [{colour}]{outcome}[/]" if outcome else "")
            completed = 1.0 if score else self._run.progress
            self.progress.update(self._task, completed=completed, seen=seen, colour=colour)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(EVERY)
            self.update()


def table(scores: list[Score], console: Console) -> Table | Text:
    """The scores, verdict first: as many columns as fit without cutting a number."""
    for dropped in range(3):
        shown = _table(scores, dropped, wide=console.width >= WIDE)
        plain = _table(scores, dropped, wide=False)
        if Measurement.get(console, console.options.update_width(1000), plain).maximum <= console.width:
            return shown
    return Text("\n").join(line for score in scores for line in _two_lines(score))


def _table(scores: list[Score], dropped: int, wide: bool) -> Table:
    """`dropped`: 1 leaves the times out, 2 also the orders per second."""
    shown = _empty_table()
    if wide:
        shown.add_column("what happens")
    last = (None, -2, -3)[dropped]
    for column in ("sold", "over\nsold", "lost", "stuck\ns", "orders\n/s", "p50\nms", "p99\nms")[:last]:
        shown.add_column(column, justify="right", no_wrap=True)
    titles = {f"{rung.name}/{scenario.name}": scenario.title for rung in RUNGS for scenario in rung.scenarios}
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
        title = [titles[score.scenario]] if wide else []
        shown.add_row(_verdict(score), label(score.scenario), *title, *numbers[:last])
    return shown


def _empty_table() -> Table:
    shown = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("verdict", no_wrap=True)
    shown.add_column("  rung/scenario", no_wrap=True)
    return shown


def _two_lines(score: Score) -> tuple[Text, Text]:
    numbers = f"  sold {score.sold} over {score.oversold} lost {score.lost} stuck {score.stuck:.1f}"
    return _heading(score), Text(numbers)


def _heading(score: Score) -> Text:
    return Text.assemble(_verdict(score), " ", label(score.scenario).strip())


def facts(scores: list[Score], console: Console) -> RenderableType:
    """What the lab saw in each scenario: one row per fact, with the verdict first."""
    seen = [score for score in scores if score.evidence]
    if console.width < NARROW:
        return Group(*[text for score in seen for text in (_heading(score), *_indented(score))])
    shown = _empty_table()
    shown.add_column("what the lab saw")
    for score in seen:
        first, *others = score.evidence
        shown.add_row(_verdict(score), label(score.scenario), Text(first))
        for text in others:
            shown.add_row("", "", Text(text))
    return shown


def _indented(score: Score) -> list[Text]:
    return [Text(f"  {text}") for text in score.evidence]


def _verdict(score: Score) -> Text:
    if score.broken:
        return Text("BROKEN", style="bold red")
    return Text(score.verdict if score.as_expected else f"{score.verdict}?", style=COLOURS[score.verdict])
