"""The types of results are exported, and help() explains every option. What type checkers see: tests/typing."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import handfast
import handfast.aio

LOCK_OPTIONS = (
    "ttl", "wait", "renew", "fence", "fair", "cohort", "tries", "backoff", "drift", "node_timeout", "max_ttl",
    "max_hold", "prefix", "label", "on_lost", "replicas", "durable",
)  # fmt: skip


@pytest.mark.parametrize("name", ["Event", "Holder"])
def test_types_of_results_are_exported(name: str) -> None:
    assert name in handfast.__all__
    assert inspect.isclass(getattr(handfast, name))


@pytest.mark.parametrize("facade", [handfast, handfast.aio], ids=["threads", "asyncio"])
@pytest.mark.parametrize("method", ["lock", "rlock", "locked", "connect", "from_client"])
def test_docstring_explains_every_option(facade: Any, method: str) -> None:
    """Each option begins a line of the docstring, with its explanation behind a colon, on lock() and on connect(). The
    other functions explain theirs in the same way, or say where to read on."""
    where = getattr(facade if method in ("connect", "from_client") else facade.Client, method)
    doc = inspect.getdoc(where) or ""
    if method not in ("lock", "connect") and re.search(r"[Oo]ptions?\b.*\b(lock|connect)\(\)", doc):
        return
    options = (*LOCK_OPTIONS, *(["guard"] if method in ("connect", "from_client") else ["owner"]))
    missing = [option for option in options if not re.search(rf"^\s*{option}: \w", doc, re.MULTILINE)]
    assert not missing
