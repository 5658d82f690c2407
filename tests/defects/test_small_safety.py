"""Smaller defects: finalizers, what is never freed, passwords in errors, clocks, systems without fork."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

import pytest
from tests.defects.support import defect, program

import handfast
from handfast import ConfigError
from handfast.testing import Server, available

needs_server = pytest.mark.skipif(not available(), reason="no server binary on this machine")

# -- finalizers --------------------------------------------------------------------------------------------------------

DROPPING = """
import faulthandler, logging, sys, handfast

logging.disable()
client = handfast.connect(sys.argv[1], ttl=0.5)
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
        leases.pop()  # their finalizers run here, as they do when a collection strikes here
    return trace


faulthandler.dump_traceback_later(1.5, exit=True)
sys.settrace(trace)
lease = client.lock("a").acquire(wait=1)
lease.extend()
lease.release()
sys.settrace(None)
print("done" if leases else "there were fewer leases than lines")
faulthandler.cancel_dump_traceback_later()
"""


@needs_server
@defect("a finalizer takes a lock that is not reentrant, and waits for itself where a collection strikes inside it")
def test_finalizer_may_run_anywhere(one: Server) -> None:
    """At every line of an acquisition and a release a lease is dropped, in the thread that is there."""
    said = program(DROPPING, one.url)
    assert said.stdout == "done\n", f"a finalizer waits for the thread that it runs in:\n{said.stderr}"


# -- what is never freed -----------------------------------------------------------------------------------------------


def _descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@needs_server
@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="descriptors are counted in /proc")
@defect("a client that is never closed is never collected, nor are its connections")
def test_client_that_is_dropped_frees_its_connections(one: Server) -> None:
    dropped: list[weakref.ref[handfast.Client]] = []

    def use_one() -> None:
        client = handfast.connect(one.url)
        client.lock("a").acquire(wait=1).release()
        dropped.append(weakref.ref(client))

    with handfast.connect(one.url) as first:  # for what all clients of a process share
        first.lock("a").acquire(wait=1).release()
        before = _descriptors()
        try:
            for _ in range(5):
                use_one()
            end = time.monotonic() + 1
            while (more := _descriptors() - before) > 0 and time.monotonic() < end:
                time.sleep(0.01)
            assert more <= 0, f"five clients that were dropped left {more} descriptors open"
        finally:
            for each in dropped:
                if (client := each()) is not None:
                    client.close()


@needs_server
@defect("a lock keeps a list for every thread that has ever held it")
def test_lock_keeps_nothing_of_threads_that_ended(one: Server) -> None:
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


# -- passwords in errors -----------------------------------------------------------------------------------------------

SECRET = "open-sesame"


@defect("an error about a URL shows the password in it")
@pytest.mark.parametrize(
    "url",
    [
        f"redis:/localhost?password={SECRET}",
        f"redis:localhost?password={SECRET}",
        f"localhost?password={SECRET}",
        f"embedded://?password={SECRET}",
        f"embedded://private?nodes=3&password={SECRET}",
        f"embedded://:{SECRET}@private",
    ],
)
def test_password_in_url_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        handfast.connect(url)
    assert SECRET not in str(raised.value), "the error shows the password"


# -- clocks ------------------------------------------------------------------------------------------------------------

SUSPENDED = """
import asyncio, sys
from tests.defects import fake_clocks
import handfast.aio


async def main():
    async with handfast.aio.connect(sys.argv[1]) as client:
        try:
            async with client.lock("a", ttl=30.0, wait=1) as lease:
                await asyncio.sleep(0.3)  # some work; the watchdog has made its plan by then
                fake_clocks.advance(60, "clock_boottime")
                await asyncio.sleep(1.5)
                print("valid" if lease.valid else "lost, and not cancelled")
        except handfast.LeaseLost:
            print("cancelled")


asyncio.run(main())
"""


@needs_server
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that runs in suspend")
@defect("after a suspend the body of a lost lease is cancelled only when the watchdog's timer ends, seconds later")
def test_body_is_cancelled_soon_after_suspend(one: Server) -> None:
    """In suspend the time that leases are counted in goes on, and the time of timers stands still."""
    said = program(SUSPENDED, one.url)
    said.check_returncode()
    assert said.stdout.strip() == "cancelled", f"1.5 s after the suspend the lease is {said.stdout}"


SLEPT = """
import sys, time
from tests.defects import fake_clocks
if hasattr(time, "CLOCK_BOOTTIME"):
    del time.CLOCK_BOOTTIME
import handfast

with handfast.connect(sys.argv[1]) as client:
    lease = client.lock("a", ttl=5.0, renew=False).acquire(wait=1)
    fake_clocks.advance(60, "clock_monotonic")
    print("valid" if lease.valid else "over")
"""


@needs_server
@defect("on macOS leases are counted in time.monotonic(), which stands still while the machine sleeps")
def test_lease_ends_while_machine_without_boottime_sleeps(one: Server) -> None:
    """On macOS CLOCK_MONOTONIC goes on during sleep, and time.monotonic() does not."""
    said = program(SLEPT, one.url)
    said.check_returncode()
    assert said.stdout.strip() == "over", "a lease of 5 s is still valid after a sleep of 60 s"


# -- systems without fork ----------------------------------------------------------------------------------------------

FORKLESS = """
import concurrent.futures.thread, logging, os, random, threading
del os.fork, os.register_at_fork
try:
    import handfast
except ImportError as error:
    print(error)
else:
    print("imported")
"""


@defect("importing handfast on a system without fork fails with an AttributeError")
def test_import_without_fork_works_or_says_why_not() -> None:
    said = program(FORKLESS)
    assert said.stdout.strip() == "imported" or "Linux" in said.stdout, said.stderr.strip().rpartition("\n")[2]
