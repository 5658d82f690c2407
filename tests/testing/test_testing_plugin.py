"""The pytest plugin in a user's test run: in a separate process, found by its entry point."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from handfast.testing.plugin import NO_SERVER

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)
TESTS = [block for block in BLOCKS if "def test_" in block]


def run(*command: str, folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HANDFAST_"))}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env={**clean, **env}, capture_output=True, text=True, timeout=50
    )


def run_tests(folder: Path, *files: str, options: tuple[str, ...] = (), **env: str) -> tuple[str, dict[str, int]]:
    """Run these test files. Returns the output, and how many tests passed, failed and were skipped."""
    (folder / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    for number, text in enumerate(files):
        (folder / f"test_{number}.py").write_text(text)
    done = run("-m", "pytest", "-p", "no:cacheprovider", "-rs", *options, folder=folder, **env)
    said = done.stdout + done.stderr
    last = done.stdout.strip().rpartition("\n")[2]
    return said, {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}


def test_examples_of_docs_pass(tmp_path: Path) -> None:
    assert len(TESTS) == 7
    said, counts = run_tests(tmp_path, *TESTS)
    assert counts == {"passed": 10}, said


def test_example_without_pytest_runs(tmp_path: Path) -> None:
    (script,) = [block for block in BLOCKS if block not in TESTS]
    (tmp_path / "example.py").write_text(script)
    done = run("-W", "error", "example.py", folder=tmp_path)
    assert re.fullmatch(r"one node, token \d{16}\na quorum, [23] votes\n", done.stdout), done.stderr


LEFT_BEHIND = """
import handfast


def held(url, **options):
    with handfast.connect(url, wait=1.0, **options) as client:
        assert client.lock("a").holder() is None
        client.lock("a", renew=False).acquire()


def test_kill(handfast_server):
    held(handfast_server.url)
    handfast_server.kill()


def test_pause(handfast_server):
    held(handfast_server.url)
    handfast_server.pause()


def test_server_answers_after_pause(handfast_server):
    held(handfast_server.url)


def test_kill_and_pause_nodes(handfast_quorum):
    assert len(handfast_quorum) == 5
    held(handfast_quorum.urls)
    for node in handfast_quorum.nodes[:3]:
        node.restart()
    handfast_quorum[3].kill()
    handfast_quorum[4].pause()


def test_all_nodes_vote(handfast_quorum):
    held(handfast_quorum.urls)
    for node in handfast_quorum:
        assert node.command("EXISTS", "handfast:guard") == 1


def test_client_that_is_never_closed(handfast_quorum):
    global client
    client = handfast.connect(handfast_quorum.urls, wait=1.0)
    client.lock("a").acquire()


def test_after_unclosed_client(handfast_quorum):
    held(handfast_quorum.urls)


def test_two_proxies_at_once(handfast_proxy, handfast_server, handfast_quorum):
    near = handfast_proxy()
    far = handfast_proxy(handfast_quorum[0])
    further = handfast_proxy(far.url)
    near.refuse()
    held(further.url)
    assert further.accepted and far.accepted and not near.accepted
"""


def test_each_test_gets_running_empty_servers(tmp_path: Path) -> None:
    said, counts = run_tests(tmp_path, LEFT_BEHIND)
    assert counts == {"passed": LEFT_BEHIND.count("def test_")}, said


def test_each_xdist_worker_has_its_own_servers(tmp_path: Path) -> None:
    text = """
import pytest


@pytest.mark.parametrize("number", range(6))
def test_mine(handfast_server, number):
    assert handfast_server.command("DBSIZE") == 0
    handfast_server.command("SET", "k", number)
    assert handfast_server.command("GET", "k") == b"%d" % number
"""
    said, counts = run_tests(tmp_path, text, options=("-n", "2"))
    assert counts == {"passed": 6}, said


def test_tests_are_skipped_with_reason_without_server(tmp_path: Path) -> None:
    conftest = "from handfast.testing import plugin\nplugin.available = dict\n"
    (tmp_path / "conftest.py").write_text(conftest)
    text = """
def test_one(handfast_server): ...
def test_five(handfast_quorum): ...
def test_proxy(handfast_proxy): handfast_proxy()
def test_none(): ...
"""
    said, counts = run_tests(tmp_path, text)
    assert counts == {"passed": 1, "skipped": 3}, said
    assert NO_SERVER in said


@pytest.mark.parametrize("module", ["handfast", "handfast.aio", "handfast.testing"])
def test_package_does_not_need_pytest(module: str, tmp_path: Path) -> None:
    done = run("-c", f"import sys, {module}; print('pytest' in sys.modules)", folder=tmp_path)
    assert done.stdout == "False\n", done.stderr
