"""The connections of a client with threads: each operation borrows a set, and no two operations share one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sim.io import SimIO
from sim.world import Task

__all__ = ["ConnectionPool"]


class ConnectionPool:
    """The Access of a client with threads. A thread in the local queue borrows nothing."""

    ready = False
    """Nothing can be sent before connections are borrowed."""

    def __init__(self, make: Callable[[], SimIO]) -> None:
        self._make = make
        self.all: list[SimIO] = []
        first = self._new()
        self._idle = [first]
        self.now, self.caller, self.wakeup, self.wait = first.now, first.caller, first.wakeup, first.wait
        self.borrowed: dict[Task | None, SimIO] = {}
        """By task: the connections borrowed for an operation that gets them from the client."""

    def _take(self, wanted: SimIO | None = None) -> SimIO:
        if wanted is not None and wanted in self._idle:
            self._idle.remove(wanted)
            return wanted
        if self._idle:
            return self._idle.pop()
        return self._new()

    def _new(self) -> SimIO:
        made = self._make()
        made.threads = True
        self.all.append(made)
        return made

    def borrow(self) -> SimIO:
        """See Access."""
        return self._take()

    def give_back(self, io: SimIO) -> None:
        self._idle.append(io)

    @contextmanager
    def lend(self, wanted: SimIO | None = None) -> Iterator[SimIO]:
        """Connections for the running task: `wanted`, if no other task uses it."""
        task, io = self.caller(), self._take(wanted)
        self.borrowed[task] = io
        try:
            yield io
        finally:
            del self.borrowed[task]
            self._idle.append(io)
