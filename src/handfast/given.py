"""What can be given to connect() and to lock(), for type checkers; options.py checks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypedDict, TypeVar

from handfast.backoff import Backoff
from handfast.options import OnLost, Seconds

__all__ = ["CLIENT_OPTIONS", "LOCK_OPTIONS", "ClientOptions", "LockOptions", "RareOptions", "Servers", "explain_options"]

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


LOCK_OPTIONS: Final = """\
ttl: Seconds that the lease lasts on the servers unless it is renewed, 10 by default. After a crash the lock is free that
    much later. Durations may also be timedeltas.
wait: Seconds to wait for a lock that is held, 0: not at all, None: without end (the default). Servers that do not
    answer are waited for as long, but at most 5 s with None.
renew: The watchdog renews the lease until it is released, True by default. With False the lease ends after its ttl.
fence: Each acquisition gets a token that is larger than all before it, True by default. See docs/fencing.md.
fair: First come, first served, across processes, True by default. With False an attempt that finds the lock free takes
    it though others wait.
cohort: How many times in a row a process may hand the lock over to its own next waiter without asking a server, for at
    most one ttl; 0 by default. Then waiters of other processes come first.
tries: The most attempts to acquire it, with pauses as `backoff` says; None: no limit but `wait` (the default). With it
    the caller does not queue.
backoff: A handfast.backoff.Backoff, the pauses between attempts where nobody can queue.
drift: Share by which the clocks of this machine and the servers may differ in speed, 0.01 by default. Validity is
    shortened by it.
node_timeout: Seconds to wait for the answer of one server. By default it follows from the ttl.
max_ttl: The longest ttl that any client of this prefix may use, 30 by default. A server that has lost its data has no
    vote for as long, so all clients must have the same.
max_hold: Seconds after which the lease is no longer renewed, for holders that may hang; None: no limit (the default).
prefix: What the keys begin with, "handfast:" by default. With "" and fence=False the key is the name itself, as other
    libraries have it.
label: A word that is shown in the owner, for people who look at the servers.
on_lost: What happens to the body of a `with` whose lease is lost. "cancel" (the default): asyncio cancels it, a thread
    goes on. "event": it goes on. "interrupt": LeaseLost is raised in the thread, as soon as it runs Python code. A
    callable is called with the LeaseLost. The end of the block raises LeaseLost in any case.
replicas: How many replicas must have the key before a grant or renewal counts, 0 by default.
durable: A grant or renewal counts only if the server has it on disk (appendonly), False by default.
token_memory: Seconds for which the servers keep a name's token counter after the time of its last token, a week by
    default.
"""
"""What each option of a lock means, for `help()`."""
CLIENT_OPTIONS: Final = (
    """\
guard: A server that has lost its data, or is new, has no vote until every lease that it may have forgotten has ended.
    On by default for a quorum, off for one server.
"""
    + LOCK_OPTIONS
)
F = TypeVar("F", bound=Callable[..., Any])


def explain_options(options: str) -> Callable[[F], F]:
    """Append the meaning of the options to a function's docstring."""

    def decorate(function: F) -> F:
        # Both parts are indented alike, as help() expects; newer versions of Python indent nothing.
        doc, _, indent = (function.__doc__ or "").rpartition("\n")
        function.__doc__ = "\n".join([doc, *[indent + line for line in options.splitlines()]])
        return function

    return decorate
