"""`python -m bench.spinning`: what two ways to wait gain, and what they cost others.

Each row is measured with and without, in turns, on one server. The first three rows are of spinning before sleeping
(handfast/net/spinning.py). A pair is an acquire and a release by one thread. The next row is the work of a thread that
computes while another thread of its process acquires a lock again and again. The third row is the hand-overs of one lock
among eight processes. The other rows are of stepping aside (handfast/net/step_aside.py): the hand-overs among eight
processes on one CPU, alone and beside a process that computes there.
"""

from __future__ import annotations

import contextlib
import os
import select
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import handfast
from bench import servers
from bench.candidate import Urls
from bench.handoff_figures import Round
from bench.measure import sync_round
from bench.waiting_candidates import handfast_lock
from bench.worker import Taking, WaitingCandidate
from bench.workers import Workers
from handfast.net.spinning import Spinner
from handfast.net.step_aside import StepAside

ROUNDS = 7
SECONDS = 1.0
PAIRS = 1000


def _sleep(_: Spinner, poller: select.poll, seconds: float) -> list[tuple[int, int]]:
    return poller.poll(seconds * 1000)


@contextlib.contextmanager
def spinning(on: bool) -> Iterator[None]:
    with contextlib.nullcontext() if on else mock.patch.object(Spinner, "poll", _sleep):
        yield


@contextlib.contextmanager
def one_of_eight(url: str, name: str, on: bool) -> Iterator[Taking]:
    with spinning(on), handfast_lock(url, name, {}, None) as taking:
        yield taking


def pair(url: str) -> float:
    """Microseconds per pair."""
    with handfast.connect(url) as client:

        def once() -> None:
            with client.lock("bench:spinning"):
                pass

        sync_round(once, 100)
        return sync_round(once, PAIRS).p50_us


def computed(url: str) -> float:
    """Steps per second of a thread that computes."""
    over = threading.Event()

    def lock() -> None:
        with handfast.connect(url) as client:
            while not over.is_set():
                with client.lock("bench:spinning"):
                    pass

    thread = threading.Thread(target=lock)
    thread.start()
    end, steps = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        steps += sum(range(200)) > 0
    over.set()
    thread.join()
    return steps / SECONDS


def _keep_the_cpu(_: StepAside) -> None: ...


@contextlib.contextmanager
def one_of_eight_on_one_cpu(url: str, name: str, on: bool) -> Iterator[Taking]:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    aside = contextlib.nullcontext() if on else mock.patch.object(StepAside, "once", _keep_the_cpu)
    with aside, handfast_lock(url, name, {}, None) as taking:
        yield taking


@contextlib.contextmanager
def computing() -> Iterator[None]:
    """A process that computes on the CPU that the eight processes share."""
    loop = f"import os\nos.sched_setaffinity(0, {{{max(os.sched_getaffinity(0))}}})\nwhile True: pass"
    process = subprocess.Popen([sys.executable, "-c", loop])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def handed_over(url: str, on: bool, opened: Callable[..., Any] = one_of_eight) -> float:
    """Hand-overs per second among eight processes."""
    candidate = WaitingCandidate("handfast", partial(opened, on=on), peer=False)
    with Workers(candidate, 8, url, f"bench:spinning:{on}") as workers:
        workers.work(0.1, 0.0)
        return Round.of(*workers.work(SECONDS, 0.0)).handoffs / SECONDS


def in_turns(measure: Callable[[bool], float]) -> tuple[float, float]:
    """The medians without and with."""
    figures: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(ROUNDS):
        for on in figures:
            figures[on].append(measure(on))
    return statistics.median(figures[False]), statistics.median(figures[True])


def _with(what: Callable[[str], float], url: str) -> Callable[[bool], float]:
    def measure(on: bool) -> float:
        with spinning(on):
            return what(url)

    return measure


def rows(urls: Urls) -> Iterator[tuple[str, float, float]]:
    yield "a pair, µs", *in_turns(_with(pair, urls[0]))
    yield "steps/s of a thread that computes", *in_turns(_with(computed, urls[0]))
    yield "hand-overs/s of eight processes", *in_turns(partial(handed_over, urls[0]))
    on_one_cpu = partial(handed_over, urls[0], opened=one_of_eight_on_one_cpu)
    yield "the same on one CPU, stepping aside", *in_turns(on_one_cpu)
    with computing():
        yield "the same beside one that computes", *in_turns(on_one_cpu)


def main() -> int:
    with servers.running(1) as running:
        print(f"{'':36}{'without':>12}{'with':>12}{'ratio':>8}")
        for name, without, with_it in rows(running.urls):
            print(f"{name:36}{without:12,.0f}{with_it:12,.0f}{with_it / without:8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
