"""The arguments of connect() and lock(), for type checkers and for help(). options.py checks their values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypedDict, TypeVar

from handfast.backoff import Backoff
from handfast.options import OnLost, Seconds

__all__ = ["CLIENT_OPTIONS", "LOCK_OPTIONS", "ClientOptions", "LockOptions", "RareOptions", "Servers", "explain_options"]

Servers = str | Sequence[str] | None
"""A URL, several URLs for a quorum, or None for $HANDFAST_URL."""


class RareOptions(TypedDict, total=False):
    """The less common options of a lock. On a client they are the defaults of its locks."""

    tries: int | None
    backoff: Backoff
    drift: float
    """The share by which clock rates may differ."""
    node_timeout: Seconds | None
    max_ttl: Seconds
    max_hold: Seconds | None
    """When to stop renewing, for holders that may hang."""
    prefix: str
    label: str
    """A word that is part of the owner."""
    on_lost: OnLost
    """What happens to a body whose lease is lost."""
    replicas: int
    """The number of replicas that must confirm a grant."""
    durable: bool
    """Whether a grant must be on the server's disk."""
    token_memory: Seconds
    """How long a name's fence counter is kept after the time of its last token."""


class LockOptions(RareOptions, total=False):
    """The options of a lock. On a client they are the defaults of its locks."""

    ttl: Seconds
    """How long the lease lasts on the servers unless it is renewed."""
    wait: Seconds | None
    """How long to wait for the lock; None: without end; 0: not at all."""
    renew: bool
    """Whether the watchdog renews the lease until it is released."""
    fence: bool
    """Whether each acquisition gets a token."""
    fair: bool
    """First come, first served, across processes. With False, an attempt may take a free lock before the waiters."""
    cohort: int
    """How many times in a row a process may hand the lock over to its own next waiter without contacting a server."""


class ClientOptions(LockOptions, total=False):
    """The options of a client."""

    guard: bool
    """Whether restarted nodes are kept from voting. By default on for a quorum, and off for one node."""


LOCK_OPTIONS: Final = """\
ttl: Seconds that the lease lasts on the servers unless it is renewed, 10 by default. If the holder crashes, the lock is
    free after this time. Durations may also be timedeltas.
wait: Seconds to wait for a lock that is held; 0: not at all; None: without end (the default). If no majority of the
    servers answers, the wait is as long, but at most 5 s with None.
renew: The watchdog renews the lease until it is released, True by default. With False the lease ends after its ttl.
fence: Each acquisition gets a token that is larger than all earlier tokens, True by default. See docs/fencing.md.
fair: First come, first served, across processes, True by default. With False, an attempt takes a free lock even if
    there are waiters.
cohort: How many times in a row a process may hand the lock over to its own next waiter without contacting a server, for
    at most one ttl; 0 by default. Afterwards the waiters of other processes come first.
tries: The maximum number of attempts, with pauses as `backoff` says; None: no limit but `wait` (the default). A caller
    with a limit does not queue.
backoff: A handfast.backoff.Backoff: the pauses between attempts if the caller does not queue.
drift: Share by which the clocks of this machine and the servers may differ in speed, 0.01 by default. Validity is
    shortened by it.
node_timeout: Seconds to wait for the answer of one server. By default it follows from the ttl.
max_ttl: The longest ttl that any client of this prefix may use, 30 by default. A server that has lost its data has no
    vote for this time, so all clients must have the same value.
max_hold: Seconds after which the lease is no longer renewed, for holders that may hang; None: no limit (the default).
prefix: The beginning of all keys, "handfast:" by default. With "" and fence=False the key is the name itself, as in
    other libraries.
label: A word that is shown in the owner, for people who look at the servers.
on_lost: What happens to the body of a `with` whose lease is lost. "cancel" (the default): asyncio cancels it, a thread
    goes on. "event": it goes on. "interrupt": LeaseLost is raised in the thread, as soon as it runs Python code. A
    callable is called with the LeaseLost. The end of the block raises LeaseLost in any case.
replicas: How many replicas must have the key before a grant or renewal counts, 0 by default.
durable: A grant or renewal counts only if the server has it on disk (appendonly), False by default.
token_memory: Seconds for which the servers keep a name's token counter after the time of its last token, a week by
    default. It must be the same on all clients of a name.
"""
"""The meaning of each option of a lock, for `help()`."""
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
        # help() expects equal indentation of both parts. From Python 3.13 on, docstrings are not indented.
        doc, _, indent = (function.__doc__ or "").rpartition("\n")
        function.__doc__ = "\n".join([doc, *[indent + line for line in options.splitlines()]])
        return function

    return decorate
