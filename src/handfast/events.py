"""What a client reports to those that listen: see `Client.listen`."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Event", "Kind"]

Kind = Literal[
    "acquired",
    "not_acquired",
    "released",
    "renewed",
    "renewal_failed",
    "lost",
    "waiting_began",
    "waiting_ended",
    "node_down",
    "node_up",
    "quarantined",
    "readmitted",
]


class Event(NamedTuple):
    """One thing that happened. Which fields are set depends on `kind`; the others are empty.

    acquired         A thread or task has the lock. `seconds`: since it asked for it.
    not_acquired     An acquisition ended without the lock, at once or after a wait. `seconds`: since it began.
                     `outcome`: the name of the error.
    released         A thread or task gave the lock back. `seconds`: how long it held it. A lease that nobody released and
                     nobody has any more is released by the watchdog: `who` is empty.
    renewed          The servers confirmed a renewal. `seconds`: how long that took.
    renewal_failed   A renewal was not confirmed, and is tried again until the lease ends; not reported again until one
                     succeeds. `seconds`: how long it took. `node`: the nodes that did not confirm. `outcome`: what they
                     said.
    lost             A lease ended before it was released. `seconds`: how long it was held. `outcome`: the reason.
    waiting_began    A thread or task has to wait for a lock.
    waiting_ended    It waits no longer. `seconds`: since it asked for the lock. `outcome`: `acquired`, or the name of the
                     error that ended the wait.
    node_down        A node cannot be connected, or failed while a request was under way. `outcome`: why.
    node_up          A node that was down is connected again. `seconds`: how long it was down.
    quarantined      A node lost its data, or is new: it has no vote for `seconds`.
    readmitted       A node that was quarantined votes again.
    """

    kind: Kind
    name: str = ""
    """The lock's name; several are joined by a comma. Empty for events about a node."""
    who: str = ""
    """The thread or task, for what it did itself."""
    seconds: float = 0.0
    outcome: str = ""
    node: str = ""
    """The node's address, as errors show it; several are joined by a comma."""
    token: int | None = None
    """The fencing token, for events about a lease; None with fence=False."""
