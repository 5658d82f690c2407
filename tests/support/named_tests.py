"""The tests that a page of docs names, and all tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["TESTS", "defined_tests", "named_tests"]

TESTS = Path(__file__).parents[1]


def named_tests(text: str) -> set[tuple[str, str]]:
    """Tests in a text, written as `file::name`."""
    return set(re.findall(r"`(test_\w+)::(test_\w+)`", text))


def defined_tests() -> set[tuple[str, str]]:
    """All tests, by file and name."""
    return {
        (path.stem, name)
        for path in TESTS.glob("*/test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
    }
