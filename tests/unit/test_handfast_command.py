"""The `handfast` command: help and version, with click and without it."""

from __future__ import annotations

import sys
from importlib.metadata import version

import pytest

from handfast.cli import main


@pytest.fixture(params=["with click", "without click"])
def click(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param == "without click":
        monkeypatch.setitem(sys.modules, "click", None)
    return bool(request.param == "with click")


@pytest.mark.parametrize("args", [[], ["--help"]])
def test_help_needs_no_extra(capsys: pytest.CaptureFixture[str], click: bool, args: list[str]) -> None:
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: handfast [")
    assert "COMMAND [ARGS]..." in out.splitlines()[0]
    assert ("pip install 'handfast[cli]'" in out) == (not click)
    assert err == ""


def test_version_needs_no_extra(capsys: pytest.CaptureFixture[str], click: bool) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"handfast, version {version('handfast')}\n"


def test_unknown_command_is_one_line_and_status_2(capsys: pytest.CaptureFixture[str], click: bool) -> None:
    assert main(["nonsense"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert ("No such command 'nonsense'" if click else "pip install 'handfast[cli]'") in err
