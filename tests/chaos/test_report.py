"""The tables that a run writes into the docs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos import report
from tests.chaos.environment import OURS
from tests.chaos.scenario import EXCLUSION, Outcome


def outcome(lock: str, scenario: str = "paused", **found: int) -> Outcome:
    nothing: dict[str, Any] = {"fenced": 0, "refused": 0, "stuck": [], "errors": 0}
    return Outcome(scenario, lock, EXCLUSION, {"SIGSTOP": 2}, 9, found, unavailable=1.26, seconds=1.0, **nothing)


def test_table_has_column_for_each_lock_and_sums() -> None:
    some = [outcome(OURS), outcome("other", overlap=2)]
    some += [outcome(OURS, "killed"), outcome("other", "killed", **{"late write": 1})]
    rows = report.peers_table(some).splitlines()
    assert rows[0] == "| scenario | handfast | other |"
    assert rows[2:4] == ["| paused | 1.3 s | 2 overlaps, 1.3 s |", "| killed | 1.3 s | 1 lost, 1.3 s |"]
    assert "| **overlaps** | 0 | 2 |" in rows
    assert "| **lost updates, tokens used** | 0 | has none |" in rows


def test_insert_replaces_only_its_own_section(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- chaos -->\nold\n<!-- /chaos -->\nb\n<!-- peers -->\nkept\n<!-- /peers -->\n")
    report.insert(page, "chaos", "new")
    assert page.read_text() == "a\n<!-- chaos -->\nnew\n<!-- /chaos -->\nb\n<!-- peers -->\nkept\n<!-- /peers -->\n"
    with pytest.raises(ValueError, match="no place for simulator"):
        report.insert(page, "simulator", "new")


def test_violation_is_in_last_line() -> None:
    bad = outcome(OURS)
    bad.bad = ["overlap"]
    assert "FAILED: paused" in report.summary([bad, outcome("other")], 1.0)
    assert "nothing that was promised was broken" in report.summary([outcome(OURS)], 1.0)
