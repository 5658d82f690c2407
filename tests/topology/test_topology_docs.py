"""docs/topologies.md: every cell of its table is short and leads to tests, and every test that it names exists."""

from __future__ import annotations

import re

from tests.support.named_tests import TESTS, defined_tests, named_tests

TEXT = (TESTS.parent / "docs" / "topologies.md").read_text()
NUMBER = re.compile(r" \[\^(\d+)\]")
NOTE = re.compile(r" \((\w)\)")
NOTHING = "—"
LONGEST = 60
"""Characters of a cell that can be read at a glance."""


def table() -> list[list[str]]:
    lines = TEXT.partition("## Failure by failure")[2].partition("\n## ")[0].splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert (len(rows), {len(row) for row in rows}) == (10, {9})
    return rows


def footnotes() -> dict[str, str]:
    return dict(re.findall(r"^\[\^(\d+)\]: (.+)$", TEXT, re.MULTILINE))


def test_every_named_test_exists() -> None:
    named = named_tests(TEXT)
    assert len(named) > 20
    assert named - defined_tests() == set()


def test_every_footnote_names_a_test_and_is_used() -> None:
    used = set(NUMBER.findall(re.sub(r"^\[\^\d+\]:.*$", "", TEXT, flags=re.MULTILINE)))
    assert used == set(footnotes())
    assert [number for number, text in footnotes().items() if not named_tests(text)] == []


def test_every_cell_is_short_and_has_a_footnote() -> None:
    header, *rows = table()
    for failure, *cells in rows:
        for column, cell in zip(header[1:], cells, strict=True):
            words = NUMBER.sub("", cell)
            where = f"{failure}, {column}: {cell}"
            assert cell == NOTHING or (words and NUMBER.search(cell)), where
            assert len(words) <= LONGEST, where


def test_every_letter_is_explained() -> None:
    explained = re.findall(r"^- \((\w)\) \w", TEXT, re.MULTILINE)
    assert sorted({letter for row in table() for cell in row for letter in NOTE.findall(cell)}) == explained


def test_advice_comes_first() -> None:
    assert re.findall(r"^## (.+)$", TEXT, re.MULTILINE)[:2] == ["Which to choose", "Failure by failure"]
