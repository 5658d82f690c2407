"""Every error a caller can meet, and the sentence it says.

An error here answers three questions: who holds the lock, what did each node say, what can be done. Contention, an
outage and a loss are three different types, because they call for three different reactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = [
    "ConfigError",
    "Contended",
    "HandfastError",
    "LeaseLost",
    "NoQuorum",
    "NotAcquired",
    "StaleToken",
]


class HandfastError(Exception):
    """The root of everything that handfast raises on purpose.

    Every error can be pickled and copied, with its text, its fields and its notes: process pools and task queues send
    errors from one process to another.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # The default calls the class with the text alone, which fails for classes that make the text from fields.
        return _without_init, (type(self), self.args), vars(self)


def _without_init(kind: type[HandfastError], args: tuple[Any, ...]) -> HandfastError:
    """The first half of unpickling; the fields follow."""
    return kind.__new__(kind, *args)


class ConfigError(HandfastError, ValueError):
    """The caller asked for what cannot work, or its servers are not what it says they are; no lock was tried."""


class NotAcquired(HandfastError):
    """The lock was not taken (or, by `extend`, not extended); no key of the attempt is left beyond its ttl."""

    def __init__(self, message: str, *, name: str, nodes: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.nodes: Mapping[str, str] = dict(nodes or {})
        """What each node answered, by its address."""


class Contended(NotAcquired):
    """Somebody else holds the lock."""

    def __init__(
        self,
        name: str,
        *,
        holder: str | None,
        remaining: float | None,
        nodes: Mapping[str, str] | None = None,
    ) -> None:
        self.holder = holder
        self.remaining = remaining
        """Seconds until the holder's key ends if it is not renewed; None where it has no end or is not known."""
        if holder is None:
            text = f"{name}: another caller was ahead, and may have released it by now; try again, or pass a longer wait="
        else:
            text = f"{name}: held by {holder}"
            if remaining is not None:
                text += f", for another {remaining:.1f} s unless renewed"
            else:
                text += ", with no end set on its key"
        super().__init__(text, name=name, nodes=nodes)


class NoQuorum(NotAcquired):
    """Too few nodes could vote: an outage, not contention."""

    def __init__(
        self, name: str, *, granted: int, needed: int, nodes: Mapping[str, str], total: int, hint: str = ""
    ) -> None:
        self.granted = granted
        self.needed = needed
        self.total = total
        reasons = "; ".join(f"{node}: {said}" for node, said in nodes.items())
        plural = "node" if total == 1 else "nodes"
        super().__init__(
            f"{name}: {granted} of {total} {plural} granted, {needed} needed ({reasons}){hint and '; '}{hint}",
            name=name,
            nodes=nodes,
        )


class LeaseLost(HandfastError):
    """The lease ended before it was released: stop working on what it protected."""

    def __init__(self, name: str, *, owner: str, token: int | None, reason: str) -> None:
        self.name = name
        self.owner = owner
        self.token = token
        self.reason = reason
        fence = "" if token is None else f", token {token}"
        super().__init__(f"{name}: lease lost ({reason}); owner {owner}{fence}")


class StaleToken(HandfastError):
    """A resource has already seen a larger token: this write comes from a holder whose lease is over."""

    def __init__(self, resource: str, *, token: int, seen: int) -> None:
        self.resource = resource
        self.token = token
        self.seen = seen
        super().__init__(f"{resource}: token {token} is stale, {seen} was seen; nothing was changed")
