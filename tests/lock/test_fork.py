"""fork while holding: only the parent has the lease, and both processes use their own connections (fault 35)."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme

import handfast
import handfast.aio
from handfast.net import clock
from handfast.testing import Server, Servers, available
from tests.support.eventually import eventually, eventually_async, renewal_of
from tests.support.sync_and_async import plain
from tests.support.tls_servers import make_files, start_with_tls

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    # Newer Pythons warn of any fork beside threads. These tests show that it works here.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

WITHIN = 30.0
"""Seconds that anything may take on a busy machine."""


def in_child(work: Callable[[], Any]) -> Any:
    """Fork, run `work` in the child, and return its result through JSON; an exception fails the test."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.write(writer, json.dumps({"result": work()}).encode())
            status = 0
        except BaseException:
            os.write(writer, json.dumps({"error": traceback.format_exc()}).encode())
        finally:
            os._exit(status)
    os.close(writer)
    try:
        ready, _, _ = select.select([reader], [], [], WITHIN)
        if not ready:
            os.kill(pid, signal.SIGKILL)
        said = json.loads(os.read(reader, 1 << 20) or b'{"error": "the child hangs, or died without a word"}')
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    assert "error" not in said, said["error"]
    return said["result"]


def handfast_connections(server: Server) -> set[str]:
    """The ids of the connections named handfast."""
    lines = bytes(server.command("CLIENT", "LIST")).decode().splitlines()  # type: ignore[arg-type]
    return {line.split()[0] for line in lines if "name=handfast" in line}


def writes(server: Server) -> dict[str, int]:
    """How often each command that changes a lock was called."""
    words = ("set", "evalsha", "delifeq", "del", "pexpire")
    said = {word: server.info(f"cmdstat_{word}") for word in words}
    return {word: int(text.partition("calls=")[2].partition(",")[0]) for word, text in said.items() if text}


def look(lease: handfast.Lease) -> dict[str, Any]:
    """The state of the parent's lease in a child, and the results of its methods."""
    try:
        lease.extend()
        extended = "extended"
    except handfast.LeaseLost as error:
        extended = error.reason
    return {
        "valid": lease.valid,
        "remaining": lease.remaining(),
        "lost": lease.lost.is_set(),
        "extended": extended,
        "released": lease.release(),
    }


LOOKS_LOST = {
    "valid": False,
    "remaining": 0.0,
    "lost": True,
    "extended": "held by the parent process: a fork inherits no lease",
    "released": False,
}


def test_child_inherits_no_lease_and_sends_nothing_for_it(one: Server, client: handfast.Client) -> None:
    lease = client.lock("a").acquire(wait=0)
    one.command("CONFIG", "RESETSTAT")
    assert in_child(lambda: look(lease)) == LOOKS_LOST
    assert writes(one) == {}
    assert lease.valid
    assert one.command("GET", "handfast:{a}") == lease.owner.encode()
    assert lease.release()


def test_child_that_drops_lease_or_closes_client_does_not_affect_parent(one: Server, client: handfast.Client) -> None:
    leases = [client.lock("a").acquire(wait=0)]
    before = handfast_connections(one)
    one.command("CONFIG", "RESETSTAT")

    def leave() -> None:
        leases.clear()
        client.close()

    in_child(leave)
    assert writes(one) == {}
    assert handfast_connections(one) == before
    assert leases[0].valid
    leases[0].extend()
    assert leases[0].release()


def test_lease_without_renewal_is_not_inherited(one: Server, client: handfast.Client) -> None:
    lease = client.lock("a", renew=False).acquire(wait=0)
    assert in_child(lambda: look(lease)) == LOOKS_LOST
    assert lease.release()


