"""The clock shim moves the wall clock of servers and of a Python client, but not monotonic clocks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from handfast.testing import Server, available
from handfast.testing.clock import Clock, missing
from tests.conftest import KINDS
from tests.support.eventually import eventually

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "not so")

HOUR = 3600.0


@pytest.fixture
def clock() -> Iterator[Clock]:
    with Clock() as clock:
        yield clock


@pytest.mark.parametrize("kind", KINDS)
def test_clock_of_running_server_is_stepped(kind: str, clock: Clock) -> None:
    if kind not in available():
        pytest.skip(f"no {kind} on this machine")
    with Server(available()[kind], env=clock.environment) as server:

        def ahead() -> float:
            said = server.command("TIME")
            assert isinstance(said, list)
            return float(said[0]) + float(said[1]) / 1e6 - time.time()  # type: ignore[arg-type]

        def shows(offset: float) -> bool:
            return abs(ahead() - offset) < 1

        assert shows(0)
        server.command("SET", "short", "1", "PX", "600000")
        clock.step(HOUR)
        # Valkey caches the time of day until its next cron.
        eventually(lambda: shows(HOUR))
        assert server.command("GET", "short") is None, "its keys have ended with it"
        server.command("SET", "again", "1", "PX", "600000")
        clock.step(-2 * HOUR)
        eventually(lambda: shows(-HOUR))
        left = server.command("PTTL", "again")
        assert isinstance(left, int)
        assert left > HOUR * 1000, "a key stays for longer than it was to"


def test_wall_clock_of_client_moves_and_monotonic_clocks_do_not(clock: Clock) -> None:
    clock.step(HOUR)
    script = "import time; print(time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME))"
    began = time.time(), time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
    said = subprocess.run(
        [sys.executable, "-c", script], env=os.environ | clock.environment, capture_output=True, text=True, check=True
    )
    wall, monotonic, boot = (there - here for there, here in zip(map(float, said.stdout.split()), began, strict=True))
    assert abs(wall - HOUR) < 30
    assert 0 <= monotonic < 30
    assert 0 <= boot < 30


def test_clock_leaves_nothing_behind() -> None:
    with Clock(ahead=5.0) as clock:
        assert clock.ahead == 5.0
        folder = Path(clock.environment["HANDFAST_CLOCK"]).parent
        assert folder.exists()
    assert not folder.exists()
