"""The ends of leases without a release: dropped, their client closed, left behind. One server is enough."""

from __future__ import annotations

import gc
import subprocess
import sys
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


def test_closing_client_in_body_does_not_mask_error_of_body(server: Server) -> None:
    client = handfast.connect(server.url)

    def body() -> None:
        with client.lock("a"):
            client.close()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()


def test_closing_a_client_ends_its_connections(server: Server) -> None:
    def handfast_connections() -> int:
        clients = server.command("CLIENT", "LIST")
        assert isinstance(clients, bytes)
        return clients.count(b"name=handfast ")

    eventually(lambda: handfast_connections() == 0)
    client = handfast.connect(server.url)
    lease = client.lock("a", ttl=0.5).acquire()
    eventually(renewal_of(lease))
    assert handfast_connections() >= 2  # the caller's connection and the watchdog's
    client.close()
    eventually(lambda: handfast_connections() == 0)


def test_lease_survives_close_of_another_client(server: Server, client: handfast.Client) -> None:
    with client.lock("a", ttl=0.3) as lease:
        with handfast.connect(server.url) as other, other.lock("b"):
            pass
        eventually(renewal_of(lease))
        lease.check()


def test_closed_clients_leave_no_threads(server: Server) -> None:
    program = """
import sys, threading, time, handfast

def handfast_connections():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("handfast")]

def wait_until(so):
    end = time.monotonic() + 5
    while not so() and time.monotonic() < end:
        time.sleep(0.01)
    assert so(), handfast_connections()

with handfast.connect(sys.argv[1]) as client, client.lock("a"):
    wait_until(lambda: handfast_connections() == ["handfast-watchdog"])
wait_until(lambda: not handfast_connections())
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

    monkeypatch.setattr(client._pool, "use", strike)
    with pytest.raises(KeyboardInterrupt):
        lease.__exit__(None, None, None) if then == "left" else lease.release()
    if then == "released again":
        assert lease.release()
        assert not lease.release()
    elif then == "dropped":
        del lease
    eventually(lambda: server.command("EXISTS", "handfast:{a}") == 0)
