"""Which clock leases are counted on, and what a suspend of the machine does to them."""

from __future__ import annotations

import time

import pytest

from handfast.testing import Server, available
from tests.support.programs import program

needs_server = pytest.mark.skipif(not available(), reason="no server binary on this machine")

SUSPENDED = """
import asyncio, sys
from tests.support import fake_clocks
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
def test_body_is_cancelled_soon_after_suspend(one: Server) -> None:
    """During a suspend the clock of leases runs on, and the clock of timers stands still."""
    said = program(SUSPENDED, one.url)
    said.check_returncode()
    assert said.stdout.strip() == "cancelled", f"1.5 s after the suspend the lease is {said.stdout}"


SLEPT = """
import sys, time
from tests.support import fake_clocks
if hasattr(time, "CLOCK_BOOTTIME"):
    del time.CLOCK_BOOTTIME
import handfast

with handfast.connect(sys.argv[1]) as client:
    lease = client.lock("a", ttl=5.0, renew=False).acquire(wait=1)
    fake_clocks.advance(60, "clock_monotonic")
    print("valid" if lease.valid else "over")
"""


@needs_server
def test_lease_ends_while_machine_without_boottime_sleeps(one: Server) -> None:
    """On macOS CLOCK_MONOTONIC goes on during sleep, and time.monotonic() does not."""
    said = program(SLEPT, one.url)
    said.check_returncode()
    assert said.stdout.strip() == "over", "a lease of 5 s is still valid after a sleep of 60 s"
