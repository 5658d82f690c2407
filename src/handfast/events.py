"""What a client can tell of its work to whoever listens: see `Client.listen`."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Event"]


class Event(NamedTuple):
    """Something that happened to one who wants a lock."""

    kind: Literal["waiting_began", "waiting_ended"]
    name: str
    """The lock's name; several are joined by a comma."""
    who: str
    """Which thread or task."""
    seconds: float = 0.0
    """How long it has waited."""
    outcome: str = ""
    """Of a waiting that ended: `acquired`, or the error that ended it."""
