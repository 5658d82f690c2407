"""Processes that all want one lock.

They are forked by multiprocessing's fork server. It has imported what they need and has neither threads nor
connections, so a fork of it is safe, and takes 5 ms where a new interpreter takes 300. Each opens its own
connection, says that it is ready and then waits for orders (see worker.py); between rounds it is blocked there.
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
    """So many processes of one candidate on one name. `with Workers(...) as workers:` starts them, and kills them."""

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
        """One of each process, as they come: the first to fail says why before the others hang."""
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
        """All of them at once; and when it was over."""
        until = time.monotonic_ns() + int(seconds * 1e9)
        self.order(Work(until, hold))
        return self.answers(), until

    def close(self) -> None:
        """Killed, not asked: between rounds they hold nothing, and after a failure they may not listen."""
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
