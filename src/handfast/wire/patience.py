"""How long the tasks of a lane wait for its nodes: kept by one sweep over all of them, not by a timer for each."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from handfast.core.effects import SILENT, Fault
from handfast.wire.pipe import AioLink
from handfast.wire.waiter import Waiter

__all__ = ["Patience"]

SWEEP_EVERY: Final = 0.02
"""Seconds between two looks at who has waited too long, unless somebody's patience ends sooner."""
QUEUE_PATIENCE: Final = 10
"""How many times its patience an exchange waits on for nodes that are busy answering others before it."""


class Patience:
    """The part of a lane that ends vain waiting."""

    loop: asyncio.AbstractEventLoop
    links: Sequence[AioLink]

    def __init__(self) -> None:
        self._fresh: list[Waiter] = []
        """Who began to wait in this turn, all with the same patience."""
        self._patience = 0.0
        self._batches: list[tuple[float, list[Waiter]]] = []
        """Those before them, with another patience."""
        self._waiting: dict[float, deque[tuple[float, list[Waiter], list[int]]]] = {}
        """By patience: who waits, turn by turn. Patience counts from the write, not from the wish to write."""
        self._sweeper: asyncio.TimerHandle | None = None

    def down(self, link: AioLink, fault: Fault) -> None:
        raise NotImplementedError

    def _met_silence(self) -> None:
        """Somebody has waited in vain for a node of this lane."""

    def _regroup(self, patience: float) -> None:
        """Who waits from now on has this patience."""
        if self._fresh:
            self._batches.append((self._patience, self._fresh))
            self._fresh = []
        self._patience = patience

    @staticmethod
    def _silence(waiter: Waiter) -> None:
        if not waiter.over:
            waiter.set_result(SILENT)

    def _plan_sweep(self, now: float) -> None:
        """After a write: those who have sent something with it wait from now on."""
        self._regroup(self._patience)
        marks = [link.answered + len(link.channel.pending) if link.channel else 0 for link in self.links]
        least = min(patience for patience, _ in self._batches)
        for patience, waiters in self._batches:
            self._waiting.setdefault(patience, deque()).append((now + patience, waiters, marks))
        self._batches.clear()
        if self._sweeper is None or self._sweeper.when() > now + least:
            self._sweep_at(now + min(SWEEP_EVERY, least))

    def _is_over(self, end: float, waiters: list[Waiter], marks: list[int], now: float, patience: float) -> bool:
        """All nodes have answered this turn's requests; or patience is over, and no answer is on its way.

        A node that works through a long queue answers all the time: it is slow, not silent, and is given longer.
        """
        behind = self._behind(marks)
        if not behind:
            return all(waiter.over for waiter in waiters) or now >= end
        if now < end:
            return False
        return now >= end + QUEUE_PATIENCE * patience or all(now - link.asked_at > patience for link in behind)

    def relieve(self) -> None:
        """After replies: forget those who have all been answered. They would live on until the sweep, and so many would
        call the garbage collector."""
        for queue in self._waiting.values():
            while queue and not self._behind(queue[0][2]) and all(waiter.over for waiter in queue[0][1]):
                queue.popleft()

    def _behind(self, marks: list[int]) -> list[AioLink]:
        """Who has not answered what was sent up to there."""
        return [link for link, mark in zip(self.links, marks, strict=True) if link.channel and link.answered < mark]

    def _sweep(self) -> None:
        """Wake exchanges whose patience is over; give up connections whose node hangs."""
        now = self.loop.time()
        for patience, queue in list(self._waiting.items()):
            while queue and self._is_over(*queue[0], now, patience):
                in_vain = [waiter for waiter in queue.popleft()[1] if not waiter.over]
                for waiter in in_vain:
                    waiter.set_result(SILENT)
                if in_vain:
                    self._met_silence()
            if not queue:
                del self._waiting[patience]
        for link in self.links:
            fault = link.hangs(now) if link.channel is not None else None
            if fault is not None:
                self.down(link, fault)
        self._sweeper = None
        if self._waiting or any(link.asked_at for link in self.links if link.channel is not None):
            ends = [queue[0][0] for queue in self._waiting.values() if queue[0][0] > now]
            self._sweep_at(min([now + SWEEP_EVERY, *ends]))

    def _lose_patience(self) -> None:
        """For ever: nobody looks after who waits any more, so nobody waits."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        batches = [waiters for queue in self._waiting.values() for _, waiters, _ in queue]
        for waiters in (*batches, *(waiters for _, waiters in self._batches), self._fresh):
            for waiter in waiters:
                self._silence(waiter)
        self._waiting.clear()

    def _sweep_at(self, when: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = self.loop.call_at(when, self._sweep)
