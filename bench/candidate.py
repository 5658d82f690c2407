"""What floors, handfast and peers look like to the measurement.

A candidate opens its connections to some nodes and yields a `Session`: given a lock's name, a session
returns the function that does one acquire + release pair on it, or raises. What a candidate can prepare
once per name (request bytes, a lock object meant to be reused) it prepares in the session, outside the
timed part.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass

TTL = 10.0
"""Seconds; every candidate asks for the same."""

TTL_MS = int(TTL * 1000)

Urls = Sequence[str]
Pair = Callable[[], None]
Session = Callable[[str], Pair]
AsyncPair = Callable[[], Awaitable[None]]
AsyncSession = Callable[[str], AsyncPair]


class PairFailed(Exception):
    """A lock nobody else wants was refused, or was gone at its release: the candidate does not work here."""


@dataclass(frozen=True)
class Candidate:
    """One program in one case. `nodes` are the numbers of nodes it can be asked for."""

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
    """`redis://host:port`, as the bench's own servers write it."""
    host, _, port = url.removeprefix("redis://").rpartition(":")
    return host, int(port)
