"""The HTML report on a phone, in a real browser: nothing but its table is wider than the screen."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="pip install playwright")

from lab.ledger import Ledger, Mark, score
from lab.load import Tally
from lab.report import html
from lab.rungs import LADDER
from tests.lab.browser import chromium, window

WIDTHS = "[document.documentElement.scrollWidth, ...['scrollWidth', 'clientWidth'].map((each) => box[each])]"


def test_the_table_scrolls_in_its_own_box_on_a_phone(tmp_path: Path) -> None:
    ledger = Ledger([100], 0.0, marks=[Mark(0.5, "w1 is paused <SIGSTOP>")])
    facts = ledger, Tally(ended=2.0, times=[0.07]), (100, set[str]()), 2.0, ["o1 was late"]
    scores = [score(f"{rung.name}/{scenario.name}", scenario, *facts) for rung in LADDER for scenario in rung.scenarios]
    (tmp_path / "report.html").write_text(html(scores, {"stock": 100}), encoding="utf-8")
    with chromium() as browser, window(browser, width=380) as page:
        page.goto((tmp_path / "report.html").as_uri())
        whole, table, box = page.evaluate(f"() => {{ const box = document.querySelector('.scroll'); return {WIDTHS} }}")
        assert whole == 380
        assert table > box
        assert page.locator(".marks li").all_inner_texts() == ["0.50 s: w1 is paused <SIGSTOP>"] * len(scores)
        assert page.locator("section pre").count() == len(scores)
