"""Thousands of turns of several processes, and a checker that reads what all of them wrote down.

Nobody overlaps, tokens grow, and every process has about as many turns as the others. `HANDFAST_LONG=1` makes the
histories long.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

import handfast
from handfast.testing import Server, available, history
from handfast.testing.proxy import Proxy
from tests.conftest import KINDS
from tests.support.eventually import eventually
from tests.support.queues import no_lock_state_left

LONG: Final = bool(os.environ.get("HANDFAST_LONG"))
TURNS: Final = 5000 if LONG else 200
WITHIN: Final = 300.0 if LONG else 30.0
"""Seconds for so many turns. Nothing depends on the pace."""
ROOT: Final = Path(__file__).parents[2]
PROCESSES: Final = 4
TTL: Final = 8.0
STALL: Final = 4.0
"""Seconds for which nobody may hold the lock. A wake-up that is lost costs five, and a busy machine less."""

_WORKER: Final = """
import json, os, select, sys
import handfast
from handfast.testing import history

folder, urls, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
recorder = history.Recorder(folder)
with handfast.connect(urls, **options) as client:
    lock = client.lock("a")
    print("ready", flush=True)
    sys.stdin.readline()
    while not select.select([0], [], [], 0)[0]:
        began = history.now()
        try:
            lease = lock.acquire(wait=10)
        except handfast.NotAcquired as error:
            recorder.failed("a", str(error), began=began)
            continue
        holding = recorder.took("a", lease.owner, lease.token, began=began, until=history.now() + lease.remaining())
        recorder.ended(holding, min(history.now(), history.now() + lease.remaining()))
        lease.release()
"""


class Workers:
    """Processes that acquire and release without a pause, and write down when they held the lock."""

    def __init__(self, folder: Path, urls: Any, **options: Any) -> None:
        self._folder = folder
        self._processes = [
            subprocess.Popen(
                [sys.executable, "-c", _WORKER, str(folder), json.dumps(urls), json.dumps(options)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for _ in range(PROCESSES)
        ]
        for process in self._processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        for process in self._processes:
            self._say(process)

    def _say(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()

    def turns(self) -> Counter[str]:
        """By process."""
        found = {path.name: path.read_text().count('"over": true') for path in self._folder.glob("*.history")}
        return Counter(found)

    def take_turns(self, count: int, each: int = 1) -> None:
        """Wait until there were so many more turns, and each process had so many of them."""
        before, end = self.turns(), time.monotonic() + WITHIN
        while True:
            new = self.turns() - before
            if new.total() >= count and sum(turns >= each for turns in new.values()) == PROCESSES:
                return
            assert time.monotonic() < end, f"not {count} turns, {each} of each process, but {new}"
            time.sleep(0.05)

    def end(self) -> history.History:
        for process in self._processes:
            self._say(process)
        for process in self._processes:
            assert process.wait(timeout=20) == 0
        return history.read(self._folder)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


def check(found: history.History, began: float, ended: float) -> None:
    assert found.violations() == []
    assert found.failures == []
    assert found.idle("a", began, ended) < STALL


def jain(turns: Counter[str]) -> float:
    """Jain's index of the turns: 1.0 if all processes have equally many."""
    return turns.total() ** 2 / (PROCESSES * sum(count**2 for count in turns.values()))


def take_equal_turns(workers: Workers) -> None:
    """In one of five times, all processes have about as many turns. A busy machine may keep one of them from running;
    a queue that is not fair is unfair each time."""
    found = [0.0]
    while found[-1] <= 0.95:
        assert len(found) <= 5, f"not equally many turns: {found}"
        before = workers.turns()
        workers.take_turns(TURNS)
        found.append(jain(workers.turns() - before))


@pytest.mark.slow
def test_history_on_one_node(server: Server, tmp_path: Path) -> None:
    with Workers(tmp_path, server.url, ttl=TTL) as workers:
        workers.take_turns(20)
        began = history.now()
        take_equal_turns(workers)
        ended = history.now()
        found = workers.end()
    check(found, began, ended)
    assert no_lock_state_left(server)


@contextmanager
def five_nodes() -> Iterator[list[Server]]:
    """Five nodes that are open for votes, of all kinds."""
    binaries = [available()[kind] for kind in KINDS if kind in available()]
    with ExitStack() as stack:
        nodes = [stack.enter_context(Server(binaries[number % len(binaries)])) for number in range(5)]
        with handfast.connect([node.url for node in nodes], node_timeout=5.0, max_ttl=TTL) as client:
            handfast.bootstrap(client)
        yield nodes


def test_history_on_five_nodes(tmp_path: Path) -> None:
    with five_nodes() as nodes:
        with Workers(tmp_path, [node.url for node in nodes], ttl=TTL, max_ttl=TTL, node_timeout=0.5) as workers:
            workers.take_turns(20)
            began = history.now()
            take_equal_turns(workers)
            ended = history.now()
            found = workers.end()
        check(found, began, ended)
        eventually(lambda: no_lock_state_left(*nodes), within=TTL + 2)


def _restart_empty(node: Server, proxy: Proxy) -> None:
    node.restart(empty=True)


def _kill(node: Server, proxy: Proxy) -> None:
    node.kill()


def _black_hole(node: Server, proxy: Proxy) -> None:
    proxy.drop()


NODE_FAULTS: Final[dict[str, Callable[[Server, Proxy], None]]] = {
    "killed": _kill,
    "restarted empty": _restart_empty,
    "black-holed": _black_hole,
}


@pytest.mark.parametrize("fault", NODE_FAULTS)
def test_history_with_faulty_nodes_in_the_middle_of_hand_overs(fault: str, tmp_path: Path) -> None:
    """One node after the other fails, two at once at most. The turns go on, and nothing is wrong with them."""
    with five_nodes() as nodes, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node)) for node in nodes]
        options: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "node_timeout": 0.5}
        with Workers(tmp_path, [proxy.url for proxy in proxies], **options) as workers:
            workers.take_turns(20)
            began = history.now()
            # A release waits for the node that keeps silent, if that had one of the hold's three votes. So a process can
            # miss many turns of the others, but no longer than the timeout.
            for number in range(2):
                NODE_FAULTS[fault](nodes[number], proxies[number])
                workers.take_turns(TURNS // 2, each=4)
            if fault == "black-holed":
                for proxy in proxies[:2]:
                    proxy.heal()
                workers.take_turns(TURNS // 2, each=4)
            ended = history.now()
            found = workers.end()
        check(found, began, ended)
        tokens = [each.token for each in found.holdings]
        assert tokens == sorted(tokens, key=lambda token: token or 0)
        eventually(lambda: no_lock_state_left(*nodes[2:]), within=TTL + 2)
