"""The checker of histories finds each kind of violation, and none in a good history."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handfast.testing import history
from handfast.testing.history import Failure, History, Holding, Recorder, Write


def held(token: int | None, began: float, since: float, until: float, name: str = "a", owner: str = "x") -> Holding:
    return Holding(name, owner, token, began, since, until, process=1)


def wrote(order: int | None, base: int, value: int, token: int | None = None, late: bool = False) -> Write:
    return Write("r", base, value, token, order, late, "x", process=1)


GOOD = History(
    holdings=[held(1, 0.0, 0.1, 0.2), held(2, 0.15, 0.2, 0.9), held(1, 0.0, 0.5, 0.9, name="b")],
    writes=[wrote(1, 0, 1, 1), wrote(None, 0, 1, 1), wrote(2, 1, 2, 1), wrote(3, 2, 3, 2)],
)


def test_good_history_has_no_violations() -> None:
    assert GOOD.violations() == []


@pytest.mark.parametrize(
    ("kind", "bad"),
    [
        ("overlap", History([held(1, 0.0, 0.1, 0.5), held(2, 0.0, 0.4, 0.6)])),
        ("overlap", History([held(1, 0.0, 0.1, 0.9), held(2, 0.0, 0.9, 1.0), held(3, 0.0, 0.95, 1.1)])),
        ("overlap", History([held(None, 0.0, 0.1, 0.5), held(None, 0.0, 0.4, 0.6)])),
        ("order", History([held(2, 0.0, 0.1, 0.2), held(1, 0.15, 0.3, 0.4)])),
        ("order", History([held(9, 0.0, 0.1, 0.2), held(2, 0.0, 0.3, 0.4), held(3, 0.35, 0.5, 0.6)])),
        ("duplicate", History([held(2, 0.0, 0.1, 0.2), held(2, 0.05, 0.3, 0.4)])),
        ("lost update", History(writes=[wrote(1, 0, 1), wrote(2, 0, 1)])),
        ("lost update", History(writes=[wrote(1, 0, 1), wrote(2, 1, 2), wrote(3, 0, 1), wrote(4, 1, 2)])),
        ("late write", History(writes=[wrote(1, 0, 1), wrote(2, 0, 1, late=True)])),
        ("late write", History(writes=[wrote(1, 0, 1, late=True), wrote(2, 0, 1)])),
        ("lower token", History(writes=[wrote(1, 0, 1, 5), wrote(2, 1, 2, 4)])),
        ("lower token", History(writes=[wrote(2, 1, 2, 4), wrote(1, 0, 1, 5)])),
    ],
)
def test_each_violation_is_found(kind: str, bad: History) -> None:
    assert [each.kind for each in bad.violations()] == [kind]


def test_overlap_is_counted_once_per_holding() -> None:
    bad = [held(1, 0.0, 0.1, 0.9), held(2, 0.0, 0.2, 0.3), held(3, 0.0, 0.4, 0.5)]
    assert [each.kind for each in History(bad).violations()] == ["overlap"]
    bad += [held(4, 0.0, 0.8, 1.5), held(5, 0.0, 1.4, 1.6)]
    assert [each.kind for each in History(bad).violations()] == ["overlap", "overlap"]


def test_concurrent_acquisitions_may_have_tokens_in_any_order() -> None:
    assert History([held(2, 0.0, 0.2, 0.3), held(1, 0.1, 0.3, 0.4)]).violations() == []


def test_uncertain_write_is_not_a_lost_update() -> None:
    assert History(writes=[wrote(1, 0, 1), wrote(3, 2, 3)]).violations() == []


def test_longest_gap_without_holder_includes_both_ends() -> None:
    some = History([held(1, 0.0, 1.0, 2.0), held(2, 0.0, 2.5, 3.0), held(3, 0.0, 2.6, 2.7), held(4, 0.0, 9.0, 9.5, "b")])
    assert some.idle("a", 0.0, 3.2) == pytest.approx(1.0)
    assert some.idle("a", 1.5, 3.2) == pytest.approx(0.5)
    assert some.idle("a", 1.5, 7.0) == pytest.approx(4.0)
    assert some.idle("a", 1.2, 1.8) == 0.0
    assert some.idle("nobody's", 1.0, 3.0) == pytest.approx(2.0)


def test_wanted_lock_without_grants_is_stuck() -> None:
    wanted = [Failure(name, 5.0, 6.0, "held", process=1) for name in ("a", "b")]
    some = History([held(1, 0.0, 1.0, 2.0), held(1, 5.5, 5.6, 5.7, name="b")], failures=wanted)
    assert some.stuck(since=3.0) == ["a"]
    assert some.stuck(since=6.0) == []
    assert some.names == ["a", "b"]


def test_recorded_history_is_read_back(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    began = history.now()
    first = recorder.took("a", "x", 1, began=began, until=began + 10)
    recorder.wrote("r", 0, 1, token=1, order=1, late=False, owner="x")
    recorder.renewed(first, began + 20)
    recorder.failed("a", "held by x", began=began)
    ended = history.now()
    recorder.ended(first, ended)
    recorder.took("a", "y", 2, began=began, until=began)  # it ends before it begins
    recorder.close()
    found = history.read(tmp_path)
    assert [(each.owner, each.since, each.until) for each in found.holdings] == [("x", first.since, ended)]
    assert found.writes == [Write("r", 0, 1, 1, 1, False, "x", os.getpid())]
    assert [each.reason for each in found.failures] == ["held by x"]


CHILD = """
import os, sys
from handfast.testing.history import Recorder, now
recorder = Recorder(sys.argv[1])
recorder.took("a", "x", 1, began=now(), until=now() + 1000)
os.write(recorder._file, b'{"event": "Hold')
print("took", flush=True)
sys.stdin.read()
"""


def test_history_of_killed_process_ends_with_its_death(tmp_path: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "took\n"
        lasting = history.read(tmp_path).holdings[0].until
        child.send_signal(signal.SIGKILL)
    recorder = Recorder(tmp_path)
    recorder.died(child.pid)
    recorder.close()
    until = history.read(tmp_path).holdings[0].until
    assert until <= history.now() < lasting


def test_concurrent_writers_do_not_mix_lines(tmp_path: Path) -> None:
    import threading

    recorder = Recorder(tmp_path)

    def record() -> None:
        for i in range(200):
            recorder.wrote("r", i, i + 1, token=None, order=None, late=False, owner="x" * 200)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()
    writes: list[Any] = history.read(tmp_path).writes
    assert len(writes) == 800
