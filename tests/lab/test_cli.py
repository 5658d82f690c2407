"""`python -m lab` as a user meets it: what it says when something is wrong, what it prints, what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
import socket
import sys
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from lab.__main__ import main
from lab.ledger import Ledger, score
from lab.load import Tally
from lab.rungs import LADDER
from lab.rungs.r01_no_lock import NoLock
from lab.terminal import table
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
        (["--report", "/no/such/folder/out.html"], "cannot be written to"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], options: list[str], says: str) -> None:
    assert says in _complaint(capsys, *options)


def test_a_port_in_use_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} cannot be used for the page" in _complaint(capsys, "--port", str(port))


def test_a_database_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://postgres@127.0.0.1:{nobody.getsockname()[1]}/shop"
        assert "the database cannot be used" in _complaint(capsys, "--database", url, "--no-serve")


@pytest.mark.parametrize("missing", ["aiohttp", "click"])
def test_a_missing_dependency_is_named(
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


def test_scores_as_json_and_a_report_with_pictures(tmp_path: Path, started: list[Lab]) -> None:
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
    assert "<b>Expected:</b> oversold." in page
    assert all(f"<li>{mark['t']:.2f} s: {escape(mark['text'])}</li>" in page for mark in wrong["marks"])


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_no_number_is_cut_in_a_narrow_terminal(columns: int) -> None:
    facts = Ledger([100_000], 0.0), Tally(ended=100.0, times=[12.345]), (0, {str(order) for order in range(123_456)})
    scores = [
        score(f"{rung.name}/{scenario.name}", scenario, *facts, 100.0, [])
        for rung in LADDER
        for scenario in rung.scenarios
    ]
    console = Console(width=columns, file=StringIO())
    with console.capture() as printed:
        console.print(table(scores, console))
    out = printed.get()
    numbers = ["123456", "23456"]
    assert "…" not in out
    assert max(len(line.rstrip()) for line in out.splitlines()) <= columns
    assert re.findall(r"\d{5,}", out) == [*numbers, *(["12345"] * 2 if columns > 80 else [])] * len(scores)
    assert out.count("BROKEN") == sum(each.broken for each in scores)
    assert ("p99" in out) == (columns > 80)  # with numbers as large as these
    assert all(each.scenario in out for each in scores)


def test_a_report_that_cannot_be_written_after_all_is_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loop.html").symlink_to("loop.html")
    assert main(["--rung", "mutex/one-process", "--report", str(tmp_path / "loop.html"), *SHORT]) == 2
    out, err = capsys.readouterr()
    assert "mutex/one-process" in out
    assert "Requests per second:" in out  # of a single scenario
    assert "lab: the report cannot be written" in err


@pytest.mark.parametrize("option", ["--json", "--workers=3"])
def test_a_closed_output_ends_it_quietly(tmp_path: Path, started: list[Lab], option: str) -> None:
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


def test_a_promise_that_was_broken_is_status_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = [replace(scenario, must_be_safe=True, expect="safe") for scenario in NoLock.scenarios]
    monkeypatch.setattr(NoLock, "scenarios", broken)
    assert main(["--rung", "no-lock", *SHORT]) == 1
    out = capsys.readouterr().out
    assert "BROKEN" in out
    assert "no-lock/race (oversold, not safe)" in " ".join(out.split())


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_behind(tmp_path: Path, started: list[Lab], number: signal.Signals) -> None:
    lab = Lab(tmp_path, "--rung", "fenced/all-faults", "--workers", "3")
    started.append(lab)
    lab.address()  # so everything runs; wherever in the scenario it is struck
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
    assert len(LADDER) == 14
