"""The events that a client reports to its listeners: see `Client.listen`."""

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
    """One event. `kind` decides which fields are set; the others are empty.

    acquired         A thread or task has the lock. `seconds`: since its call.
    not_acquired     An acquisition ended without the lock, at once or after a wait. `seconds`: since its call.
                     `outcome`: the name of the error.
    released         A thread or task released the lock. `seconds`: how long it held the lock. The watchdog releases a
                     lease that was dropped: `who` is empty.
    renewed          The servers confirmed a renewal. `seconds`: how long that took.
    renewal_failed   A renewal was not confirmed, and is tried again until the lease ends. Further failures are not
                     reported until a renewal succeeds. `seconds`: how long it took. `node`: the nodes that did not
                     confirm. `outcome`: their answers.
    lost             A lease ended before it was released. `seconds`: how long it was held. `outcome`: the reason.
    waiting_began    A thread or task has to wait for a lock.
    waiting_ended    The wait has ended. `seconds`: since the call. `outcome`: `acquired`, or the name of the error that
                     ended the wait.
    node_down        A node cannot be connected, or failed while a request was under way. `outcome`: the reason.
    node_up          A node that was down is connected again. `seconds`: how long it was down.
    quarantined      A node lost its data, or is new: it has no vote for `seconds`.
    readmitted       A node that was quarantined votes again.

    The fields:

    kind       One of the words above.
    name       The lock's name; several names are joined by commas. Empty for events about a node.
    who        The name of the thread or task that caused the event.
    seconds    A duration, see above.
    outcome    The result or the reason, in words, see above.
    node       The node's address, as errors show it; several addresses are joined by commas.
    token      The fencing token, for events about a lease; None with fence=False.
    """

    kind: Kind
    name: str = ""
    who: str = ""
    seconds: float = 0.0
    outcome: str = ""
    node: str = ""
    token: int | None = None
