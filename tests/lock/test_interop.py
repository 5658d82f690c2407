"""README's table of other programs: each row with the real library, which must be installed (see `make peers`).

One kind of server is enough here: test_lock_sharing.py tests the shared protocol on all kinds.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import handfast
from handfast.testing import Server

ROOT = Path(__file__).parents[2]
INSTALLED = Path(os.environ.get("HANDFAST_PEERS") or Path(sys.prefix, "peers"))
"""Libraries that have a folder of their own; the others are beside handfast."""
PEERS = ("redis-py", "pottery", "python-redis-lock", "redlock-py", "aioredlock", "redsync", "node-redlock")
PATIENCE = 10.0
"""Seconds: half the ttl of any lock here, so that no lock is free because it has expired."""


def rows() -> dict[str, str]:
    """README's table: how a lock of each library is named here, for a lock that the library calls orders."""
    found = re.findall(r'^\| ([\w-]+).*?`lock\("([\w:]*)<name>"', (ROOT / "README.md").read_text(), re.MULTILINE)
    return {library: start + "orders" for library, start in found}


class Peer:
    """Another library in its own process, with a lock that it calls `orders`."""

    def __init__(self, library: str, port: int) -> None:
        folder = INSTALLED / library
        command = {
            "redsync": [str(folder / "peer"), str(port), "orders"],
            "node-redlock": ["node", str(folder / "peer.js"), str(port), "orders"],
        }.get(library)
        if command is None:
            program = str(ROOT / "tests" / "interop" / "python_peer.py")
            command = [sys.executable, program, library, str(port), "orders", *([str(folder)] if folder.exists() else [])]
        elif not Path(command[-3]).exists():
            pytest.skip(f"{library} is not installed")
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        except FileNotFoundError as error:
            pytest.skip(f"{library} cannot be run: {error}")
        answer = self.answer()
        if answer != "ready":
            said = self.close().strip().splitlines()
            pytest.skip(f"{library} cannot be used here: {answer or said[-1:]}")

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, command: str) -> str:
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)
        return self.answer()

    def close(self) -> str:
        """Ends the process; returns its error output."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture(params=PEERS)
def library(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def peer(library: str, one: Server) -> Iterator[Peer]:
    peer = Peer(library, one.port)
    yield peer
    peer.close()


@pytest.fixture
def lock(library: str, one: Server) -> Iterator[handfast.Lock]:
    """The same lock, by the name that README says."""
    with handfast.connect(one.url, prefix="", fence=False, ttl=20) as client:
        yield client.lock(rows()[library])


def test_locks_of_both_libraries_exclude_each_other(peer: Peer, lock: handfast.Lock) -> None:
    assert peer.tell("try") == "held"
    assert lock.try_acquire() is None
    assert lock.holder() is not None
    assert peer.tell("release") == "released"
    lease = lock.try_acquire()
    assert lease is not None
    assert peer.tell("try") == "refused"
    assert lease.valid
    assert lease.release() is True
    assert peer.tell("try") == "held"


def test_release_by_other_library_wakes_handfast_waiter(peer: Peer, lock: handfast.Lock) -> None:
    """By a push of the server: without one, the waiter would not look again before the holder's ttl is over."""
    assert peer.tell("try") == "held"
    waiting = threading.Event()
    lock._client.listen(lambda event: event.kind == "waiting_began" and waiting.set())
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lock.acquire, wait=PATIENCE)
        assert waiting.wait(PATIENCE)
        assert peer.tell("release") == "released"
        with waits.result() as lease:
            assert lease.valid


def test_waiter_of_other_library_acquires_after_handfast_release(
    library: str, peer: Peer, lock: handfast.Lock, one: Server
) -> None:
    """All but one ask again and again. python-redis-lock waits for a signal that only its own release gives, and asks
    again when its own expiry has passed."""
    lease = lock.acquire()
    assert peer.tell("wait") == "waiting"
    if library == "python-redis-lock":
        one.wait_for(lambda: b"cmd=blpop" in clients(one))
    assert lease.release() is True
    assert peer.answer() == "held"
    assert one.command("EXISTS", "lock-signal:orders") == 0
    assert peer.tell("release") == "released"


def clients(server: Server) -> bytes:
    listed = server.command("CLIENT", "LIST")
    assert isinstance(listed, bytes)
    return listed


def test_readme_has_a_row_for_each_library() -> None:
    assert set(rows()) == set(PEERS)
