"""What README has to say to a new user."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text()
LIBRARIES = {
    "redis-py": "<name>",
    "pottery": "redlock:<name>",
    "python-redis-lock": "lock:<name>",
    "redlock-py": "<name>",
    "aioredlock": "<name>",
    "redsync": "<name>",
    "node-redlock": "<name>",
}
LIMITS = {
    "a C call that keeps the GIL": r"\bGIL\b",
    "SIGTERM": r"\bSIGTERM\b",
    "work in to_thread": r"\bto_thread\b",
    "rolling restarts": r"[Rr]olling restarts?\b[^.]*\bQ\b",
    "ACL rules": r"\bACL\b[^.]*~",
    "eviction": r"\bnoeviction\b",
}


def section(title: str) -> str:
    """A section of README, up to the next of its rank."""
    found = re.search(rf"^(##+) {title}\n(.*?)(?=^\1 |\Z)", README, re.DOTALL | re.MULTILINE)
    return found[2] if found else ""


@pytest.mark.parametrize("library", LIBRARIES)
def test_readme_has_a_row_for_each_library(library: str) -> None:
    """The row has the library's key, the call here that names it, and says for either side what wakes it."""
    rows = [line.split("|")[1:-1] for line in section("Other programs").splitlines() if line.startswith("|")]
    row = [cells for cells in rows if library in cells[0].replace("`", "").split()]
    assert len(row) == 1
    _, key, name_here, our_waiters, their_waiters = (cell.strip() for cell in row[0])
    assert f"`{LIBRARIES[library]}`" in key
    assert f'lock("{LIBRARIES[library]}"' in name_here
    assert our_waiters
    assert their_waiters


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: README does not list the known limits")
def test_readme_lists_known_limits(limit: str) -> None:
    assert re.search(LIMITS[limit], section("Known limits"))
