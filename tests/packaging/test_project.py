"""What is said in several files is the same in all of them: Pythons, make targets, versions, the changelog's headings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import handfast

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
PROJECT = (ROOT / "pyproject.toml").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def pythons() -> list[str]:
    found = re.search(r"^PYTHONS \?= (.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None
    return found[1].split()


def test_workflow_tests_same_pythons_as_make() -> None:
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text()
    found = re.search(r"^ +python: \[(.*)\]$", workflow, re.MULTILINE)
    assert found is not None
    assert re.findall(r'"([\d.]+)"', found[1]) == pythons()


def test_every_supported_python_is_tested() -> None:
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert promised
    assert set(promised) <= set(pythons())
    assert f'requires-python = ">={pythons()[0]}"' in PROJECT


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", "README.md", ".github/workflows/test.yml"])
def test_every_named_make_target_exists(page: str) -> None:
    named = set(re.findall(r"(?:`|run: |^)make ([a-z][\w.-]*)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_changelog_keeps_its_format() -> None:
    releases = re.findall(r"^## (.*)$", CHANGELOG, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert releases[1].split(" - ")[0] == f"[{handfast.__version__}]"
    sections = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", CHANGELOG, re.MULTILINE)) <= sections
    for release in CHANGELOG.split("\n## ")[1:]:
        used = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert len(used) == len(set(used)), "each section once"
