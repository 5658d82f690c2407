"""The state of one acquisition.

    HELD ──release──> RELEASING ──> RELEASED
     └──deadline, or a majority says "not yours"──> LOST

RELEASED and LOST are final: nothing is sent for them afterwards, even if the key is still there. `TRANSITIONS` is the
whole truth. The caller's thread and the watchdog's may want to leave HELD at the same moment, one to release and one to
declare a loss: there is one ticket to leave with, and taking it from a list is atomic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast.core.commands import Want
from handfast.options import Policy

__all__ = ["HELD", "LOST", "RELEASED", "RELEASING", "Hold", "TRANSITIONS"]

HELD: Final = "held"
RELEASING: Final = "releasing"
RELEASED: Final = "released"
LOST: Final = "lost"

TRANSITIONS: Final = frozenset({(HELD, RELEASING), (RELEASING, RELEASED), (HELD, LOST)})


class Hold:
    """What is held, until when, and on which nodes. Times are on the driver's `now` clock."""

    __slots__ = (
        "_ticket",
        "deadline",
        "due",
        "healed",
        "name",
        "policy",
        "reason",
        "renew_from",
        "renew_until",
        "retrying",
        "slot",
        "state",
        "token",
        "ttl",
        "votes",
        "want",
        "watchers",
    )

    def __init__(
        self,
        name: str,
        want: Want,
        policy: Policy,
        ttl: float,
        deadline: float,
        sent: float,
        votes: int,
        token: int,
    ) -> None:
        self.name = name
        self.want = want
        self.policy = policy
        self.ttl = ttl
        self.deadline = deadline
        self.renew_from = sent
        """When the last successful grant or renewal was sent."""
        self.renew_until: float | None = None
        """End of renewal: None never, 0.0 is not renewed at all, else the time set by max_hold."""
        self.votes = votes
        """The nodes known to hold it, as bits."""
        self.token = token
        """0 when unfenced."""
        self.state = HELD
        self._ticket = [HELD]
        self.reason = ""
        self.healed = False
        """A heal was sent from the watchdog's connections, so the release must follow it there too."""
        self.retrying = False
        self.due = 0.0
        self.slot = 0
        """Both are the watchdog's own."""
        self.watchers: tuple[Callable[[], Any], ...] = ()
        """Called once, in whichever thread notices, when it is lost."""

    def leave(self, to: str, reason: str = "") -> bool:
        """From HELD to RELEASING or LOST; True for the one caller that made the move."""
        if (HELD, to) not in TRANSITIONS:
            raise AssertionError(f"no transition from {HELD} to {to}")
        try:
            self._ticket.pop()
        except IndexError:
            return False
        self.reason = reason
        self.state = to
        if to == LOST:
            for watcher in self.watchers:
                watcher()
        return True

    def watch(self, watcher: Callable[[], Any]) -> None:
        """Have `watcher` called when it is lost, or now if it is already; it must bear being called twice."""
        self.watchers += (watcher,)
        if self.state == LOST:
            watcher()

    def end(self) -> None:
        """From RELEASING to RELEASED, by whoever made the first move."""
        if (self.state, RELEASED) in TRANSITIONS:
            self.state = RELEASED

    def late_vote(self, node: int) -> None:
        """A node granted after the majority was reached: one more vote."""
        self.votes |= 1 << node

    def confirm(self, sent: float, ttl: float, deadline: float, votes: int) -> None:
        """A renewal sent at `sent` was confirmed in time."""
        self.retrying = False
        self.votes = votes
        if deadline > self.deadline or ttl != self.ttl:
            self.deadline = deadline
            self.ttl = ttl
        self.renew_from = sent
