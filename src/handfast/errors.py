"""Every error that a caller can get, and its text.

An error answers three questions: who holds the lock, what did each node say, and what can be done. Contention, an outage
and a loss have different types, because they call for different reactions.
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
    """The base class of all errors of handfast.

    Every error can be pickled and copied, with its text, its fields and its notes: process pools and task queues send
    errors from one process to another.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, unpickling calls the class with the text alone. That fails if a class makes the text from fields.
        return _without_init, (type(self), self.args), vars(self)


def _without_init(kind: type[HandfastError], args: tuple[Any, ...]) -> HandfastError:
    """Make an error without calling `__init__`. Unpickling sets the fields afterwards."""
    return kind.__new__(kind, *args)


class ConfigError(HandfastError, ValueError):
    """The arguments or the servers cannot work as configured. No lock was acquired."""


class NotAcquired(HandfastError):
    """The lock was not acquired (or, by `extend`, not extended). No key of the attempt outlives its ttl."""

    def __init__(self, message: str, *, name: str, nodes: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.name = name
        self.nodes: Mapping[str, str] = dict(nodes or {})
        """The answer of each node, by its address."""


class Contended(NotAcquired):
    """Another owner holds the lock."""

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
        """Seconds until the holder's key expires unless it is renewed; None if it has no ttl, or if that is not known."""
        if holder is None:
            text = f"{name}: another caller was ahead, and may have released it by now; try again, or pass a longer wait="
        else:
            text = f"{name}: held by {holder}"
            if remaining is not None:
                text += f", for another {remaining:.1f} s unless renewed"
            else:
                text += ", on a key without a ttl; if that holder is gone, delete the key"
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
    """The lease ended before it was released. Stop working on the resource that it protected."""

    def __init__(self, name: str, *, owner: str, token: int | None, reason: str) -> None:
        self.name = name
        self.owner = owner
        self.token = token
        self.reason = reason
        fence = "" if token is None else f", token {token}"
        super().__init__(f"{name}: lease lost ({reason}); owner {owner}{fence}")


class StaleToken(HandfastError):
    """A resource has already seen a larger token: this write comes from a holder whose lease has ended."""

    def __init__(self, resource: str, *, token: int, seen: int) -> None:
        self.resource = resource
        self.token = token
        self.seen = seen
        super().__init__(f"{resource}: token {token} is stale, {seen} was seen; nothing was changed")
