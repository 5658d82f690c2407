"""A first acquisition imports no module.

Each module has an import lock. A process that forks while one of its threads imports a module gives the child a lock
that nobody releases: the child hangs when it imports the same module. `import handfast` and `connect()` may import what
they like, because a program calls them before it starts its threads. An acquisition, a renewal and a release may not.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import handfast
from handfast.testing import Cluster, SentinelGroup, Server, Servers

THREADS = """
import sys, time, handfast

client = handfast.connect(sys.argv[1].split())
known = set(sys.modules)
for options in {}, {"fair": True}, {"cohort": 8}:
    with client.lock("a", ttl=1.0, **options) as lease:
        ends = time.monotonic() + lease.remaining()
        while time.monotonic() + lease.remaining() < ends + 0.1:  # until the watchdog has renewed it
            time.sleep(0.01)
        lease.extend()
client.close()
print(sorted(set(sys.modules) - known))
"""
ASYNCIO = """
import asyncio, sys, time, handfast.aio

async def main():
    async with handfast.aio.connect(sys.argv[1].split()) as client:
        known = set(sys.modules)
        for options in {}, {"fair": True}, {"cohort": 8}:
            async with client.lock("a", ttl=1.0, **options) as lease:
                ends = time.monotonic() + lease.remaining()
                while time.monotonic() + lease.remaining() < ends + 0.1:
                    await asyncio.sleep(0.01)
                await lease.extend()
    return set(sys.modules) - known

print(sorted(asyncio.run(main())))
"""

both_programs = pytest.mark.parametrize("program", [THREADS, ASYNCIO], ids=["threads", "asyncio"])


def imported(program: str, url: str) -> str:
    """The modules that the program has imported since it was connected."""
    ended = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout.strip()


@both_programs
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_first_acquisition_on_one_node(program: str, host: str, one: Server) -> None:
    assert imported(program, one.url.replace("127.0.0.1", host)) == "[]"


@both_programs
def test_first_acquisition_on_quorum(program: str, three: Servers) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
    assert imported(program, " ".join(three.urls)) == "[]"


@both_programs
def test_first_acquisition_under_sentinel(program: str, handfast_sentinel: SentinelGroup) -> None:
    assert imported(program, handfast_sentinel.url) == "[]"


@both_programs
def test_first_acquisition_in_cluster(program: str, handfast_cluster: Cluster) -> None:
    assert imported(program, handfast_cluster.url) == "[]"
