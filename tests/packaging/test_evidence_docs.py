"""docs/evidence.md: every test that it names exists, and every row about a repaired defect names one."""

from __future__ import annotations

from tests.support.named_tests import TESTS, defined_tests, named_tests

DOCS = TESTS.parent / "docs" / "evidence.md"
SECTION = "## What a review broke"


def rows() -> list[list[str]]:
    section = DOCS.read_text().partition(SECTION)[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]


def test_every_named_test_exists() -> None:
    named = named_tests(DOCS.read_text())
    assert len(named) > 30
    assert named - defined_tests() == set()


def test_every_repaired_defect_names_cause_and_test() -> None:
    assert len(rows()) >= 15
    for broke, *rest in rows():
        assert len(rest) == 2, broke
        remedy, tests = rest
        assert remedy, broke
        assert named_tests(tests), broke
