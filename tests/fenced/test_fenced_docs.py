"""The examples of docs/fencing.md, copied into files and run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from handfast.testing import Server
from tests.support.postgres import Postgres, postgres

__all__ = ["postgres"]

DOCS = Path(__file__).parents[2] / "docs" / "fencing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
SOLD = r"sold with token \d{16}\n"
OUTPUT = {
    "three-lines-sql": r"\[\(7, 99\)\]\n",
    "three-lines-redis": r"b'99'\n",
    "three-lines-asgi": r"\d{16} 412\n",
    "sqlite3": SOLD,
    "psycopg": SOLD,
    "sqlalchemy": SOLD,
    "redis": r"left over: 98\nrefused: \d{16} < \d{16}\n",
    "redis-async": r"seat 1\n",
    "asgi": r"written with token \d{16}\n412 /stock/7: token 1 is stale, \d{16} was seen; nothing was changed\n",
}

GIVEN = "import handfast\nfrom handfast.fenced import *\n\nclient = handfast.connect()\n"
SHORT = {
    "three-lines-sql": (
        """import sqlite3
db = sqlite3.connect("shop.db")
SqlFence().create(db)
db.execute("CREATE TABLE stock (item INTEGER PRIMARY KEY, left_over INTEGER)")
db.execute("INSERT INTO stock VALUES (7, 100)")
db.commit()
""",
        'print(db.execute("SELECT * FROM stock").fetchall())\ndb.close()\n',
    ),
    "three-lines-redis": (
        'import os, redis\ndb = redis.Redis.from_url(os.environ["HANDFAST_URL"])\n',
        'print(db.get("stock:7:left"))\ndb.close()\n',
    ),
    "three-lines-asgi": (
        """import asyncio, httpx
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def put(request):
    return PlainTextResponse(str(request.scope["handfast.token"]))

app = Starlette(routes=[Route("/stock/{item}", put, methods=["PUT"])])

class shop:
    def put(path, headers):
        async def main():
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as http:
                return await http.put(path, headers=headers)
        return asyncio.run(main())
""",
        'print(answer.text, shop.put("/stock/7", headers={"Fencing-Token": "1"}).status_code)\n',
    ),
}
"""Code before and after the examples that use undefined names."""


def program(kind: str) -> str:
    block = BLOCKS[list(OUTPUT).index(kind)]
    before, after = SHORT.get(kind, ("", ""))
    return f"{GIVEN}{before}{block}{after}client.close()\n" if before else block


def run(block: str, folder: Path, **env: str) -> str:
    script = folder / "example.py"
    script.write_text(block)
    env = {**os.environ, "PYTHONWARNINGS": "error", **env}
    done = subprocess.run([sys.executable, str(script)], cwd=folder, env=env, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_every_fence_has_an_example() -> None:
    assert len(BLOCKS) == len(OUTPUT)
    assert all(len(BLOCKS[list(OUTPUT).index(kind)].splitlines()) == 3 for kind in SHORT)


@pytest.mark.parametrize("kind", [kind for kind in OUTPUT if kind != "psycopg"])
def test_examples_run(kind: str, one: Server, tmp_path: Path) -> None:
    assert re.fullmatch(OUTPUT[kind], run(program(kind), tmp_path, HANDFAST_URL=one.url))


def test_postgresql_example_runs(one: Server, postgres: Postgres, tmp_path: Path) -> None:
    port = str(urlsplit(postgres.url).port)
    said = run(program("psycopg"), tmp_path, HANDFAST_URL=one.url, PGHOST="127.0.0.1", PGPORT=port, PGUSER="postgres")
    assert re.fullmatch(OUTPUT["psycopg"], said)
