"""`python -m bench.spinning`: what spinning before sleeping (handfast/net/spinning.py) gains, and what it costs others.

Each row is measured with and without spinning, in turns, on one server. The first row is a pair: an acquire and a release
by one thread. The second row is the work of a thread that computes while another thread of its process acquires a lock
again and again. The third row is the hand-overs of one lock among eight processes.
"""

from __future__ import annotations

import contextlib
import select
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
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


def handed_over(url: str, on: bool) -> float:
    """Hand-overs per second among eight processes."""
    candidate = WaitingCandidate("handfast", partial(one_of_eight, on=on), peer=False)
    with Workers(candidate, 8, url, f"bench:spinning:{on}") as workers:
        workers.work(0.1, 0.0)
        return Round.of(*workers.work(SECONDS, 0.0)).handoffs / SECONDS


def in_turns(measure: Callable[[bool], float]) -> tuple[float, float]:
    """The medians without and with spinning."""
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


def main() -> int:
    with servers.running(1) as running:
        print(f"{'':36}{'sleeps':>12}{'spins':>12}{'ratio':>8}")
        for name, without, with_it in rows(running.urls):
            print(f"{name:36}{without:12,.0f}{with_it:12,.0f}{with_it / without:8.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
