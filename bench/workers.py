"""Processes that contend for one lock.

multiprocessing's fork server forks them. It has imported what they need and has neither threads nor connections, so
forking it is safe; it takes 5 ms, where a new interpreter takes 300. Each worker opens its own connection, reports that
it is ready, and waits for orders (see worker.py); it is blocked there between rounds.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing import connection
from multiprocessing.context import ForkServerProcess
from typing import Any, Self

from bench import worker
from bench.measure import STUCK_SECONDS
from bench.worker import Failed, Hold, Turns, WaitingCandidate, Work

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["bench.handoff_floor", "bench.quorum_floor", "bench.waiting_candidates", "handfast", "redis_lock", "pottery"]
)


class WorkersFailed(Exception):
    """A worker process raised (then `trace` says where), died or hung."""

    def __init__(self, reason: str, trace: str = "") -> None:
        super().__init__(" ".join(reason.split())[:300])
        self.trace = trace


class Workers:
    """Some processes of one candidate on one name. `with Workers(...) as workers:` starts and kills them."""

    def __init__(self, candidate: WaitingCandidate, size: int, url: str, name: str) -> None:
        self._size, self._job = size, (candidate, url, name)
        self._pipes: list[connection.Connection[Any, Any]] = []
        self._workers: list[ForkServerProcess] = []

    def _start(self) -> None:
        for _ in range(self._size):
            own, theirs = _processes.Pipe()
            self._pipes.append(own)
            process = _processes.Process(target=worker.run, args=(theirs, *self._job), daemon=True)
            process.start()
            self._workers.append(process)
            theirs.close()
        self.answers()

    def order(self, order: Work | Hold) -> None:
        try:
            for pipe in self._pipes:
                pipe.send(order)
        except OSError:
            raise WorkersFailed("a process died") from None

    def answers(self) -> list[Any]:
        """One answer of each process, as they arrive: the first failure is raised before the others hang."""
        answers, pending, over = [], set(self._pipes), time.monotonic() + STUCK_SECONDS
        while pending:
            ready = connection.wait(pending, max(0.0, over - time.monotonic()))
            if not ready:
                raise WorkersFailed(f"{len(pending)} processes still not done after {STUCK_SECONDS:g} s")
            for pipe in ready:
                assert isinstance(pipe, connection.Connection)
                pending.remove(pipe)
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    raise WorkersFailed("a process died") from None
                if isinstance(answer, Failed):
                    raise WorkersFailed(*answer)
                answers.append(answer)
        return answers

    def work(self, seconds: float, hold: float = 0.0) -> tuple[list[Turns], int]:
        """Runs an order in all processes at once; returns the answers and the time of the end."""
        until = time.monotonic_ns() + int(seconds * 1e9)
        self.order(Work(until, hold))
        return self.answers(), until

    def close(self) -> None:
        """Kills the processes. Between rounds they hold nothing, and after a failure they may not read orders."""
        for process in self._workers:
            process.kill()
        for process in self._workers:
            process.join()
        for pipe in self._pipes:
            pipe.close()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
