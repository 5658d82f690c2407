"""The page with the real lab: the timeline shows what the buttons do to processes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("playwright", reason="pip install playwright")

from playwright.sync_api import Page, expect

from tests.lab.browser import TIMEOUT_MS, chromium, watched, window
from tests.lab.conftest import Lab

expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture
def page() -> Iterator[Page]:
    with chromium() as browser, window(browser) as page, watched(page):
        yield page


def test_run_inject_and_stop_on_real_lab(page: Page, started: list[Lab], tmp_path: Path) -> None:
    few = ("--stock", "30", "--buyers", "8", "--workers", "3", "--balancer", "built-in")
    lab = Lab(tmp_path, "--serve", *few)
    started.append(lab)
    page.goto(lab.address())
    row, panel = page.locator('tr[data-scenario="lua/slow"]'), page.locator("#panel")

    page.get_by_role("button", name=re.compile("^Run rung 7")).click()
    expect(row).to_have_attribute("aria-current", "true")
    expect(row.locator(".chip")).to_have_text("✕ oversold")
    expect(row.locator(".oversold")).to_have_text(re.compile(r"^[1-9]"))
    expect(panel.locator("svg .bar.overlap")).to_have_attribute("d", re.compile("^M"))
    expect(panel.locator("svg .up")).to_have_attribute("d", re.compile("^M"))

    page.locator('[data-rung="lua"] .opener').click()
    expect(page.locator("#rung-lua .evidence li")).not_to_have_count(0)
    expect(page.locator("#rung-lua pre")).to_contain_text("class Lua(Rung)")
    page.locator("#rung-lua").get_by_role("button", name="Free sale").click()
    expect(panel).to_contain_text("a free sale")
    for button, seen in (("Pause holder", "is paused"), ("Resume", "resumes"), ("Kill holder", "is killed")):
        page.get_by_role("button", name=button).click()
        expect(panel.locator(".marks")).to_contain_text(seen)
    expect(panel.locator("svg .killed")).to_have_attribute("d", re.compile("^M"))
    page.get_by_role("button", name="Stop the run").click()
    expect(row).not_to_have_attribute("aria-current", "true")
    expect(panel.locator(".kicker")).to_have_text("Stopped")
    expect(panel.locator(".marks")).to_contain_text("the viewer stops the sale")
    expect(panel.locator("svg .killed")).to_have_attribute("d", re.compile("^M"))

    lab.end(signal.SIGINT)
    expect(page.locator("#connection")).to_contain_text("The lab has ended")
    assert page.locator("[data-post]:enabled").count() == 0
