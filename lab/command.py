"""`python -m lab`: the flash sale, from no lock at all to a lock whose token the database checks."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lab import LabError, main
from lab.closed_pipe import Command


@click.command("lab", cls=Command)
@click.option(
    "--rung",
    "rungs",
    multiple=True,
    metavar="NAME",
    help="Run only this rung or rung/scenario. May be given more than once.",
)
@click.option("--stock", type=click.IntRange(2, 100_000), default=100, show_default=True, help="Pieces for sale.")
@click.option("--buyers", type=click.IntRange(1, 256), default=16, show_default=True, help="Buyers at a time.")
@click.option("--workers", type=click.IntRange(3, 16), default=4, show_default=True, help="Worker processes of the shop.")
@click.option(
    "--seconds", type=click.FloatRange(1, 600), default=4.0, show_default=True, help="Maximum length of a sale."
)
@click.option("--database", default="", metavar="URL", help="PostgreSQL URL. Default: SQLite in a temporary file.")
@click.option(
    "--balancer", type=click.Choice(["nginx", "built-in"]), help="Load balancer. Default: nginx if it is installed."
)
@click.option("--ab", is_flag=True, help="Use ApacheBench as the crowd, and print its reports.")
@click.option("--json", "as_json", is_flag=True, help="Print only the scores, as JSON.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write an HTML report with timelines.")
@click.option(
    "--serve/--no-serve",
    default=None,
    help="Serve a page with buttons until Ctrl-C, or no page. Default: a read-only page while the lab runs.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the page. Default: any free port.")
def command(
    rungs: tuple[str, ...],
    stock: int,
    buyers: int,
    workers: int,
    seconds: float,
    database: str,
    balancer: str | None,
    ab: bool,
    as_json: bool,
    report: Path | None,
    serve: bool | None,
    port: int,
) -> int:
    """Sell limited stock under one lock after another, inject faults, and count what was sold twice.

    Everything is real and runs on this machine: processes, Valkey servers, a database, signals. The exit status is 1 if
    a rung oversold that promises not to.
    """
    if serve and (as_json or report):
        raise click.UsageError("--json and --report need a lab that ends by itself: leave --serve out")
    if report is not None and (report.is_dir() or not os.access(report.absolute().parent, os.W_OK)):
        raise click.UsageError(f"{report} cannot be written")
    try:
        plan = main.Plan(stock, buyers, workers, seconds, database, main.frontend(balancer), ab)
        return main.run(main.Options(plan, rungs, serve, port, as_json, report))
    except LabError as error:
        raise click.UsageError(str(error)) from None
