"""docs/lab.md and docs/lab.zh.md match the lab: its rungs, its code, its options. Both have the same figures.

    python -m lab --json > run.json
    python -m tests.lab.test_docs run.json      # writes the figures of that run into both tables

The tests then name the sections whose figures (in bold) are not in the table.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.__main__ import main
from lab.environment import Plan
from lab.rungs import RUNGS, scenarios_of
from tests.support.translation import assert_same_structure

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
VERDICTS = {
    "lab.md": {"safe": "safe", "oversold": "oversold", "stuck": "stuck"},
    "lab.zh.md": {"safe": "安全", "oversold": "超卖", "stuck": "卡死"},
}
ROW = re.compile(r"^\| `([a-z-]+/[a-z-]+)` \|(.*)\|$", re.MULTILINE)
RUNG = re.compile(r"(\d+)\. .*`([a-z-]+)`")
NUMBER = re.compile(r"\d+(?:\.\d+)?")
FIGURE = re.compile(rf"\*\*({NUMBER.pattern})\*\*")

both = pytest.mark.parametrize("name", VERDICTS)


def _text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def _sections(name: str) -> list[tuple[str, str]]:
    """Heading and text of every section, in order; the first has no heading."""
    parts = re.split(r"^##+ (.*)$", _text(name), flags=re.MULTILINE)
    return list(zip(["", *parts[1::2]], parts[0::2], strict=True))


def _rung_sections(name: str) -> dict[str, str]:
    found = ((RUNG.search(heading), text) for heading, text in _sections(name))
    return {heading[2]: text for heading, text in found if heading}


def _rows(name: str) -> dict[str, list[str]]:
    """The cells after each scenario's name: sold, oversold, left, lost, refused, stuck, orders/s, verdict."""
    return {scenario: [cell.strip() for cell in cells.split("|")] for scenario, cells in ROW.findall(_text(name))}


@both
def test_rungs_have_sections_in_ladder_order(name: str) -> None:
    headings = [RUNG.search(heading) for heading, _ in _sections(name)]
    sections = [(int(heading[1]), heading[2]) for heading in headings if heading]
    assert sections == [(number, rung.name) for number, rung in enumerate(RUNGS, 1)]


@both
def test_section_links_file_of_its_rung(name: str) -> None:
    sections = _rung_sections(name)
    for rung in RUNGS:
        assert f"rungs/{Path(inspect.getfile(rung)).name})" in sections[rung.name]


@both
def test_links_and_images_exist(name: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)", _text(name))
    assert targets.count("lab.png") == 1
    for target in targets:
        assert (DOCS / target).exists(), target


@both
def test_quoted_code_is_in_linked_file(name: str) -> None:
    quoting = set[str]()
    for heading, text in _sections(name):
        files = [DOCS / target for target in re.findall(r"\]\(([^)]+\.py)\)", text)]
        for block in re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL):
            assert any(_has_lines(path, block) for path in files), f"{heading}: {block}"
            quoting.add(heading)
    assert len(quoting) == len(RUNGS) + 1  # the rungs and the shop


def _has_lines(path: Path, block: str) -> bool:
    """The file has these lines in a row, with any indentation."""
    wanted = [line.strip() for line in block.splitlines()]
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    return any(lines[start : start + len(wanted)] == wanted for start in range(len(lines)))


@both
def test_options_and_rungs_exist(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", _text(name)))
    assert named == known - {"--help"}
    for rung in re.findall(r"--rung ([a-z/-]+)", _text(name)):
        assert scenarios_of(rung)


@both
def test_make_targets_exist(name: str) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"(?:^|`)make ([a-z]+)", _text(name), flags=re.MULTILINE)
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


@both
def test_table_rows_are_complete_and_consistent(name: str) -> None:
    rows = _rows(name)
    scenarios = {f"{rung.name}/{scenario.name}": scenario for rung in RUNGS for scenario in rung.scenarios}
    assert list(rows) == list(scenarios)
    for scenario, (sold, oversold, left, *_, verdict) in rows.items():
        assert verdict == VERDICTS[name][scenarios[scenario].expect], scenario
        assert int(oversold) == max(0, int(sold) + int(left) - Plan().stock), scenario
        assert (int(oversold) > 0) == (scenarios[scenario].expect == "oversold"), scenario


@both
def test_figures_in_text_match_table(name: str) -> None:
    rows = _rows(name)
    for rung, text in _rung_sections(name).items():
        measured = {cell for scenario in rows for cell in rows[scenario] if scenario.startswith(f"{rung}/")}
        figures = set(FIGURE.findall(text))
        assert figures, rung
        assert figures <= measured, rung
    lessons = set(FIGURE.findall(_sections(name)[-1][1]))
    assert lessons == {rows[scenario][-2] for scenario in ("fenced/sale", "segments/sale", "cohort/sale")}


def test_languages_have_same_figures() -> None:
    english, chinese = _rows("lab.md"), _rows("lab.zh.md")
    assert {scenario: cells[:-1] for scenario, cells in english.items()} == {
        scenario: cells[:-1] for scenario, cells in chinese.items()
    }
    for (heading, one), (_, other) in zip(_sections("lab.md"), _sections("lab.zh.md"), strict=True):
        assert sorted(NUMBER.findall(one)) == sorted(NUMBER.findall(other)), heading


def test_languages_have_same_headings_and_code_blocks() -> None:
    assert_same_structure(DOCS / "lab.md", DOCS / "lab.zh.md")


def test_languages_quote_same_output_of_lab() -> None:
    for (heading, one), (_, other) in zip(_sections("lab.md"), _sections("lab.zh.md"), strict=True):
        assert _quoted(one) == _quoted(other), heading


def _quoted(text: str) -> list[str]:
    """The sentences that the lab prints."""
    spans: list[str] = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [" ".join(span.split()) for span in spans if span.count(" ") >= 3]


def _write_figures(facts: dict[str, Any]) -> None:
    for name, words in VERDICTS.items():
        rows = [
            f"| `{each['scenario']}` | {each['sold']} | {each['oversold']} | {each['left']} | {each['lost']} "
            f"| {each['refused']} | {each['stuck']:.2f} | {each['rate']:.0f} | {words[each['verdict']]} |"
            for each in facts["scenarios"]
        ]
        text, written = re.subn(rf"(?:{ROW.pattern}\n)+", "\n".join(rows) + "\n", _text(name), flags=re.MULTILINE)
        assert written == 1, f"{name} has {written} tables"
        (DOCS / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _write_figures(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
