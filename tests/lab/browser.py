"""A real browser that notes what a page must not do: complain in the console, or ask elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

__all__ = ["PATIENCE", "chromium", "watched", "window"]

PATIENCE = 30_000
"""Milliseconds for something to appear: a busy machine is not a broken page."""


@contextmanager
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("no chromium on this machine")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def window(browser: Browser, width: int = 1280, height: int = 900, scheme: str = "light") -> Iterator[Page]:
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if scheme == "dark" else "light"
    )
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@contextmanager
def watched(page: Page) -> Iterator[Page]:
    """At the end: nothing was wrong on the page, no request left its origin; and it is empty again."""
    complaints: list[str] = []
    origins: set[str] = set()

    def heard(message: ConsoleMessage) -> None:
        # The browser itself notes answers such as 409, and streams that end: the lab's doing, and part of the play.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            complaints.append(message.text)

    def failed(error: Error) -> None:
        complaints.append(str(error))

    def asked(request: Request) -> None:
        if not request.url.startswith("data:"):
            origins.add(urlsplit(request.url).netloc)

    page.on("console", heard)
    page.on("pageerror", failed)
    page.on("request", asked)
    yield page
    page.remove_listener("console", heard)
    page.remove_listener("pageerror", failed)
    page.remove_listener("request", asked)
    own = urlsplit(page.url).netloc
    page.evaluate("sessionStorage.clear()")
    page.goto("about:blank")
    assert complaints == []
    assert origins == {own}
