"""Type checkers see typos, and help() explains every option."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import handfast
import handfast.aio

SOURCE = Path(handfast.__file__).parents[1]
TYPOS = """\
import handfast
import handfast.aio

client = handfast.conect("redis://localhost")  # typo
try:
    handfast.connect().lock("orders").acquire()
except handfast.NotAquired:  # typo
    pass
handfast.aio.conect()  # typo
handfast.connect().lock("orders", tll=5)  # typo
"""
LOCK_OPTIONS = (
    "ttl", "wait", "renew", "fence", "fair", "cohort", "tries", "backoff", "drift", "node_timeout", "max_ttl",
    "max_hold", "prefix", "label", "on_lost", "replicas", "durable",
)  # fmt: skip
CHECKERS = {
    "mypy": ([sys.executable, "-m", "mypy", "--strict", "--config-file="], r":(\d+): error"),
    "basedpyright": ([sys.executable, "-m", "basedpyright"], r":(\d+):\d+ - error"),
}


@pytest.mark.parametrize("checker", CHECKERS)
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: type checkers take any attribute of the package")
def test_type_checkers_see_typos(checker: str, tmp_path: Path) -> None:
    (tmp_path / "typos.py").write_text(TYPOS)
    (tmp_path / "pyrightconfig.json").write_text(f'{{"typeCheckingMode": "standard", "extraPaths": ["{SOURCE}"]}}')
    command, error = CHECKERS[checker]
    env = {**os.environ, "MYPYPATH": str(SOURCE), "MYPY_CACHE_DIR": str(SOURCE.parent / ".mypy_cache" / "typos")}
    done = subprocess.run(
        [*command, "typos.py"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    found = {int(line) for line in re.findall(error, done.stdout)}
    wanted = {number for number, line in enumerate(TYPOS.splitlines(), 1) if "# typo" in line}
    assert found == wanted, done.stdout + done.stderr


@pytest.mark.parametrize("name", ["Event", "Holder"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: the types of two results are not exported")
def test_types_of_results_are_exported(name: str, client: handfast.Client) -> None:
    assert name in handfast.__all__
    assert inspect.isclass(getattr(handfast, name))


@pytest.mark.parametrize("facade", [handfast, handfast.aio], ids=["threads", "asyncio"])
@pytest.mark.parametrize("method", ["lock", "rlock", "locked", "connect", "from_client"])
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: help() does not explain the options")
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
