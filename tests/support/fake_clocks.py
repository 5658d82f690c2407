"""Stops the steady clocks of a process, or sets them ahead. A program imports this before handfast.

The wall clock goes on as it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["advance", "stand_still"]

_offsets = {"monotonic": 0.0, "clock_monotonic": 0.0, "clock_boottime": 0.0}
"""By clock: `time.monotonic()`, and the clocks of `time.clock_gettime()`."""
_frozen: dict[str, float] = {}
_real_gettime, _real_monotonic = time.clock_gettime, time.monotonic
_names = {getattr(time, name.upper()): name for name in _offsets if hasattr(time, name.upper())}


def _read(name: str, real: Callable[..., float], *which: int) -> float:
    at = _frozen.get(name)
    return (real(*which) if at is None else at) + _offsets[name]


def _gettime(which: int) -> float:
    name = _names.get(which)
    return _real_gettime(which) if name is None else _read(name, _real_gettime, which)


def _monotonic() -> float:
    return _read("monotonic", _real_monotonic)


_clocks: Any = time
_clocks.clock_gettime, _clocks.monotonic = _gettime, _monotonic
_clocks.monotonic_ns = lambda: int(_monotonic() * 1e9)
_clocks.clock_gettime_ns = lambda which: int(_gettime(which) * 1e9)


def stand_still(seconds: float) -> None:
    """Stop all clocks for so long, as in a paused virtual machine."""
    _frozen["monotonic"] = began = _real_monotonic()
    for which, name in _names.items():
        _frozen[name] = _real_gettime(which)
    time.sleep(seconds)
    stood = _real_monotonic() - began
    for name in _offsets:
        _offsets[name] -= stood
    _frozen.clear()


def advance(seconds: float, *names: str) -> None:
    """Set some clocks ahead, as after a suspend in which the others stood still."""
    for name in names:
        _offsets[name] += seconds
