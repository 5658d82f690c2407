"""Snapshots of all locks, without slowing the servers down.

Finding names is expensive, because SCAN walks through all keys of a server. Reading known names is cheap. So the reader
searches for names less often, and keeps a name for a while after its lock is free, because a busy lock is soon held
again. After each step the reader pauses for several times as long as the step took.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from handfast.core.guard import server_time
from handfast.core.inspect import pairs
from handfast.core.io import Fault
from handfast.operate.locks import LockInfo, look
from handfast.operate.servers import Deployment, first_fault
from handfast.protocol import commands, keys
from handfast.protocol.claims import decode_claim

__all__ = ["Reader", "Seen", "Snapshot"]

BATCH: Final = 100
"""Names for each round trip: it takes about a millisecond of a server's time at most."""
SOONEST: Final = 0.05
"""The least number of seconds between two readings."""
REST: Final = 2.0
"""The pause after a reading, as a multiple of its duration."""
SCAN_REST: Final = 10.0
"""The pause after a search for names, as a multiple of its duration."""
REMEMBER: Final = 30.0
"""Seconds for which a name is still read after its lock was found free."""
MOST: Final = 50_000
"""The most names that are read."""
MOST_QUEUES: Final = 250
"""The most wait queues that one snapshot reads."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A lock as it was found."""

    info: LockInfo
    at: float
    """When, in seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    at: float
    locks: dict[str, Seen] = field(default_factory=dict)
    """The held locks, by name."""
    waiters: dict[str, dict[str, float]] = field(default_factory=dict)
    """By name and owner: the beginning of its wait, in seconds since the epoch; for some of the locks with waiters."""
    faults: dict[str, str] = field(default_factory=dict)
    """The nodes that did not answer, and why."""
    readable: bool = True
    """A majority has answered. Otherwise nothing is known of any lock."""
    unlisted: int = 0
    """The number of names that were found but not read, because there are too many."""
    seconds: float = 0.0
    """How long it took."""


class Reader:
    """Reads one deployment, in one thread."""

    def __init__(self, deployment: Deployment, interval: float) -> None:
        self._deployment = deployment
        self._interval = max(interval, SOONEST)
        self._names: dict[str, float] = {}
        """Names that are read, and when each was last found held."""
        self._unlisted = 0
        self._scan_at = 0.0
        self.next_at = 0.0
        """When to read again, on the monotonic clock."""

    def read(self) -> Snapshot:
        began = time.monotonic()
        deployment = self._deployment
        deployment.connect()
        if self._readable() and began >= self._scan_at:
            self._find_names()
        looked = time.monotonic()
        locks, complete = self._look()
        waiters = self._queues([name for name, seen in locks.items() if seen.info.waiters])
        ended = time.monotonic()
        self.next_at = max(began + self._interval, ended + REST * (ended - looked))
        return Snapshot(
            time.time(), locks, waiters, deployment.faults, complete and self._readable(), self._unlisted, ended - began
        )

    def _readable(self) -> bool:
        deployment = self._deployment
        return len(deployment.nodes) - len(deployment.faults) >= deployment.need

    def _find_names(self) -> None:
        began, now = time.monotonic(), time.time()
        prefix = self._deployment.prefix
        found: set[str] = set()
        for node in self._deployment.nodes:
            for batch in node.scan(_literal(prefix) + rb"*[}>\]]"):
                found.update(name for key in batch if (name := keys.name_of(prefix, key)) is not None)
        known = self._names
        new = found - known.keys()
        for name in sorted(new)[: max(0, MOST - len(known))]:
            known[name] = now
        self._unlisted = len(found - known.keys())
        ended = time.monotonic()
        self._scan_at = max(began + self._interval, ended + SCAN_REST * (ended - began))

    def _look(self) -> tuple[dict[str, Seen], bool]:
        """The locks that are held, and whether a majority has answered about all of them. A node that fails and returns
        meanwhile must not make locks look free."""
        locks: dict[str, Seen] = {}
        names = list(self._names)
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            infos, now = look(self._deployment, batch), time.time()
            if not self._readable():
                return locks, False
            for name, info in zip(batch, infos, strict=True):
                if info is not None:
                    locks[name] = Seen(info, now)
                    self._names[name] = now
                elif now - self._names[name] > REMEMBER:
                    del self._names[name]
        return locks, True

    def _queues(self, names: Sequence[str]) -> dict[str, dict[str, float]]:
        """The waiters of these locks, and the beginning of each wait."""
        by_key = {keys.key_of(self._deployment.prefix, name, exact=False): name for name in names[:MOST_QUEUES]}
        if not by_key:
            return {}
        said = self._deployment.ask({key: commands.queue(key) for key in by_key}, 2)
        waiters: dict[str, dict[str, float]] = {name: {} for name in by_key.values()}
        for answers in said:
            if isinstance(answers, Fault):
                continue
            for key, name in by_key.items():
                waiters[name] |= _waiting(answers[key])
        return waiters


def _waiting(replies: Sequence[Any]) -> dict[str, float]:
    if first_fault(replies) is not None:
        return {}
    ids, texts, clock = replies
    claims, found = pairs(texts), {}
    ahead = server_time(clock) / 1e6 - time.time()
    for waiter, ticket in pairs(ids).items():
        claim = decode_claim(waiter, ticket, claims.get(waiter))
        if claim is not None:
            found[claim.owner.decode(errors="replace")] = claim.ticket / 1e6 - ahead
    return found


def _literal(prefix: str) -> bytes:
    """A pattern for SCAN that matches this text alone."""
    return b"".join(b"\\%c" % letter if letter in b"*?[]^\\" else b"%c" % letter for letter in prefix.encode())
