"""`python -m lab`: the flash sale, from no lock at all to a lock whose token the database checks."""

from __future__ import annotations

import os
from pathlib import Path

import click

from lab import LabError, main
from lab.closed_pipe import Command


@click.command("lab", cls=Command)
@click.option("--rung", "rungs", multiple=True, metavar="NAME", help="Only this rung, or rung/scenario; can be repeated.")
@click.option("--stock", type=click.IntRange(2, 100_000), default=100, show_default=True, help="Pieces for sale.")
@click.option("--buyers", type=click.IntRange(1, 256), default=16, show_default=True, help="Buyers at once.")
@click.option("--workers", type=click.IntRange(3, 16), default=4, show_default=True, help="Processes of the shop.")
@click.option("--seconds", type=click.FloatRange(1, 600), default=4.0, show_default=True, help="Longest time of a sale.")
@click.option("--database", default="", metavar="URL", help="postgresql://…; without it SQLite in a temporary file.")
@click.option(
    "--balancer", type=click.Choice(["nginx", "built-in"]), help="In front of the workers; nginx where it is installed."
)
@click.option("--ab", is_flag=True, help="Have ApacheBench make the crowd; its reports are printed.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON, and nothing else.")
@click.option("--report", type=click.Path(path_type=Path), metavar="FILE", help="Write an HTML report with pictures.")
@click.option(
    "--serve/--no-serve",
    default=None,
    help="Serve the page, with buttons, until Ctrl-C; or no page at all. By default a page to look at while it runs.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Of the page; any free one by default.")
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
    """Sell limited stock under every kind of lock, while things go wrong, and count what was sold twice.

    Everything is real and runs on this machine: processes, Valkey servers, a database, signals. The exit status is 1 if
    something oversold that must not.
    """
    if serve and (as_json or report):
        raise click.UsageError("--json and --report are for a lab that comes to an end: not with --serve")
    if report is not None and (report.is_dir() or not os.access(report.absolute().parent, os.W_OK)):
        raise click.UsageError(f"{report}: that cannot be written to")
    try:
        plan = main.Plan(stock, buyers, workers, seconds, database, main.frontend(balancer), ab)
        return main.run(main.Options(plan, rungs, serve, port, as_json, report))
    except LabError as error:
        raise click.UsageError(str(error)) from None
