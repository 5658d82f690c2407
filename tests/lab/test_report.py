"""The HTML report on a phone, in a real browser: an introduction, and only its table is wider than a phone's screen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="pip install playwright")

from lab.ledger import Ledger, Mark, score
from lab.load import Tally
from lab.report import html
from lab.rungs import RUNGS
from tests.lab.browser import chromium, window

HANDFAST = {"guarded", "fenced", "segments", "cohort"}
WIDTHS = "[document.documentElement.scrollWidth, ...['scrollWidth', 'clientWidth'].map((each) => box[each])]"


def test_report_table_scrolls_in_its_box_on_phone(tmp_path: Path) -> None:
    ledger = Ledger([100], 0.0, marks=[Mark(0.5, "w1 is paused <SIGSTOP>")])
    facts = ledger, Tally(ended=2.0, times=[0.07]), (100, set[str]()), 2.0, ["o1 was late"]
    scores = [score(f"{rung.name}/{scenario.name}", scenario, *facts) for rung in RUNGS for scenario in rung.scenarios]
    (tmp_path / "report.html").write_text(html(scores, {"stock": 100}), encoding="utf-8")
    with chromium() as browser, window(browser, width=380) as page:
        page.goto((tmp_path / "report.html").as_uri())
        whole, table, box = page.evaluate(f"() => {{ const box = document.querySelector('.scroll'); return {WIDTHS} }}")
        assert whole == 380
        assert table > box
        assert page.locator(".marks li").all_inner_texts() == ["0.50 s: w1 is paused <SIGSTOP>"] * len(scores)
        assert page.locator("section pre").count() == len(scores)
        introduction = page.locator("h1 + p, h1 + p + ul").all_inner_texts()
        for word in ("100 pieces", "safe", "oversold", "stuck", "o1 (w1)", "handfast"):
            assert word in " ".join(introduction)
        ours = page.locator("tr:has(.ours) a").all_inner_texts()
        assert ours == [each.scenario for each in scores if each.scenario.split("/")[0] in HANDFAST]
