"""What can be given to connect() and to lock(), for type checkers; options.py checks it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from handfast.backoff import Backoff
from handfast.options import OnLost, Seconds

__all__ = ["ClientOptions", "LockOptions", "RareOptions", "Servers"]

Servers = str | Sequence[str] | None
"""A URL, several of them for a quorum, or None for $HANDFAST_URL."""


class RareOptions(TypedDict, total=False):
    """What else can be set on a lock; on a client it is the default of its locks."""

    tries: int | None
    backoff: Backoff
    drift: float
    """Share by which clock rates may differ."""
    node_timeout: Seconds | None
    max_ttl: Seconds
    max_hold: Seconds | None
    """End renewal after this long: for holders that hang."""
    prefix: str
    label: str
    """Shown in the owner."""
    on_lost: OnLost
    """What happens to a body whose lease is lost."""
    replicas: int
    """Replicas that must confirm a grant."""
    durable: bool
    """A grant must be on the server's disk."""
    token_memory: Seconds
    """How long a name's fence counter is kept after the time of its last token."""


class LockOptions(RareOptions, total=False):
    """What can be set on a lock; on a client it is the default of its locks."""

    ttl: Seconds
    """How long the lease lasts on the servers unless renewed."""
    wait: Seconds | None
    """How long to wait for it: None without end, 0 not at all."""
    renew: bool
    """Renewed by the watchdog until released."""
    fence: bool
    """Give each acquisition a token."""
    fair: bool
    """First come, first served, across processes. False: a lock that is found free may be taken before waiters."""
    cohort: int
    """How many times a process may pass the lock on to its own next waiter without asking a server."""


class ClientOptions(LockOptions, total=False):
    """What can be set on a client."""

    guard: bool
    """Keep restarted nodes from voting; the default is on for a quorum, off for one node."""