def test_lease_is_not_inherited_during_its_renewal(client: handfast.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork comes while the watchdog renews the lease."""
    lease = client.lock("a", ttl=0.5).acquire(wait=0)
    dog = client._watchdog()
    monkeypatch.setattr(dog.schedule, "now", lambda: clock.now() + 60)
    taken = dog.schedule.take_due()
    monkeypatch.undo()
    try:
        assert [lease._hold] in taken.values()
        assert in_child(lambda: look(lease)) == LOOKS_LOST
    finally:
        dog.schedule.add(lease._hold)
    assert lease.release()


def test_child_does_not_reenter_reentrant_lock(client: handfast.Client) -> None:
    lock = client.rlock("a")
    lease = lock.acquire(wait=0)

    def enter() -> str:
        try:
            lock.acquire(wait=0)
        except handfast.Contended as error:
            return error.holder or ""
        return "entered"

    assert in_child(enter) == lease.owner
    assert lease.release()


def test_lease_of_parent_is_renewed_while_it_forks(one: Server, client: handfast.Client) -> None:
    lease = client.lock("a", ttl=1.5).acquire(wait=0)
    renewed = renewal_of(lease, by=0.7)
    while not renewed():
        in_child(lambda: look(lease))
        assert lease.valid
    assert one.command("GET", "handfast:{a}") == lease.owner.encode()
    assert lease.release()


def test_child_uses_client_with_own_connections_and_owner(one: Server, client: handfast.Client) -> None:
    held = client.lock("held").acquire(wait=0)
    client.lock("warm").acquire(wait=0).release()
    before = handfast_connections(one)

    def work() -> dict[str, Any]:
        try:
            client.lock("held").acquire(wait=0)
            refused = ""
        except handfast.Contended as error:
            refused = error.holder or ""
        lease = client.lock("mine").acquire(wait=0)
        owner, renewed = lease.owner, client.lock("short", ttl=0.6).acquire(wait=0)
        eventually(renewal_of(renewed))
        seen = handfast_connections(one)
        return {
            "refused": refused,
            "owner": owner,
            "pid": os.getpid(),
            "connections": sorted(seen),
            "released": [lease.release(), renewed.release()],
        }

    said = in_child(work)
    assert said["refused"] == held.owner
    assert said["owner"].split(":")[1] == str(said["pid"])
    assert said["owner"].split(":")[1] != held.owner.split(":")[1]
    assert said["released"] == [True, True]
    assert set(said["connections"]) - before, "it made its own"
    assert before <= set(said["connections"]), "and left ours alone"
    eventually(lambda: handfast_connections(one) == before)
    assert held.valid
    assert held.release()


def test_nonces_of_parent_and_child_differ(client: handfast.Client) -> None:
    """Random numbers may be read in blocks; parent and child must not share a block."""

    def nonces() -> list[str]:
        leases = [client.lock(f"{os.getpid()}-{i}", renew=False, ttl=5).acquire(wait=0) for i in range(20)]
        assert all(lease.release() for lease in leases)
        return [lease.owner.rpartition(":")[2] for lease in leases]

    before = nonces()
    childs = in_child(nonces)
    assert len({*before, *childs, *nonces()}) == 60


def test_two_children_of_one_parent_exclude_each_other(client: handfast.Client) -> None:
    client.lock("warm").acquire(wait=0).release()
    lock = client.lock("a")

    def rival() -> bool:
        return in_child(lambda: lock.try_acquire() is None)

    def first() -> bool:
        lease = lock.acquire(wait=0)
        excluded = rival()
        return excluded and lease.release()

    assert in_child(first)


def test_fork_with_busy_threads_leaves_usable_client(one: Server, client: handfast.Client) -> None:
    """Other threads use locks and connections at the moment of the fork."""
    stop = threading.Event()
    failures: list[BaseException] = []

    def busy(i: int) -> None:
        try:
            while not stop.is_set():
                lease = client.lock(f"busy{i}").acquire(wait=1)
                assert lease.release()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=busy, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    try:
        for i in range(10):
            assert in_child(lambda i=i: client.lock(f"child{i}").acquire(wait=1).release())
    finally:
        stop.set()
        for thread in threads:
            thread.join(WITHIN)
    assert not failures


def test_quorum_client_works_in_parent_and_child(five: Servers, quorum: handfast.Client) -> None:
    lease = quorum.lock("a").acquire(wait=0)

    def work() -> list[Any]:
        mine = quorum.lock("b").acquire(wait=0)
        return [look(lease), mine.token, len(mine.votes) >= 3, mine.release()]

    seen, token, enough, released = in_child(work)
    assert seen == LOOKS_LOST
    assert enough
    assert released
    again = quorum.lock("b").acquire(wait=0)
    assert again.token is not None
    assert again.token > token
    assert again.release()
    assert lease.valid
    assert [node.command("GET", "handfast:{a}") for node in five] == [lease.owner.encode()] * 5
    assert lease.release()


def test_tls_connection_survives_fork(tmp_path: Path) -> None:
    """A TLS shutdown in the child would end the session of the parent."""
    made = make_files(trustme.CA(), tmp_path, "127.0.0.1")
    server = start_with_tls(made)
    try:
        with handfast.connect(f"{server.url}?ssl_ca_certs={made.authority}") as client:
            lease = client.lock("a").acquire(wait=0)
            before = handfast_connections(server)
            assert in_child(lambda: client.lock("b").acquire(wait=0).release())
            assert before <= handfast_connections(server)
            lease.extend()
            assert lease.release()
    finally:
        server.close()


@plain
async def test_child_of_asyncio_parent_inherits_no_lease_and_can_connect(one: Server) -> None:
    async with handfast.aio.connect(one.url) as client:
        lease = await client.lock("a", ttl=0.6).acquire(wait=0)
        await lease.extend()
        before = handfast_connections(one)

        async def anew() -> dict[str, Any]:
            mine = await client.lock("b").acquire(wait=0)
            return {
                "valid": lease.valid,
                "old": await lease.release(),
                "owner": mine.owner,
                "pid": os.getpid(),
                "new": await mine.release(),
            }

        said = in_child(lambda: asyncio.run(anew()))
        assert (said["valid"], said["old"], said["new"]) == (False, False, True)
        assert said["owner"].split(":")[1] == str(said["pid"]) != lease.owner.split(":")[1]
        assert before <= handfast_connections(one), "the parent's connection is untouched"
        # Well beyond the ttl: renewed by the parent's watchdog, on a loop that still turns.
        await eventually_async(renewal_of(lease, by=0.7))
        assert lease.valid
        assert not lease.lost.is_set()
        leases = [await client.lock(f"n{i}").acquire(wait=0) for i in range(50)]
        assert all(await asyncio.gather(*[each.release() for each in leases]))
        assert await lease.release()


@plain
async def test_lost_event_created_before_fork_stays_unset_in_parent(one: Server) -> None:
    async with handfast.aio.connect(one.url) as client:
        async with client.lock("a") as lease:
            event = lease.lost
            assert in_child(lambda: lease.valid) is False
            await asyncio.sleep(0)
            assert not event.is_set()
            assert lease.valid
        assert one.command("GET", "handfast:{a}") is None


def _in_process(client: handfast.Client, lease: handfast.Lease, said: Any) -> None:
    said.send((lease.valid, lease.release(), client.lock("mine").acquire(wait=0).owner, os.getpid()))


def test_multiprocessing_with_fork_inherits_no_lease(one: Server, client: handfast.Client) -> None:
    lease = client.lock("a").acquire(wait=0)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_in_process, args=(client, lease, theirs))
    process.start()
    assert ours.poll(WITHIN)
    valid, released, owner, pid = ours.recv()
    process.join(WITHIN)
    assert process.exitcode == 0
    assert (valid, released) == (False, False)
    assert owner.split(":")[1] == str(pid) == str(process.pid)
    assert one.command("GET", "handfast:{a}") == lease.owner.encode()
    lease.extend()
    assert lease.release()


def _double(x: int) -> int:
    assert _pool_client is not None
    with _pool_client.lock("pool", wait=10):
        return 2 * x


_pool_client: handfast.Client | None = None


def test_forked_pool_workers_exclude_each_other(client: handfast.Client) -> None:
    global _pool_client
    _pool_client = client
    client.lock("warm").acquire(wait=0).release()
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_double, range(20), chunksize=1) == [2 * x for x in range(20)]
        pool.close()
        pool.join()
    _pool_client = None


@pytest.mark.parametrize("words", ["sys.exit(0)", "raise KeyboardInterrupt", "pass"])
def test_child_that_exits_normally_leaves_lock_of_parent_alone(words: str, one: Server) -> None:
    """With everything that Python does at exit: finalizers, exit handlers, closed sockets."""
    code = f"""
        import os, sys
        import handfast
        client = handfast.connect({one.url!r}, node_timeout=5)
        lease = client.lock("a").acquire(wait=0)
        pid = os.fork()
        if pid == 0:
            sys.stderr = open(os.devnull, "w")
            {words}
            sys.exit(0)
        os.waitpid(pid, 0)
        lease.extend()
        print(lease.valid, lease.release())
    """
    # Python 3.12 and later warn of a fork beside threads.
    command = [sys.executable, "-W", "ignore:This process (pid=:DeprecationWarning", "-c", textwrap.dedent(code)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert (ended.stdout, ended.stderr) == ("True True\n", "")
