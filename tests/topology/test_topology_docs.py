"""docs/topologies.md: every test that it names exists, and every cell of its table names one."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
DOCS = TESTS.parent / "docs" / "topologies.md"
NAMED = re.compile(r"`(test_\w+)::(test_\w+)`")
NOTHING = "—"


def defined() -> set[tuple[str, str]]:
    """Every test there is, by file and name."""
    return {
        (path.stem, name)
        for path in TESTS.glob("*/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }


def table() -> list[list[str]]:
    lines = [line for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_every_test_that_is_named_exists() -> None:
    named = set(NAMED.findall(DOCS.read_text()))
    assert len(named) > 20
    assert named - defined() == set()


def test_every_cell_says_what_happens_and_names_the_test_that_shows_it() -> None:
    header, *rows = table()
    assert (len(header), len(rows)) == (9, 9)
    for failure, *cells in rows:
        assert len(cells) == 8, failure
        for column, cell in zip(header[1:], cells, strict=True):
            words, _, tests = cell.partition("<br>")
            assert cell == NOTHING or (words and NAMED.findall(tests)), f"{failure}, {column}: {cell}"
