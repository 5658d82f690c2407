"""Makes the README's picture of the page from a real run: python -m tests.lab.screenshot docs/lab.png"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from tests.lab.browser import chromium, window
from tests.lab.conftest import Lab

WITHIN = 240_000
"""Milliseconds for the whole ladder."""
LAST = "redlock"
"""Run once more at the end, so that its timeline is at the top of the page."""


def shoot(path: str, scheme: str = "light") -> None:
    with tempfile.TemporaryDirectory() as tmp, chromium() as browser, window(browser, scheme=scheme) as page:
        lab = Lab(Path(tmp), "--serve", "--rung", "all", "--rung", LAST)
        try:
            page.goto(lab.address())
            missing = page.locator('.ladder .chip[data-verdict="none"]')
            expect(missing).to_have_count(0, timeout=WITHIN)
            expect(page.locator(f'[data-rung="{LAST}"] tr[aria-current]')).to_have_count(1, timeout=WITHIN)
            expect(page.locator(".ladder tr[aria-current]")).to_have_count(0, timeout=WITHIN)
            expect(page.locator('.nodes [data-state="up"]')).to_have_count(5)
            page.screenshot(path=path, full_page=True, animations="disabled")
        finally:
            lab.end(signal.SIGINT)


if __name__ == "__main__":
    shoot(*sys.argv[1:3])
