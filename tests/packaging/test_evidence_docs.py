"""docs/evidence.md: every test that it names exists, and every row about a repaired defect names one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "evidence.md"
NAMED = re.compile(r"`(test_\w+)::(test_\w+)`")
SECTION = "## What a review broke"


def defined() -> set[tuple[str, str]]:
    """Every test there is, by file and name."""
    return {
        (path.stem, name)
        for path in TESTS.glob("*/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }


def rows() -> list[list[str]]:
    section = DOCS.read_text().partition(SECTION)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def test_every_named_test_exists() -> None:
    named = set(NAMED.findall(DOCS.read_text()))
    assert len(named) > 30
    assert named - defined() == set()


def test_every_repaired_defect_names_cause_and_test() -> None:
    assert len(rows()) >= 15
    for broke, *rest in rows():
        assert len(rest) == 2, broke
        remedy, tests = rest
        assert remedy, broke
        assert NAMED.findall(tests), broke
