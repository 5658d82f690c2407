"""Waits until several servers agree."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from ..embedded.resp import ReplyError

__all__ = ["until_nothing_is_missing"]

STEP: Final = 0.05


def until_nothing_is_missing(missing: Callable[[], str], within: float, whose: str) -> None:
    """Call `missing` until it returns "". A server that does not answer yet counts as missing."""
    deadline = time.monotonic() + within
    while what := _ask(missing):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{whose} not ready within {within:g} s: {what}")
        time.sleep(STEP)


def _ask(missing: Callable[[], str]) -> str:
    try:
        return missing()
    except (OSError, ReplyError) as error:
        return f"an answer ({error})"
