"""Durations as people write them, and as they read them."""

from __future__ import annotations

from typing import Final

__all__ = ["duration", "shown"]

UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST: Final = 3650 * 86400.0
"""The system's timers do not count for ever."""


def duration(text: str) -> float:
    """Seconds.

    >>> duration("500ms"), duration("60s"), duration("1.5m"), duration("2h"), duration("10"), duration("0")
    (0.5, 60.0, 90.0, 7200.0, 10.0, 0.0)
    """
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = text[len(number) :] or "s"
    digits = number.replace(".", "", 1)
    if unit not in UNITS or not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is not a duration: write 500ms, 60s, 5m, 1h or plain seconds")
    seconds = float(number) * UNITS[unit]
    if seconds > LONGEST:
        raise ValueError(f"{text!r} is longer than ten years")
    return seconds


def shown(seconds: float | None) -> str:
    """
    >>> [shown(each) for each in (None, 0.0123, 9.96, 61, 3700, 200000)]
    ['-', '12ms', '10.0s', '1m01s', '1h01m', '2d07h']
    """
    if seconds is None:
        return "-"
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"
