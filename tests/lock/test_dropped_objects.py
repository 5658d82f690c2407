"""Dropped leases, locks and clients: what they held is freed, wherever the garbage collection runs."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast.testing import Server, Servers, available, lose
from tests.support.eventually import eventually, eventually_async
from tests.support.programs import program
from tests.support.sync_and_async import Awaited, both, connected, plain

pytestmark = pytest.mark.usefixtures("small_heap")
needs_server = pytest.mark.skipif(not available(), reason="no server binary on this machine")

DROPPING = """
import faulthandler, logging, sys, handfast

logging.disable()
client = handfast.connect(sys.argv[1], ttl=5)
kept, leases = [], []
for n in range(600):
    # Of the two leases of one owner, the one that is dropped is not the last.
    owned = client.lock(f"owned-{n}", owner="job")
    kept.append(owned.acquire(wait=0))
    leases.append((owned.acquire(wait=0), client.lock(f"plain-{n}").acquire(wait=0)))
lines = set()


def trace(frame, event, argument):
    if "handfast" not in frame.f_code.co_filename:
        return None
    line = frame.f_code.co_filename, frame.f_lineno
    if event == "line" and leases and line not in lines:
        lines.add(line)
        leases.pop()  # their finalizers run here, as they do when a collection runs here
    return trace


faulthandler.dump_traceback_later(10, exit=True)
sys.settrace(trace)
lease = client.lock("a").acquire(wait=1)
lease.extend()
lease.release()
sys.settrace(None)
print("done" if leases else "there were fewer leases than lines")
faulthandler.cancel_dump_traceback_later()
"""


@needs_server
def test_finalizer_can_run_anywhere(one: Server) -> None:
    """A lease is dropped at every line of an acquisition and a release, in the same thread."""
    said = program(DROPPING, one.url)
    assert said.stdout == "done\n", f"a finalizer waits for the thread that it runs in:\n{said.stderr}"


DROPPED_WHILE_LOGGING = """
import faulthandler, logging, logging.handlers, queue, sys, handfast

records = queue.Queue()
logging.getLogger().addHandler(logging.handlers.QueueHandler(records))
client = handfast.connect(sys.argv[1])
lease = client.lock("a").acquire(wait=1)
faulthandler.dump_traceback_later(5, exit=True)
with records.mutex:  # a collection runs while this thread logs something
    del lease
print(records.get(timeout=5).getMessage())
"""


@needs_server
def test_finalizer_can_run_inside_log_handler(one: Server) -> None:
    said = program(DROPPED_WHILE_LOGGING, one.url)
    assert "dropped without release" in said.stdout, f"a finalizer waits for the thread that it runs in:\n{said.stderr}"


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def _open_client(mode: str, url: str) -> Any:
    """A client that is never closed."""
    return Awaited(handfast.connect(url)) if mode == "threads" else handfast.aio.connect(url)


counts_descriptors = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")


@needs_server
@counts_descriptors
@both
async def test_dropped_client_closes_its_connections(mode: str, one: Server) -> None:
    async def use_one() -> None:
        client = _open_client(mode, one.url)
        await (await client.lock("a").acquire(wait=1)).release()

    async with connected(mode, one.url) as first:  # for what all clients of a process share
        await (await first.lock("a").acquire(wait=1)).release()
        before = _descriptors()
        for _ in range(5):
            await use_one()
        await eventually_async(lambda: _descriptors() <= before, what="dropped clients leave descriptors open")


@needs_server
def test_client_whose_waiter_timed_out_beside_a_hung_node_is_collected() -> None:
    """A connection keeps the waiter's request until the node replies, and must not keep the client alive with it."""
    with Servers(3) as servers, handfast.connect(servers.urls, guard=False) as rival:
        client = handfast.connect(servers.urls, guard=False, node_timeout=2)
        with rival.lock("a").acquire():
            for hangs in (False, True):  # the first wait subscribes at all nodes
                if hangs:
                    servers[2].pause()
                with pytest.raises(handfast.Contended):
                    client.lock("a").acquire(wait=0.2)
            dropped = weakref.ref(client)
            del client
            eventually(lambda: gc.collect() >= 0 and dropped() is None, what="the dropped client is collected")
            servers[2].resume()


@needs_server
@counts_descriptors
@both
async def test_lease_dropped_with_its_client_is_released(mode: str, one: Server) -> None:
    async def hold() -> None:
        lease = await _open_client(mode, one.url).lock("a", ttl=20.0).acquire(wait=1)
        assert lease.valid

    async with connected(mode, one.url) as first:
        await (await first.lock("b").acquire(wait=1)).release()
        before = _descriptors()
        await hold()

        def ended() -> bool:
            """Also the connections: asyncio's must be closed before their loop ends."""
            return _descriptors() <= before and one.command("EXISTS", "handfast:{a}") == 0

        await eventually_async(ended, within=5)


def test_private_server_ends_with_dropped_client() -> None:
    sockets: list[str] = []

    def use() -> None:
        client = handfast.connect("embedded://private")
        client.lock("a").acquire(wait=10).release()
        sockets.extend(address.path for address in client._addresses)

    def ended() -> bool:
        gc.collect()
        return not any(map(os.path.exists, sockets))

    use()
    eventually(ended, within=5)


@needs_server
def test_lock_keeps_no_state_of_ended_threads(one: Server) -> None:
    with handfast.connect(one.url) as client:
        lock = client.lock("a", wait=5)

        def hold() -> None:
            with lock:
                pass

        def lists_after(threads: int) -> int:
            for _ in range(threads):
                thread = threading.Thread(target=hold)
                thread.start()
                thread.join()
            gc.collect()
            return sum(1 for each in gc.get_objects() if type(each) is list)

        before = lists_after(10)
        kept = lists_after(200) - before
        assert kept < 100, f"200 threads that ended left {kept} lists behind"


@needs_server
@both
async def test_lost_leases_of_rlocks_are_not_kept_while_their_thread_or_task_lives(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        holds = []
        for i in range(60):
            lease = await client.rlock(f"{i}").acquire()
            holds.append(weakref.ref(lease._hold))
            lose(getattr(lease, "inner", lease))
            del lease
        gc.collect()
        assert sum(hold() is not None for hold in holds) < 15


@needs_server
@pytest.mark.parametrize("behind", ["lock", "lease"])
def test_lease_of_abandoned_block_ends_with_its_lock(one: Server, behind: str, caplog: pytest.LogCaptureFixture) -> None:
    """An interrupt before the first step of `__exit__` leaves such a block."""
    with handfast.connect(one.url, ttl=30.0) as client:
        lock: Any = client.lock("a")
        (lock if behind == "lock" else lock.acquire()).__enter__()
        assert one.command("EXISTS", "handfast:{a}") == 1
        del lock
        eventually(lambda: one.command("EXISTS", "handfast:{a}") == 0)
    assert "dropped without release" in caplog.text


@needs_server
@plain
async def test_task_with_abandoned_block_can_enter_another(one: Server) -> None:
    async with handfast.aio.connect(one.url, ttl=30.0) as client:
        await client.lock("a").__aenter__()
        async with client.lock("a", wait=5) as lease:
            assert lease.valid
