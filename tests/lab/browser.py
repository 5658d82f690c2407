"""A real browser that checks the page: no errors in the console, no requests to other hosts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Request, sync_playwright

__all__ = ["TIMEOUT_MS", "chromium", "watched", "window"]

TIMEOUT_MS = 30_000
"""Milliseconds for something to appear. Long, because the machine may be busy."""


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
    context.set_default_timeout(TIMEOUT_MS)
    yield context.new_page()
    context.close()


@contextmanager
def watched(page: Page) -> Iterator[Page]:
    """Check at the end that the console has no errors and no request left the origin; then empty the page."""
    errors: list[str] = []
    origins: set[str] = set()

    def on_console(message: ConsoleMessage) -> None:
        # The browser logs answers such as 409, and streams that end. Both are normal here.
        if message.type in ("error", "warning") and not message.text.startswith("Failed to load resource"):
            errors.append(message.text)

    def failed(error: Error) -> None:
        errors.append(str(error))

    def asked(request: Request) -> None:
        if not request.url.startswith("data:"):
            origins.add(urlsplit(request.url).netloc)

    page.on("console", on_console)
    page.on("pageerror", failed)
    page.on("request", asked)
    yield page
    page.remove_listener("console", on_console)
    page.remove_listener("pageerror", failed)
    page.remove_listener("request", asked)
    own = urlsplit(page.url).netloc
    page.evaluate("sessionStorage.clear()")
    page.goto("about:blank")
    assert errors == []
    assert origins == {own}
