"""The sections of README for a new user."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import handfast
from handfast.testing import Server
from tests.support.eventually import eventually, renewal_of

README = (Path(__file__).parents[2] / "README.md").read_text()
LIBRARIES = {
    "redis-py": "<name>",
    "pottery": "redlock:<name>",
    "python-redis-lock": "lock:<name>",
    "redlock-py": "<name>",
    "aioredlock": "<name>",
    "redsync": "<name>",
    "node-redlock": "<name>",
}
LIMITS = {
    "a C call that keeps the GIL": r"\bGIL\b",
    "SIGTERM": r"\bSIGTERM\b",
    "work in to_thread": r"\bto_thread\b",
    "rolling restarts": r"[Rr]olling restarts?\b[^.]*\bQ\b",
    "ACL rules": r"\bACL\b[^.]*~",
    "eviction": r"\bnoeviction\b",
}


def section(title: str) -> str:
    """A section of README, up to the next of its level."""
    found = re.search(rf"^(##+) {title}\n(.*?)(?=^\1 |\Z)", README, re.DOTALL | re.MULTILINE)
    return found[2] if found else ""


@pytest.mark.parametrize("library", LIBRARIES)
def test_readme_has_a_row_for_each_library(library: str) -> None:
    """The row has the library's key, the call here that names it, and says for either side what wakes it."""
    rows = [line.split("|")[1:-1] for line in section("Other programs").splitlines() if line.startswith("|")]
    row = [cells for cells in rows if library in cells[0].replace("`", "").split()]
    assert len(row) == 1
    _, key, name_here, our_waiters, their_waiters = (cell.strip() for cell in row[0])
    assert f"`{LIBRARIES[library]}`" in key
    assert f'lock("{LIBRARIES[library]}"' in name_here
    assert our_waiters
    assert their_waiters


def test_rules_of_the_acl_are_enough_to_hold_wait_and_renew(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    """And no refusal causes a warning."""
    line = next(line for line in section("Known limits").split("\n* ") if "ACL" in line)
    rules = re.findall(r"`([~&+][^`]+)`", line)
    assert "~handfast:*" in rules
    one.command("ACL", "SETUSER", "app", "reset", "on", ">secret", *rules)
    try:
        url = one.url.replace("redis://", "redis://app:secret@")
        with handfast.connect(url, ttl=0.3) as client, ThreadPoolExecutor(1) as pool:
            lease = client.lock("orders").acquire()
            waiting = pool.submit(client.lock("orders", wait=10).acquire)
            eventually(lambda: client.lock("orders").waiters())
            eventually(renewal_of(lease))
            lease.release()
            waiting.result(10).release()
            with client.lock(["orders", "invoices"]), client.lock("stock", owner="job-42"):
                pass
    finally:
        one.command("ACL", "DELUSER", "app")
    assert [record.getMessage() for record in caplog.records] == []


@pytest.mark.parametrize("limit", LIMITS)
def test_readme_lists_known_limits(limit: str) -> None:
    assert re.search(LIMITS[limit], section("Known limits"))
