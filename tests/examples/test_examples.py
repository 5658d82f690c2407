"""Every program in examples/ runs as it is, on a real server, without a warning."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import handfast
from handfast.testing import Server, Servers

EXAMPLES = Path(__file__).parents[2] / "examples"
PUBLIC = {"handfast", "handfast.aio", "handfast.fenced"}
"""The modules that a program may import."""


def environment(url: str) -> dict[str, str]:
    return {**os.environ, "HANDFAST_URL": url, "PYTHONWARNINGS": "error"}


def run(name: str, url: str, *args: object, status: int = 0, logged: str = "") -> str:
    """The output of a program. It must end with that status, and write nothing but `logged` lines to standard error."""
    command = [sys.executable, str(EXAMPLES / name), *map(str, args)]
    ended = subprocess.run(command, env=environment(url), capture_output=True, text=True, timeout=40)
    unexpected = [line for line in ended.stderr.splitlines() if not logged or logged not in line]
    assert (ended.returncode, unexpected) == (status, [])
    return ended.stdout


def test_cron_job_runs_once_a_day(one: Server, tmp_path: Path) -> None:
    database = tmp_path / "reports.db"
    assert run("cron_job.py", one.url, database) == "report written\n"
    assert run("cron_job.py", one.url, database) == "nothing to do: the report is there\n"


def test_cron_job_leaves_the_work_to_the_host_that_holds_the_lock(
    one: Server, client: handfast.Client, tmp_path: Path
) -> None:
    with client.lock("daily-report"):
        assert run("cron_job.py", one.url, tmp_path / "reports.db") == "another host is writing the report\n"
    assert not (tmp_path / "reports.db").exists()


def test_starlette_endpoint_answers_and_refuses(one: Server) -> None:
    assert run("starlette_endpoint.py", one.url) == "200 paid: True\n409 this order is being paid\n"


def test_worker_pool_loses_no_update(one: Server) -> None:
    assert run("worker_pool.py", one.url) == "{'ann': 14, 'bob': 13, 'cleo': 13} in total 40\n"


def test_flash_sale_sells_what_there_is_and_refuses_a_late_write(one: Server, tmp_path: Path) -> None:
    said = run("flash_sale.py", one.url, tmp_path / "shop.db")
    assert said == "sold 10 of 10\nthe late write was refused\n"


def test_several_names_keep_the_total(one: Server) -> None:
    assert run("several_names.py", one.url) == "60 orders, all handled; the total is 300\n"


def test_quorum_opens_new_servers_and_holds_with_a_majority(five: Servers) -> None:
    url = " ".join(five.urls)
    closed = run("quorum.py", url, status=1, logged="is in quarantine")
    assert closed.startswith("only 0 of 5 nodes granted the lock\n")
    assert run("quorum.py", url, "open").count("opened") == 5
    for server in five.nodes[:2]:
        server.kill()
    assert run("quorum.py", url, logged="is down") == "held with 3 votes\n"


def test_long_job_stops_when_no_server_replies() -> None:
    with Server() as server:
        command = [sys.executable, str(EXAMPLES / "stop_on_loss.py")]
        job = subprocess.Popen(command, env=environment(server.url), stdout=subprocess.PIPE, text=True)
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "step 0\n"
            server.pause()
            assert job.stdout.read().endswith("stopped: the lease is lost\n")
            assert job.wait(10) == 3
        finally:
            job.kill()
            job.communicate()


def test_decorated_functions_run_one_at_a_time(one: Server) -> None:
    reports, mails = run("decorator.py", one.url).splitlines()
    assert reports == "6 reports, at most 1 at a time for each user"
    assert mails == "['sent to ann', 'sent to ann', 'sent to bob']"


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.py")))
def test_each_example_is_in_the_list_and_uses_public_names_only(name: str) -> None:
    assert f"| `{name}` |" in (EXAMPLES / "README.md").read_text()
    assert f'"{name}"' in Path(__file__).read_text(), "and has a test"
    modules: set[str] = set()
    for node in ast.walk(ast.parse((EXAMPLES / name).read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
        elif isinstance(node, ast.Attribute):
            assert not node.attr.startswith("_")
    assert {module for module in modules if module.startswith("handfast")} <= PUBLIC
