"""The timeouts of requests on asyncio. One sweep checks all waiting tasks, because a timer for each would cost more."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from handfast.core.io import SILENT, CappedTimeout, Fault
from handfast.net.aio_protocol import AioLink
from handfast.net.reply_future import ReplyFuture

__all__ = ["RequestTimeouts"]

SWEEP_EVERY: Final = 0.02
"""Seconds between two sweeps, unless a timeout ends sooner."""
QUEUE_TIMEOUTS: Final = 10
"""A request waits for so many more of its timeouts if its nodes are still busy with earlier requests."""


class RequestTimeouts:
    """The part of the connections that ends waits for nodes that do not reply."""

    loop: asyncio.AbstractEventLoop
    links: Sequence[AioLink]

    def __init__(self) -> None:
        self._fresh: list[ReplyFuture] = []
        """The latest futures of this turn, all with the timeout `_timeout`."""
        self._timeout = 0.0
        self._batches: list[tuple[float, list[ReplyFuture]]] = []
        """The earlier futures of this turn, with other timeouts."""
        self._waiting: dict[float, deque[tuple[float, list[ReplyFuture], list[int]]]] = {}
        """Timeout to the waiting futures, turn by turn: when the timeout ends, the futures, and for each node how many
        replies it takes. A timeout counts from the write, not from the call."""
        self._sweeper: asyncio.TimerHandle | None = None

    def down(self, link: AioLink, fault: Fault) -> None:
        raise NotImplementedError

    def _met_silence(self) -> None:
        """Called when a request has timed out."""

    def _use_timeout(self, timeout: float, future: ReplyFuture) -> None:
        """The next future has this timeout. Not called if that is the very object of the future before it."""
        if timeout != self._timeout:
            self._regroup(timeout)
        if type(timeout) is CappedTimeout:
            self.loop.call_later(timeout.most, self._silence, future)

    def _regroup(self, timeout: float) -> None:
        """Begin a new batch: the next futures have this timeout."""
        if self._fresh:
            self._batches.append((self._timeout, self._fresh))
            self._fresh = []
        self._timeout = timeout

    @staticmethod
    def _silence(future: ReplyFuture) -> None:
        if not future.over:
            future.set_result(SILENT)

    def _plan_sweep(self, now: float) -> None:
        """Start the timeouts of the requests that were just written."""
        self._regroup(self._timeout)
        marks = [link.answered + len(link.connection.pending) if link.connection else 0 for link in self.links]
        least = min(timeout for timeout, _ in self._batches)
        for timeout, futures in self._batches:
            self._waiting.setdefault(timeout, deque()).append((now + timeout, futures, marks))
        self._batches.clear()
        if self._sweeper is None or self._sweeper.when() > now + least:
            self._sweep_at(now + min(SWEEP_EVERY, least))

    def _is_over(self, end: float, futures: list[ReplyFuture], marks: list[int], now: float, timeout: float) -> bool:
        """Whether all nodes have answered the requests of a turn, or their timeout is over.

        A node that works through a long queue keeps replying. It is slow, not silent, so it gets more time.
        """
        behind = self._behind(marks)
        if not behind:
            return all(future.over for future in futures) or now >= end
        if now < end:
            return False
        return now >= end + QUEUE_TIMEOUTS * timeout or all(now - link.asked_at > timeout for link in behind)

    def relieve(self) -> None:
        """Forget the turns that all nodes have answered. If they lived on until the sweep, there would be enough of them
        to start the garbage collector."""
        for queue in self._waiting.values():
            while queue and not self._behind(queue[0][2]) and all(future.over for future in queue[0][1]):
                queue.popleft()

    def _behind(self, marks: list[int]) -> list[AioLink]:
        """The links whose nodes have not sent all the replies that `marks` counts."""
        return [link for link, mark in zip(self.links, marks, strict=True) if link.connection and link.answered < mark]

    def _sweep(self) -> None:
        """End the waits whose timeout is over, and close connections whose node hangs."""
        now = self.loop.time()
        for timeout, queue in list(self._waiting.items()):
            while queue and self._is_over(*queue[0], now, timeout):
                in_vain = [future for future in queue.popleft()[1] if not future.over]
                for future in in_vain:
                    future.set_result(SILENT)
                if in_vain:
                    self._met_silence()
            if not queue:
                del self._waiting[timeout]
        for link in self.links:
            fault = link.hangs(now) if link.connection is not None else None
            if fault is not None:
                self.down(link, fault)
        self._sweeper = None
        if self._waiting or any(link.asked_at for link in self.links if link.connection is not None):
            ends = [queue[0][0] for queue in self._waiting.values() if queue[0][0] > now]
            self._sweep_at(min([now + SWEEP_EVERY, *ends]))

    def _end_timeouts(self) -> None:
        """End all waits at closing time: no sweep will run any more."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        batches = [futures for queue in self._waiting.values() for _, futures, _ in queue]
        for futures in (*batches, *(futures for _, futures in self._batches), self._fresh):
            for future in futures:
                self._silence(future)
        self._waiting.clear()

    def _sweep_at(self, when: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = self.loop.call_at(when, self._sweep)
