"""What type checkers see of the public API: typos are errors, right use is none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import handfast

HERE = Path(__file__).parent
SOURCE = Path(handfast.__file__).parents[1]
CACHE = HERE.parents[1] / ".mypy_cache" / "public_api"
"""Kept between runs: without it mypy reads the whole package each time, which takes ten seconds."""
FILES = ("typos.py", "usage.py")
CHECKERS = {
    "mypy": ([sys.executable, "-m", "mypy", "--strict", "--config-file="], r"(?m)^(\w+\.py):(\d+): error"),
    "basedpyright": (
        [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable],
        r"(\w+\.py):(\d+):\d+ - error",
    ),
}


def marked(file: str) -> set[tuple[str, int]]:
    """The lines of a file that are meant to be wrong."""
    lines = (HERE / file).read_text().splitlines()
    return {(file, number) for number, line in enumerate(lines, 1) if line.endswith("# wrong")}


@pytest.mark.parametrize("checker", CHECKERS)
def test_type_checker_finds_typos_and_nothing_else(checker: str, tmp_path: Path) -> None:
    for file in FILES:
        shutil.copy(HERE / file, tmp_path)
    # basedpyright has no option for the path, and must not find another copy of the package.
    settings = {"typeCheckingMode": "standard", "extraPaths": [str(SOURCE)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command, pattern = CHECKERS[checker]
    env = {**os.environ, "MYPYPATH": str(SOURCE), "MYPY_CACHE_DIR": str(CACHE)}
    done = subprocess.run(
        [*command, *FILES], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False
    )
    found = {(file, int(line)) for file, line in re.findall(pattern, done.stdout)}
    wanted = marked("typos.py")
    assert len(wanted) >= 8
    assert found == wanted, done.stdout + done.stderr
