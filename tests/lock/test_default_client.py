"""`handfast.lock("name")` in a script: a client of its own, made on first use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from handfast.testing import Server


def run(script: str, url: str | None, runtime: Path) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own, in which warnings are errors."""
    runtime.mkdir(mode=0o700, exist_ok=True)
    env = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "PYTHONWARNINGS": "error"}
    env.pop("HANDFAST_URL", None)
    if url is not None:
        env["HANDFAST_URL"] = url
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        print(done.stderr)
    done.check_returncode()
    return done


@pytest.fixture
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: a unix socket goes there."""
    return tmp_path_factory.mktemp("r")


THREADS = """
import handfast
with handfast.lock("orders", ttl=5, wait=1) as lease:
    assert type(lease) is handfast.Lease
    assert handfast.lock("orders").try_acquire() is None
    print(lease.votes[0])
"""
ASYNCIO = """
import asyncio, handfast.aio
async def main():
    async with handfast.aio.lock("orders", ttl=5, wait=1) as lease:
        assert type(lease) is handfast.aio.Lease
        assert await handfast.aio.lock("orders").try_acquire() is None
        print(lease.votes[0])
asyncio.run(main())
"""
BOTH = pytest.mark.parametrize("script", [THREADS, ASYNCIO], ids=["threads", "asyncio"])


@BOTH
def test_lock_uses_servers_of_environment(script: str, one: Server, runtime: Path) -> None:
    done = run(script, one.url, runtime)
    assert done.stdout.strip() == one.url
    assert done.stderr == ""
    assert one.command("EXISTS", "handfast:{orders}") == 0


@BOTH
def test_lock_without_servers_uses_embedded_server_with_warning(script: str, runtime: Path) -> None:
    done = run(script, None, runtime)
    assert done.stdout.startswith("embedded://")
    assert "excludes on this machine alone" in done.stderr


def test_client_is_created_on_first_use(runtime: Path) -> None:
    """A bad URL is an error of every lock, not of the import."""
    script = """
import handfast, handfast.aio, asyncio
async def first():
    handfast.aio.lock("orders")
for _ in range(2):
    try:
        handfast.lock("orders")
    except handfast.ConfigError as error:
        assert "unknown scheme" in str(error)
    else:
        raise SystemExit("no error")
    try:
        asyncio.run(first())
    except handfast.ConfigError as error:
        assert "unknown scheme" in str(error)
    else:
        raise SystemExit("no error of asyncio")
"""
    run(script, "ftp://localhost", runtime)


def test_all_locks_share_one_client(one: Server, runtime: Path) -> None:
    """Also the locks of threads that start at the same time."""
    script = """
import handfast, threading
from concurrent.futures import ThreadPoolExecutor
start = threading.Barrier(8)
def first(i):
    start.wait()
    return handfast.lock(f"orders:{i}")
with ThreadPoolExecutor(8) as pool:
    locks = list(pool.map(first, range(8)))
for lock in locks:
    with lock:
        pass
import redis, os
with redis.Redis.from_url(os.environ["HANDFAST_URL"]) as server:
    print(sum(client["name"] == "handfast" for client in server.client_list()))
"""
    assert run(script, one.url, runtime).stdout.strip() in ("1", "2")  # a thread's connection, perhaps the watchdog's


def test_child_of_a_fork_has_a_client_of_its_own(one: Server, runtime: Path) -> None:
    """The child holds no lock of its parent, and its actions do not affect the parent's lease."""
    script = """
import os, handfast
with handfast.lock("orders") as lease:
    child = os.fork()
    if not child:
        assert handfast.lock("orders").try_acquire() is None
        with handfast.lock("invoices", wait=5) as mine:
            assert mine.owner.split(":")[1] == str(os.getpid())
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lease.extend()
"""
    run(script, one.url, runtime)


def test_asyncio_child_of_a_fork_has_a_client_of_its_own(one: Server, runtime: Path) -> None:
    script = """
import asyncio, os, handfast.aio
async def take(name):
    async with handfast.aio.lock(name, wait=5) as lease:
        return lease.owner.split(":")[1]
assert asyncio.run(take("orders")) == str(os.getpid())
child = os.fork()
if not child:
    assert asyncio.run(take("orders")) == str(os.getpid())
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert asyncio.run(take("orders")) == str(os.getpid())
"""
    run(script, one.url, runtime)


def test_each_event_loop_has_a_client_that_ends_with_it(one: Server, runtime: Path) -> None:
    """Loops one after another and side by side. Nothing is left open, or Python would warn."""
    script = """
import asyncio, gc, handfast.aio, redis, os
from concurrent.futures import ThreadPoolExecutor
async def take(name):
    async with handfast.aio.lock(name, wait=5):
        pass
for _ in range(3):
    asyncio.run(take("orders"))
with ThreadPoolExecutor(3) as pool:
    list(pool.map(lambda i: asyncio.run(take(f"orders:{i}")), range(3)))
gc.collect()
with redis.Redis.from_url(os.environ["HANDFAST_URL"]) as server:
    while any(client["name"] == "handfast" for client in server.client_list()):
        pass
"""
    assert run(script, one.url, runtime).stderr == ""


def test_asyncio_lock_without_a_loop_says_what_to_do(one: Server, runtime: Path) -> None:
    script = """
import handfast.aio
try:
    handfast.aio.lock("orders")
except handfast.ConfigError as error:
    assert "running event loop" in str(error), error
else:
    raise SystemExit("no error")
"""
    run(script, one.url, runtime)
