"""The model of the wait queue is clean, and its checker notices when it is not. The quick part of it is checked with
HANDFAST_LONG=1, all of it by `make spec`."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from spec import check
from tests.support.topologies import LONG_RUN

CHECKER = Path(check.__file__)
SMALLEST = ("1-node-fifo", "2-clients", "3-clients-1-down", "no-stamps", "no-inquire", "yield-forgets-the-claim")
"""Seconds rather than half a minute: without faults, and a mutant of each kind."""
SUMMARY = "State-vector 300 byte, depth reached {depth}, errors: {errors}\n {states} states, stored\n"

needs_spin = pytest.mark.skipif(check.missing_tool() is not None, reason=str(check.missing_tool()))


@needs_spin
@pytest.mark.timeout(600)
def test_model_is_clean_and_its_mutants_are_caught() -> None:
    which = ["--quick"] if LONG_RUN else [f"--only={name}" for name in SMALLEST]
    done = subprocess.run([sys.executable, CHECKER, *which], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.rstrip().endswith("0 wrong")


@needs_spin
@pytest.mark.parametrize(("expected", "said"), [(check.CLEAN, ""), (check.DEADLOCK, " (without the rule: client 4)")])
def test_unexpected_verdict_fails_the_run(
    expected: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mutant = next(mutant for mutant in check.MUTANTS if mutant.name == "holder-yields")
    monkeypatch.setattr(check, "CONFIGURATIONS", ())
    monkeypatch.setattr(check, "MUTANTS", (replace(mutant, expected=expected),))
    assert check.main(["--quick"]) == 1
    assert f"two holders{said}   WRONG, expected: {expected}" in capsys.readouterr().out


@needs_spin
def test_trace_tells_the_counterexample_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--trace", "holder-yields"]) == 0
    told = capsys.readouterr().out
    assert "client 0 holds the lock" in told
    assert "client 1 holds the lock" in told


def test_every_rule_has_a_switch_in_the_model() -> None:
    model = check.MODEL.read_text()
    for mutant in check.MUTANTS:
        switches = [option.partition("=")[0] for option in mutant.options.split()]
        assert all(switch in model for switch in switches), mutant.name


def test_missing_tool_is_a_named_skip(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert check.main(["--quick"]) == 0
    assert capsys.readouterr().out.startswith("SKIPPED: the model of the wait queue is not checked, because spin")


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("pan:1: assertion violated (number<=1) (at depth 22)", check.TWO_HOLDERS),
        ("pan:1: invalid end state (at depth 21)", check.DEADLOCK),
        ("pan:1: non-progress cycle (at depth 27)", check.LIVELOCK),
        ("pan:1: assertion violated (stamp[((0*3)+0)]<=9) (at depth 9)", check.LIVELOCK),
        ("pan:1: block in d_step seq (at depth 22)", "more messages in flight than ROOM"),
    ],
)
def test_verdict_is_read_from_the_output(line: str, verdict: str) -> None:
    outcome = check.read_output(f"{line}\n" + SUMMARY.format(depth=30, errors=1, states=12), 1.5)
    assert outcome == check.Outcome(verdict, 12, 30, 1.5)


def test_clean_needs_a_finished_search() -> None:
    text = SUMMARY.format(depth=30, errors=0, states=12)
    assert check.read_output(text, 0).verdict == check.CLEAN
    assert check.read_output("Warning: Search not completed\n" + text, 0).verdict.startswith("not finished")


@pytest.mark.parametrize("text", ["", SUMMARY.format(depth=30, errors=1, states=12)])
def test_unreadable_output_is_an_error(text: str) -> None:
    with pytest.raises(check.ToolFailedError):
        check.read_output(text, 0)
