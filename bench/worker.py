"""One of the processes that contend for one lock. It runs the orders that arrive over a pipe.

It does not outlive the bench. While it waits for orders, it ends with the pipe; while it hangs in a library's
acquire(), its own alarm ends it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import signal
import sys
import time
import traceback
from array import array
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, NamedTuple

from bench.measure import STUCK_SECONDS

Taking = tuple[Callable[[], Any], Callable[[Any], None]]
"""take() waits for the lock and returns the argument of give(), which releases it; both raise if they fail."""


@dataclass(frozen=True)
class WaitingCandidate:
    """One program that contends for a lock. `open` gets a URL and the lock's name; it is pickled by its own name."""

    what: str
    open: Callable[[str, str], AbstractContextManager[Taking]]
    peer: bool = True


class Work(NamedTuple):
    """Take the lock again and again, at least once, until the monotonic clock says `until` (ns)."""

    until: int
    hold: float


@dataclass(frozen=True)
class Hold:
    """Take the lock, and keep it until the process ends."""


class Turns(NamedTuple):
    """What one process did: when it began, when it had the lock, and when it was about to release it (all ns)."""

    began: int
    got: array[int]
    gave: array[int]


class Failed(NamedTuple):
    reason: str
    trace: str


def run(pipe: connection.Connection[Any, Any], candidate: WaitingCandidate, url: str, name: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the bench, which kills its workers.
    logging.disable()
    sys.stdout = sys.stderr  # Standard output may carry the bench's JSON.
    kept: list[Any] = []  # The reference keeps the lease: a dropped lease is released.
    try:
        _arm()
        with candidate.open(url, name) as taking:
            gc.freeze()
            pipe.send("ready")
            while order := _next_order(pipe):
                if isinstance(order, Work):
                    pipe.send(_work(order, *taking))
                else:
                    kept.append(taking[0]())
                    pipe.send("held")
    except Exception as error:
        with contextlib.suppress(OSError):  # The bench may have ended.
            pipe.send(Failed(f"{type(error).__name__}: {error}", traceback.format_exc()))


def _next_order(pipe: connection.Connection[Any, Any]) -> Work | Hold | None:
    signal.alarm(0)
    try:
        order: Work | Hold = pipe.recv()
    except EOFError:
        return None
    _arm()
    return order


def _arm() -> None:
    """Sets the alarm later than the bench's own time limit, so that it strikes only after the bench has ended."""
    signal.alarm(int(STUCK_SECONDS) + 2)


def _work(order: Work, take: Callable[[], Any], give: Callable[[Any], None]) -> Turns:
    clock, until, hold = time.monotonic_ns, order.until, order.hold
    got, gave = array("q"), array("q")
    began = now = clock()
    while now < until or not got:
        held = take()
        got.append(clock())
        if hold:
            time.sleep(hold)
        now = clock()
        gave.append(now)
        give(held)
    return Turns(began, got, gave)
