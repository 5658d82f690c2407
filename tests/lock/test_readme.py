"""The README's examples, copied into a file and run: on an embedded server, on one server, on three."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import handfast
from handfast.testing import Server, Servers

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
TOKEN = re.compile(r"token \d{16}\b")


def run(block: str, folder: Path, url: str | None) -> str:
    script = folder / "example.py"
    script.write_text(block)
    runtime = folder / "run"
    runtime.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PYTHONWARNINGS": "error"}
    env.pop("HANDFAST_URL", None)
    if url is not None:
        env["HANDFAST_URL"] = url
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    if url is not None:
        assert done.stderr == ""
    return done.stdout


def test_readme_has_examples_for_threads_asyncio_waiting_and_bootstrap() -> None:
    assert len(BLOCKS) == 4


@pytest.mark.parametrize("block", BLOCKS[:3], ids=["threads", "asyncio", "waiting"])
def test_examples_run_on_embedded_server(block: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert TOKEN.search(run(block, tmp_path_factory.mktemp("e"), None))


@pytest.mark.parametrize("block", BLOCKS[:3], ids=["threads", "asyncio", "waiting"])
def test_examples_run_on_one_server(block: str, one: Server, tmp_path: Path) -> None:
    assert TOKEN.search(run(block, tmp_path, one.url))


def test_examples_run_on_three_servers(three: Servers, tmp_path: Path) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
    for block in BLOCKS[:2]:
        assert TOKEN.search(run(block, tmp_path, "\n".join(three.urls)))


def test_bootstrap_example_opens_every_node(three: Servers, tmp_path: Path) -> None:
    assert run(BLOCKS[3], tmp_path, " ".join(three.urls)).count("opened") == 3
