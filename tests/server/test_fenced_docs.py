"""The examples of docs/fencing.md, copied into files and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.postgres import Postgres, postgres

from handfast.testing import Server

__all__ = ["postgres"]

DOCS = Path(__file__).parents[2] / "docs" / "fencing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
SOLD = r"sold with token 17\d+\n"
SAID = {
    "sqlite3": SOLD,
    "psycopg": SOLD,
    "sqlalchemy": SOLD,
    "redis": r"left over: 98\nrefused: 17\d+ < 17\d+\n",
    "redis-async": r"seat 1\n",
    "asgi": r"written with token 17\d+\n412 /stock/7: token 1 is stale, 17\d+ was seen; nothing was changed\n",
}


def run(block: str, folder: Path, **env: str) -> str:
    script = folder / "example.py"
    script.write_text(block)
    env = {**os.environ, "PYTHONWARNINGS": "error", **env}
    done = subprocess.run([sys.executable, str(script)], cwd=folder, env=env, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_there_is_an_example_for_everything() -> None:
    assert len(BLOCKS) == len(SAID)


@pytest.mark.parametrize("kind", [kind for kind in SAID if kind != "psycopg"])
def test_the_examples_run(kind: str, one: Server, tmp_path: Path) -> None:
    block = BLOCKS[list(SAID).index(kind)]
    assert re.fullmatch(SAID[kind], run(block, tmp_path, HANDFAST_URL=one.url))


def test_the_example_for_postgresql_runs(one: Server, postgres: Postgres, tmp_path: Path) -> None:
    port = str(urlsplit(postgres.url).port)
    said = run(BLOCKS[1], tmp_path, HANDFAST_URL=one.url, PGHOST="127.0.0.1", PGPORT=port, PGUSER="postgres")
    assert re.fullmatch(SAID["psycopg"], said)
