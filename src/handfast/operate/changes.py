"""The changes between two readings of the locks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from handfast.operate.locks import LockInfo, audit, held
from handfast.operate.servers import Deployment

__all__ = ["Change", "Watcher"]

Kind = Literal[
    "held", "acquired", "released", "handed over", "waiting", "minority", "broken", "node down", "node up"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Change:
    """One change. Which fields are set depends on `kind`. `held`: the lock was held at the first reading."""

    at: float
    """When it was seen, in seconds since the epoch, by this machine's clock."""
    kind: Kind
    name: str = ""
    owner: str = ""
    token: int | None = None
    waiters: int = 0
    node: str = ""
    text: str = ""
    """The same for people."""


class Watcher:
    """Remembers the holder of each lock: some hundred bytes per lock."""

    def __init__(self, deployment: Deployment, pattern: str = "*") -> None:
        self._deployment = deployment
        self._pattern = pattern
        self._known: dict[str, tuple[str, int | None, int, str]] = {}
        """By name: owner, token, waiters, state."""
        self._faults: dict[str, str] = {}
        self._audited: set[str] | None = None
        self._first = True

    def look(self) -> Iterator[Change]:
        """The changes since the last call. An unreachable deployment is a change too."""
        now = time.time()
        seen: dict[str, tuple[str, int | None, int, str]] = {}
        try:
            for info in held(self._deployment, self._pattern):
                seen[info.name] = (info.owner.text, info.token, info.waiters, info.state)
                yield from self._compare(now, info)
        except ConnectionError:
            yield from self._nodes(now)
            return
        yield from self._nodes(now)
        # While too many nodes are down, a lock that is not seen may still be held.
        if self._deployment.sees_all:
            for name, (owner, token, _, _) in self._known.items():
                if name not in seen:
                    yield Change(now, "released", name, owner, token, text=_who(owner, token))
            self._known = seen
        else:
            self._known |= seen
        self._first = False
        yield from self._breaks(now)

    def _compare(self, now: float, info: LockInfo) -> Iterator[Change]:
        owner, token = info.owner.text, info.token
        known = self._known.get(info.name)
        if known is None or (known[0], known[1]) != (owner, token):
            kind: Kind = "held" if self._first else "acquired" if known is None else "handed over"
            yield Change(now, kind, info.name, owner, token, info.waiters, text=_who(info.owner.short, token))
        if info.waiters != (0 if known is None else known[2]):
            yield Change(now, "waiting", info.name, owner, token, info.waiters, text=str(info.waiters))
        if info.state == "minority" and (known is None or known[3] != "minority"):
            yield Change(now, "minority", info.name, owner, token, text="nobody has the votes of a majority")

    def _nodes(self, now: float) -> Iterator[Change]:
        faults = self._deployment.faults
        for label in self._faults.keys() - faults.keys():
            yield Change(now, "node up", node=label)
        for label in faults.keys() - self._faults.keys():
            yield Change(now, "node down", node=label, text=faults[label])
        self._faults = faults

    def _breaks(self, now: float) -> Iterator[Change]:
        lines = audit(self._deployment)
        known, self._audited = self._audited, {line.id for line in lines}
        if known is None:
            return
        for line in reversed(lines):
            if line.id not in known:
                text = f"taken from {line.owner.short} by {line.by}" + (f": {line.reason}" if line.reason else "")
                yield Change(now, "broken", line.name, line.owner.text, line.token, text=text)


def _who(owner: str, token: int | None) -> str:
    from handfast.operate.locks import parse_owner

    return parse_owner(owner).short + ("" if token is None else f"  token {token}")
