"""The form of a deliberate bug: see mutants.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Bug", "Change"]

Change = tuple[Callable[..., Any] | str, str, str]
"""A function, or the names of scripts; a piece of its text that occurs once; and what stands there instead."""


class Bug(NamedTuple):
    """A deliberate bug."""

    name: str
    what: str
    invariants: tuple[int, ...]
    """The invariants that may notice it."""
    changes: tuple[Change, ...]
    test: str = ""
    """The test that notices it, where no simulated history can be expected to."""
