"""`handfast dashboard`, as a process."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from handfast.dashboard import board
from handfast.testing import Server

COMMAND = [sys.executable, "-m", "handfast", "dashboard"]


@contextmanager
def started(*options: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process, and the address that it prints."""
    pipe = subprocess.PIPE
    command, environment = [*COMMAND, "--port", "0", *options], {**os.environ, **env}
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            if process.poll() is None:
                process.kill()


def test_page_is_served_until_ctrl_c(one: Server) -> None:
    with started("--url", one.url) as (process, url):
        assert "<title>handfast dashboard</title>" in httpx.get(url).text
        with httpx.stream("GET", f"{url}api/events") as stream:
            lines = stream.iter_lines()
            while next(lines) != "event: news":
                pass
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_other_address_prints_a_token(one: Server) -> None:
    with started("--url", one.url, "--host", "0.0.0.0") as (_, url):
        address, _, token = url.replace("0.0.0.0", "127.0.0.1").partition("?token=")
        assert len(token) >= 32
        assert httpx.get(address).status_code == 401
        assert httpx.get(address, headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_token_can_be_set(one: Server) -> None:
    with started("--url", one.url, HANDFAST_DASHBOARD_TOKEN="my own token") as (_, url):
        assert url.endswith("?token=my%20own%20token")
        assert httpx.get(url, follow_redirects=False).status_code == 303


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--port", "99999"], "'99999' is not a port from 0 to 65535"),
        (["--host", "192.0.2.1"], "choose another --host or --port"),
        (["--url", "nonsense://x"], "nonsense"),
    ],
)
def test_mistake_is_one_line(one: Server, options: list[str], text: str) -> None:
    env = {**os.environ, "HANDFAST_URL": one.url}
    done = subprocess.run([*COMMAND, *options], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert text in done.stderr


def test_without_the_extra_it_says_what_to_install(one: Server) -> None:
    program = "import sys; sys.modules['uvicorn'] = None; from handfast.cli import main; sys.exit(main(['dashboard']))"
    env = {**os.environ, "HANDFAST_URL": one.url}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1
    assert "pip install 'handfast[dashboard]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


DOCS = Path(__file__).parents[2] / "docs" / "dashboard.md"


@pytest.mark.parametrize("block", re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE))
def test_the_example_runs(block: str, one: Server, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block)
    env = {**os.environ, "HANDFAST_URL": one.url, "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("http://127.0.0.1:")


def test_the_page_explains_every_event() -> None:
    """The events of snapshots, and the events of the doctor."""
    source = (Path(board.__file__)).read_text()
    kinds = set(re.findall(r'_note\("([a-z ]+)"', source)) | {"released", "lost"}
    rows = [line.split("|")[1] for line in DOCS.read_text().splitlines() if line.startswith("| ")]
    explained = {kind.strip() for cell in rows for kind in cell.split(",")}
    assert len(kinds) > 8
    assert kinds <= explained
