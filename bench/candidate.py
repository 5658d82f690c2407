"""What floors, handfast and peers look like to the measurement.

A candidate opens its connections to some nodes and yields a `Session`. A session takes the name of a lock and
returns a function that does one acquire + release pair on it, or raises. The session prepares what a candidate
can prepare once per name (request bytes, a lock object that is meant to be reused), outside the timed part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass

TTL = 10.0
"""Seconds; the same for every candidate."""

TTL_MS = int(TTL * 1000)

Urls = Sequence[str]
Pair = Callable[[], None]
Session = Callable[[str], Pair]
AsyncPair = Callable[[], Awaitable[None]]
AsyncSession = Callable[[str], AsyncPair]


class PairFailed(Exception):
    """An uncontended lock was refused, or was gone at its release: the candidate does not work here."""


@dataclass(frozen=True)
class Candidate:
    """One program in one case. `nodes` are the numbers of nodes that it supports."""

    what: str
    open: Callable[[Urls], AbstractContextManager[Session]]
    nodes: tuple[int, ...] = (1, 5)


@dataclass(frozen=True)
class AsyncCandidate:
    what: str
    open: Callable[[Urls], AbstractAsyncContextManager[AsyncSession]]
    nodes: tuple[int, ...] = (1, 5)
    tasks: int = 1000


def address(url: str) -> tuple[str, int]:
    """Host and port of a URL `redis://host:port`, the form that the bench's servers have."""
    host, _, port = url.removeprefix("redis://").rpartition(":")
    return host, int(port)
