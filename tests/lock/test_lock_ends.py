"""How leases end that nobody releases: dropped, closed over, left behind. The same on every server, so on one."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

import handfast
from handfast.testing import Server
from tests.support.eventually import eventually, renewal_of


@pytest.fixture
def server(one: Server) -> Server:
    return one


@pytest.fixture
def own() -> Iterator[Server]:
    """A server that the test may pause."""
    with Server() as server:
        yield server


def holder_of(server: Server, name: str) -> str | None:
    value = server.command("GET", f"handfast:{{{name}}}")
    return value.decode() if isinstance(value, bytes) else None


def test_dropped_lease_is_released(server: Server, client: handfast.Client) -> None:
    lease = client.lock("a", ttl=20).acquire()
    assert holder_of(server, "a") == lease.owner
    del lease
    gc.collect()
    eventually(lambda: holder_of(server, "a") is None)


def test_dropped_reentrant_lease_counts_as_released(server: Server, client: handfast.Client) -> None:
    lock = client.rlock("a", ttl=20)
    outer, inner = lock.acquire(), lock.acquire()
    del inner
    gc.collect()
    assert outer.valid
    assert holder_of(server, "a") == outer.owner
    del outer
    gc.collect()
    eventually(lambda: holder_of(server, "a") is None)


def test_dropped_lease_without_renewal_expires_with_its_ttl(server: Server, client: handfast.Client) -> None:
    owner = client.lock("a", ttl=1.0, renew=False).acquire().owner
    gc.collect()
    with client.lock("b"):
        pass  # a round trip later
    assert holder_of(server, "a") == owner
    eventually(lambda: holder_of(server, "a") is None)


def test_closing_client_releases_renewed_leases_only(server: Server) -> None:
    client = handfast.connect(server.url)
    renewed = [client.lock(f"r{i}", ttl=20).acquire() for i in range(3)]
    fixed = client.lock("f", ttl=20, renew=False).acquire()
    client.close()
    assert [holder_of(server, lease.name) for lease in renewed] == [None] * 3
    assert holder_of(server, "f") == fixed.owner
    assert not any(lease.valid for lease in renewed)


def test_release_after_close_returns_false(server: Server) -> None:
    with handfast.connect(server.url) as client:
        lease = client.lock("a").acquire()
        inner = client.rlock("b").acquire()
    assert lease.release() is False
    assert inner.release() is False


def test_closing_client_in_body_does_not_mask_error_of_body(server: Server) -> None:
    client = handfast.connect(server.url)

    def body() -> None:
        with client.lock("a"):
            client.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


def test_closing_a_client_ends_its_connections(server: Server) -> None:
    def ours() -> int:
        clients = server.command("CLIENT", "LIST")
        assert isinstance(clients, bytes)
        return clients.count(b"name=handfast ")

    eventually(lambda: ours() == 0)
    client = handfast.connect(server.url)
    lease = client.lock("a", ttl=0.1).acquire()
    eventually(renewal_of(lease))
    assert ours() >= 2  # the lane's and the watchdog's
    client.close()
    eventually(lambda: ours() == 0)


def test_closing_client_is_quick_and_silent_while_server_hangs(own: Server) -> None:
    client = handfast.connect(own.url)
    lease = client.lock("a", ttl=20).acquire()
    own.pause()
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 4
    assert not lease.valid
    own.resume()


def test_lease_survives_close_of_another_client(server: Server, client: handfast.Client) -> None:
    with client.lock("a", ttl=0.3) as lease:
        with handfast.connect(server.url) as other, other.lock("b"):
            pass
        eventually(renewal_of(lease))
        lease.check()


def test_closed_clients_leave_no_threads(server: Server) -> None:
    program = """
import sys, threading, time, handfast

def ours():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("handfast")]

def wait_until(so):
    end = time.monotonic() + 5
    while not so() and time.monotonic() < end:
        time.sleep(0.01)
    assert so(), ours()

with handfast.connect(sys.argv[1]) as client, client.lock("a"):
    wait_until(lambda: ours() == ["handfast-watchdog"])
wait_until(lambda: not ours())
"""
    subprocess.run([sys.executable, "-c", program, server.url], check=True, timeout=20)


def test_reentrant_locks_of_many_names_leave_nothing_in_memory(client: handfast.Client) -> None:
    def entries() -> int:
        gc.collect()
        return sum(type(thing).__module__ == "handfast._lease" for thing in gc.get_objects())

    with client.rlock("warm"):
        pass
    before = entries()
    for i in range(100):
        with client.rlock(f"name-{i}"):
            pass
    assert entries() - before < 10


@pytest.mark.parametrize("then", ["released again", "left", "dropped"])
def test_interrupted_reentrant_release_still_releases_lock(
    server: Server, client: handfast.Client, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    lease = client.rlock("a").acquire()

    def strike(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "_use_for", strike)
    with pytest.raises(KeyboardInterrupt):
        lease.__exit__(None, None, None) if then == "left" else lease.release()
    if then == "released again":
        assert lease.release()
        assert not lease.release()
    elif then == "dropped":
        del lease
    eventually(lambda: server.command("EXISTS", "handfast:{a}") == 0)
