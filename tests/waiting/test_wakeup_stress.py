"""A stress test for lost wake-ups and other faults of a few locks that many processes acquire.

Real processes, with threads and with tasks, acquire and release as fast as they can, give up at random and are cancelled
at random. Some are stopped for a while or killed at random, while they hold or wait, and replaced. An observer reads what
all of them logged. The killed ones have a short ttl, the others a ttl far longer than any stall that is allowed. So a
killed holder costs little, and a lock without an owner, or a lost wake-up, stands out.

`STRESS_SECONDS=600 pytest tests/waiting/test_wakeup_stress.py` takes longer.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

import handfast
from handfast.testing import Server, Servers
from tests.support.eventually import eventually
from tests.support.stress_processes import Holding, StressProcess, faults_in, holdings_in
from tests.support.sync_and_async import MODES

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("STRESS_SECONDS", "1.5"))
"""How long each test stresses its locks."""
SHORT: Final = 0.5
"""The ttl of the processes that are killed."""
LONG: Final = 8.0
"""The ttl of the others, and for how long they wait."""
STALL: Final = SHORT + 2.5
"""Seconds for which nobody may hold a lock that is wanted all the time."""
ONE_NODE: Final[dict[str, dict[str, Any]]] = {
    "fair": {},
    "barging": {"fair": False},
    "cohort": {"cohort": 3},
    "barging-cohort": {"fair": False, "cohort": 3},
}
QUORUM: Final[dict[str, dict[str, Any]]] = {"fair": {}, "cohort": {"cohort": 3}}


def stress(servers: Sequence[Server], locks: dict[str, dict[str, Any]], folder: Path, workers: int) -> Counter[str]:
    """Stress a few locks with lasting processes and with processes that are killed. Returns what happened how often."""
    urls = [server.url for server in servers]
    settings = {"urls": urls if len(urls) > 1 else urls[0], "workers": workers, "long": LONG}
    # For each lock only one process at a time may hang or die: two in a row cost their ttls in a row.
    shuffled = random.sample(list(locks), len(locks))
    parts = [{name: locks[name] for name in shuffled[start::2]} for start in range(2)]
    processes: list[StressProcess] = []
    try:
        for mode, part in zip(MODES, parts, strict=True):
            processes.append(StressProcess(mode, folder, mortal=False, ttl=LONG, locks=locks, **settings))
            processes.append(StressProcess(mode, folder, mortal=True, ttl=SHORT, locks=part, **settings))
        eventually(lambda: {each.name for each in holdings_in(folder)} == {*locks}, within=10, what="each lock is in use")
        began = time.monotonic()
        late = _wait_and_measure_delay(SECONDS)
        ended = time.monotonic()
        # The mortal processes end first: the others clear what the killed ones left in a queue.
        reports = [process.end(LONG + 10) for process in sorted(processes, key=lambda process: not process.mortal)]
    finally:
        for process in processes:
            process.kill()
    holdings = holdings_in(folder)
    faults = [error for report in reports for error in report["errors"]]
    faults += faults_in([each for each in holdings if each.since >= began], began, ended, STALL + late)
    assert not faults, "\n".join(faults)
    # No lock is stuck: the votes of the killed ones expire, and the next release clears what they left in the queues.
    for server in servers:
        eventually(lambda server=server: not any(map(_is_lock, _left(server))), within=LONG + 2, what="votes expire")
    with handfast.connect(settings["urls"], node_timeout=5.0) as client:
        for name in locks:
            client.lock(name).acquire(wait=LONG).release()
    for server in servers:
        eventually(lambda server=server: _left(server) == [], what="nothing is left")
    return sum((Counter(report["counts"]) for report in reports), Counter(held=len(holdings)))


def _wait_and_measure_delay(seconds: float) -> float:
    """Wait for so long. Returns the worst delay of a plain sleep meanwhile: how busy this machine is."""
    now = time.monotonic()
    end, worst = now + seconds, 0.0
    while now < end:
        time.sleep(0.02)  # no synchronisation: a pulse
        last, now = now, time.monotonic()
        worst = max(worst, now - last - 0.02)
    return worst


def _left(server: Server) -> list[bytes]:
    """Keys of locks that still exist. Counters and the guard's markers stay."""
    keys: Any = server.command("KEYS", "*")
    return [key for key in keys if not key.endswith((b":f", b":guard", b":mark"))]


def _is_lock(key: bytes) -> bool:
    return key.endswith(b"}")


@pytest.mark.timeout(SECONDS + 60)
def test_no_wake_up_is_lost_on_one_node(server: Server, tmp_path: Path) -> None:
    happened = stress([server], ONE_NODE, tmp_path, workers=12)
    # There was real contention.
    assert happened["held"] > 100 * SECONDS, happened
    assert min(happened["gave up"], happened["cancelled"]) > 5 * SECONDS, happened
    assert min(happened["killed"], 2 * happened["stopped"]) > SECONDS, happened


@pytest.mark.timeout(SECONDS + 60)
def test_no_wake_up_is_lost_on_a_quorum(three: Servers, tmp_path: Path) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
    happened = stress(three.nodes, QUORUM, tmp_path, workers=6)
    assert happened["held"] > 30 * SECONDS, happened
    assert min(happened["killed"], 2 * happened["stopped"]) > SECONDS, happened


# -- tests of the observer --------------------------------------------------------------------------------------


def test_observer_reports_nothing_for_correct_history() -> None:
    held = [Holding("a", 1, 0.1, 0.2, "x"), Holding("a", 2, 0.2, 0.9, "y"), Holding("b", 1, 0.5, 0.9, "x")]
    assert faults_in(held, 0.0, 1.0, stall=0.5) == []


@pytest.mark.parametrize(
    ("held", "fault"),
    [
        ([Holding("a", 1, 0.1, 0.5, "x"), Holding("a", 2, 0.4, 0.6, "y")], "held by y 0.100000 s before x had ended"),
        (
            [Holding("a", 1, 0.1, 0.9, "x"), Holding("a", 2, 0.2, 0.3, "y"), Holding("a", 3, 0.4, 0.9, "z")],
            "held by z 0.500000 s before x had ended",
        ),
        ([Holding("a", 2, 0.1, 0.4, "x"), Holding("a", 1, 0.4, 0.8, "y")], "token 1 of y after 2 of x"),
        ([Holding("a", 2, 0.1, 0.4, "x"), Holding("a", 2, 0.4, 0.8, "y")], "token 2 of y after 2 of x"),
        ([Holding("a", 1, 0.6, 0.9, "x")], "nobody held it for 0.600 s"),
        ([Holding("a", 1, 0.1, 0.2, "x")], "nobody held it for 0.800 s"),
    ],
)
def test_observer_reports_faulty_histories(held: list[Holding], fault: str) -> None:
    assert any(fault in each for each in faults_in(held, 0.0, 1.0, stall=0.5))


def test_observer_counts_killed_holders_until_their_death(tmp_path: Path) -> None:
    Path(tmp_path, "10.log").write_text("+ a 1 0.1 9.0 x\n")
    Path(tmp_path, "11.log").write_text("+ a 2 0.3 9.0 y\n- a 2 0.4\nx 10 0.2\n")
    assert [(each.token, each.until) for each in holdings_in(tmp_path)] == [(1, 0.2), (2, 0.4)]
