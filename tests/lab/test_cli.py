"""`python -m lab` for a user: error messages, output, and what remains after it ends."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console, RenderableType

from lab.__main__ import main
from lab.ledger import Ledger, Score, score
from lab.load import Tally
from lab.run import Run
from lab.rung import Verdict
from lab.rungs import RUNGS
from lab.rungs.r01_no_lock import NoLock
from lab.terminal import EXPLANATION, Bars, VerdictBar, facts, table
from tests.lab.conftest import Lab
from tests.support.eventually import eventually

SHORT = ("--stock", "20", "--buyers", "6", "--workers", "3", "--seconds", "10", "--no-serve")


def _complaint(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert main([*options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = [line for line in err.splitlines() if line.strip()]
    assert len(lines) == 1, err
    return lines[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--rung", "nope"], "no rung called 'nope'; there are no-lock, mutex"),
        (["--stock", "0"], "'--stock': 0 is not in the range"),
        (["--bogus"], "No such option '--bogus'"),
        (["--seconds", "soon"], "'--seconds': 'soon' is not a valid float"),
        (["--database", "nonsense"], "--database is not a URL"),
        (["--database", "mysql://a/b"], "--database takes postgresql://"),
        (["--report", "/no/such/folder/out.html"], "out.html cannot be written"),
    ],
)
def test_bad_option_prints_one_line_and_exits_with_2(
    capsys: pytest.CaptureFixture[str], options: list[str], says: str
) -> None:
    assert says in _complaint(capsys, *options)


def test_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used for the page" in _complaint(capsys, "--port", str(port))


def test_unreachable_database_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres@127.0.0.1:{nobody.getsockname()[1]}/shop"
        assert "the database cannot be used" in _complaint(capsys, "--database", url, "--no-serve")


@pytest.mark.parametrize("missing", ["aiohttp", "click"])
def test_missing_dependency_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    for name in [name for name in sys.modules if re.match(r"lab$|lab\.(?!__main__)|handfast\.cli\.|" + missing, name)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    said = _complaint(capsys)
    assert missing in said
    assert "pip install --group lab" in said


class _Pictures(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [value for name, value in attrs if name in ("src", "href") and value and not value.startswith("#")]


def test_json_scores_and_html_report(tmp_path: Path, started: list[Lab]) -> None:
    report = tmp_path / "out.html"
    lab = Lab(tmp_path, "--rung", "mutex", "--json", "--report", str(report), *SHORT)
    started.append(lab)
    out, err = lab.process.communicate(timeout=50)
    assert lab.process.returncode == 0, err
    facts = json.loads(out)
    assert facts["settings"]["stock"] == 20
    right, wrong = facts["scenarios"]
    assert (right["scenario"], right["verdict"], right["sold"], right["oversold"]) == ("mutex/one-process", "safe", 20, 0)
    assert not right["overlaps"]
    assert (wrong["scenario"], wrong["verdict"]) == ("mutex/more", "oversold")
    assert wrong["oversold"] == wrong["sold"] + wrong["left"] - 20 > 0
    assert wrong["overlaps"]
    assert set(wrong) >= {"lost", "refused", "stuck", "rate", "p50", "p99", "holders", "stock_line", "marks", "load"}
    pictures = _Pictures()
    pictures.feed(report.read_text())
    assert pictures.seen.count("svg") == 4
    page = report.read_text()
    assert page.count("Served within a certain time (ms)") == 2
    assert '<b>Verdict:</b> <span class="oversold">oversold</span>. <b>Expected:</b> oversold.' in page
    assert all(f"<li>{mark['t']:.2f} s: {escape(mark['text'])}</li>" in page for mark in wrong["marks"])


def _scores(evidence: list[str]) -> list[Score]:
    """A score with large numbers for every scenario."""
    seen = Ledger([100_000], 0.0), Tally(ended=100.0, times=[12.345]), (0, {str(order) for order in range(123_456)})
    return [
        score(f"{rung.name}/{scenario.name}", scenario, *seen, 100.0, evidence)
        for rung in RUNGS
        for scenario in rung.scenarios
    ]


def _printed(show: Callable[[list[Score], Console], RenderableType], scores: list[Score], columns: int) -> str:
    console = Console(width=columns, file=StringIO())
    with console.capture() as printed:
        console.print(show(scores, console))
    out = printed.get()
    assert "…" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= columns
    return out


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_tables_fit_terminal_without_cutting_numbers(columns: int) -> None:
    scores = _scores([])
    out = _printed(table, scores, columns)
    numbers = ["123456", "23456"]
    assert re.findall(r"\d{5,}", out) == [*numbers, *(["12345"] * 2 if columns > 80 else [])] * len(scores)
    assert out.count("BROKEN") == sum(each.broken for each in scores)
    assert ("p99" in out) == (columns > 80)  # large numbers leave no room for it
    assert all(each.scenario in out for each in scores)


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("show", [table, facts])
def test_tables_have_verdict_first_and_mark_handfast(
    columns: int, show: Callable[[list[Score], Console], RenderableType]
) -> None:
    scores = _scores(["o1 (w1) wrote a line that is too long for a narrow terminal", "and one more"])
    out = _printed(show, scores, columns)
    found = re.findall(r"^ *(BROKEN|oversold\??|stuck\??) +(\* )?([a-z-]+)/[a-z-]+", out, re.MULTILINE)
    assert [(name, bool(star)) for _, star, name in found] == [
        (rung.name, rung.handfast) for rung in RUNGS for _ in rung.scenarios
    ]
    if show is facts:
        assert len(re.findall(r"^ +and one more *$", out, re.MULTILINE)) == len(scores)
    assert "handfast" in EXPLANATION
    assert "o1 (w1)" in EXPLANATION


@pytest.mark.parametrize(
    ("verdict", "colour"), [("safe", "green"), ("oversold", "red"), ("stuck", "yellow"), (None, "blue")]
)
def test_bar_has_colour_of_verdict(verdict: Verdict | None, colour: str) -> None:
    console = Console(width=80, file=StringIO(), force_terminal=True, color_system="standard")
    bars = Bars(console, quiet=False)
    run = Run(Mock(), 1, NoLock, NoLock.scenarios[0], 100, 1.0)
    run.score = replace(_scores([])[0], verdict=verdict) if verdict else None
    bars.begin(run)
    bars.update()
    (column,) = [each for each in bars.progress.columns if isinstance(each, VerdictBar)]
    bar = column.render(bars.progress.tasks[-1])
    assert (bar.complete_style, bar.finished_style) == (colour, colour)


def test_unwritable_report_exits_with_2_after_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.html").symlink_to("loop.html")
    assert main(["--rung", "mutex/one-process", "--report", str(tmp_path / "loop.html"), *SHORT]) == 2
    out, err = capsys.readouterr()
    assert "mutex/one-process" in out
    assert "Requests per second:" in out  # a single scenario also shows the load
    assert "lab: the report cannot be written" in err


@pytest.mark.parametrize("option", ["--json", "--workers=3"])
def test_closed_output_ends_lab_quietly(tmp_path: Path, started: list[Lab], option: str) -> None:
    lab = Lab(tmp_path, "--rung", "mutex/one-process", option, *SHORT)
    started.append(lab)
    assert lab.process.stdout is not None
    lab.process.stdout.close()
    assert lab.process.stderr is not None
    with lab.process.stderr:
        said = lab.process.stderr.read()
    assert lab.process.wait(50) == 141
    assert "Traceback" not in said
    assert "BrokenPipe" not in said


def test_broken_promise_exits_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = [replace(scenario, must_be_safe=True, expect="safe") for scenario in NoLock.scenarios]
    monkeypatch.setattr(NoLock, "scenarios", broken)
    assert main(["--rung", "no-lock", *SHORT]) == 1
    out = capsys.readouterr().out
    assert "BROKEN" in out
    assert "Not as expected: no-lock/race (oversold, expected safe)." in " ".join(out.split())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_processes_or_files_are_left_behind(tmp_path: Path, started: list[Lab], number: signal.Signals) -> None:
    lab = Lab(tmp_path, "--rung", "fenced/all-faults", "--workers", "3")
    started.append(lab)
    lab.address()  # everything runs now
    children = lab.children()
    assert len(children) >= 5  # three workers, a balancer, a server
    assert lab.end(number) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    eventually(lambda: not any(_alive(pid) for pid in children), within=20, what="all processes are gone")
    eventually(lambda: not list(tmp_path.iterdir()), within=20, what="no files are left")


def _alive(pid: int) -> bool:
    try:
        return "Z (" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for option in (
        "--rung",
        "--stock",
        "--buyers",
        "--workers",
        "--seconds",
        "--json",
        "--report",
        "--database",
        "--serve",
    ):
        assert option in out
    assert len(RUNGS) == 14
