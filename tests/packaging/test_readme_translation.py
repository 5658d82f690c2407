"""README.zh.md is the whole README in Chinese. A new section of README.md needs a translation there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.translation import assert_same_structure

ROOT = Path(__file__).parents[2]
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"


def test_chinese_readme_has_same_headings_and_code_blocks() -> None:
    assert_same_structure(ENGLISH, CHINESE)


def test_readmes_name_each_other() -> None:
    assert "`README.zh.md`" in ENGLISH.read_text(encoding="utf-8")  # no link: a package index has no other file
    assert "[English](README.md)" in CHINESE.read_text(encoding="utf-8")


def test_readmes_name_same_code() -> None:
    """Options, calls and files in backticks are the same, in whatever order a language needs."""
    english, chinese = (_names(path) for path in (ENGLISH, CHINESE))
    assert english - chinese == set(), f"{CHINESE.name} does not mention these names of {ENGLISH.name}"
    assert chinese - english == set(), f"{CHINESE.name} mentions names that {ENGLISH.name} does not have"


def _names(path: Path) -> set[str]:
    text = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {" ".join(name.split()) for name in re.findall(r"`([^`]+)`", text)} - {CHINESE.name}


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ("# One\n\n```sh\nls\n```\n", "has the heading '## Two' where other.md has ' nothing'"),
        ("# 一\n\n```sh\nls\n```\n\n### 二\n", "has the heading '## Two' where other.md has '### 二'"),
        ("# 一\n\n```sh\nls -l\n```\n\n## 二\n", "Copy the code block of page.md"),
    ],
)
def test_difference_is_reported_with_what_to_do(tmp_path: Path, other: str, message: str) -> None:
    (tmp_path / "page.md").write_text("# One\n\n```sh\nls\n```\n\n## Two\n", encoding="utf-8")
    (tmp_path / "other.md").write_text(other, encoding="utf-8")
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_same_structure(tmp_path / "page.md", tmp_path / "other.md")
