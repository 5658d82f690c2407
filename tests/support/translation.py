"""Compares a page with its translation: both need the same headings, by number and level, and the same code blocks."""

from __future__ import annotations

import re
from itertools import zip_longest
from pathlib import Path

__all__ = ["assert_same_structure"]

BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^(#+) (.*)$", re.MULTILINE)


def assert_same_structure(page: Path, translation: Path) -> None:
    """Fails with a message that says what to change in the translation."""
    text, translated = page.read_text(encoding="utf-8"), translation.read_text(encoding="utf-8")
    headings, others = (HEADING.findall(BLOCK.sub("", each)) for each in (text, translated))
    for here, there in zip_longest(headings, others, fillvalue=("", "nothing")):
        assert here[0] == there[0], (
            f"{page.name} has the heading {' '.join(here)!r} where {translation.name} has {' '.join(there)!r}. "
            f"Write the same sections in both files, in the same order and with the same heading levels; "
            f"translate a new section of {page.name} into {translation.name}."
        )
    for block, other in zip_longest(BLOCK.findall(text), BLOCK.findall(translated), fillvalue="nothing"):
        assert block == other, (
            f"{page.name} has the code block\n{block}\nwhere {translation.name} has\n{other}\n"
            f"Copy the code block of {page.name}, with its comments, to the same place in {translation.name}."
        )
