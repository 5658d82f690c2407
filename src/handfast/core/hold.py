"""The state of one acquisition.

    HELD ──release──> RELEASING ──> RELEASED
     └──deadline, or a majority says "not yours"──> LOST

RELEASED and LOST are final: neither is ever renewed or held again, even if the key is still there, and nothing at all is
sent for a LOST one. `TRANSITIONS` is the whole truth; `leave`, `end` and `lose` are its three rows (`mutex.release` walks
the upper two by itself, to save the calls), and `abandon` walks them at once after an interrupt. The caller's thread and
the watchdog's may want to leave HELD at the same moment, one to release and one to declare a loss: there is one ticket to
leave with, and taking it (deleting an attribute) is atomic.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, Protocol

from handfast.core.commands import Request, Target
from handfast.core.terms import Terms

__all__ = ["HELD", "LOST", "NURSERY_TTL", "RELEASED", "RELEASING", "TRANSITIONS", "Hold", "Keeper", "Turn", "Usher"]

HELD: Final = "held"
RELEASING: Final = "releasing"
RELEASED: Final = "released"
LOST: Final = "lost"

NURSERY_TTL: Final = 0.6
"""From this ttl on a hold rests in the watchdog's nursery first: a look now and then is soon enough for it."""

TRANSITIONS: Final = frozenset({(HELD, RELEASING), (RELEASING, RELEASED), (HELD, LOST)})


class Turn:
    """What a cohort took from the servers, and passes on from one of its holds to the next."""

    __slots__ = ("__weakref__", "ends", "over", "owner")

    def __init__(self, owner: bytes, ends: float) -> None:
        self.owner = owner
        self.ends = ends
        """Until when it may be passed on."""
        self.over = False
        """The same client has taken the lock anew: whatever is left of this turn is lost, it just does not know."""


class Hold(Target):
    """What is held, until when, and on which nodes. Times are on the driver's `now` clock."""

    # Only what every hold needs has a slot; the rest are class attributes until one differs. There may be 100,000.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_ticket",
        "deadline",
        "healed",
        "owner",
        "parting",
        "presented",
        "renew_from",
        "slot",
        "state",
        "token",
        "ttl",
        "votes",
    )

    reason = ""
    """Why it was lost, or found to have ended when it was released."""
    renew_until: float | None = None
    """End of renewal: None never, 0.0 is not renewed at all, else the time set by max_hold."""
    retrying = False
    """The last renewal was not confirmed."""
    doubts: Mapping[str, str] = MappingProxyType({})
    """What each node said to a renewal that was not confirmed."""
    asked_at = 0.0
    """When the caller last sent an extension of its own."""
    torn = 0
    """Nodes that said "not yours" too late to be healed at once, as bits."""
    watchers: tuple[Callable[[], Any], ...] = ()
    """Called, in whichever thread notices, when it is lost."""
    claim = b""
    """Of a fair lock: its entry in the queue, as far as it may still be there."""
    spare = 0
    """Of a cohort's lock: tokens that are reserved beyond its own, for those that it may be passed on to."""
    passes = 0
    """How often it was passed on since it was taken from the server."""
    heir: Hold | None = None
    """What it was passed on as."""
    turn: Turn | None = None
    """Of a cohort's lock, unless its owner was the caller's own."""

    def __init__(
        self, target: Target, owner: bytes, ttl: float, deadline: float, sent: float, votes: int, token: int
    ) -> None:
        self.settings = target.settings
        self.key = target.key
        self.spelt = target.spelt
        self.owner = owner
        self.ttl = ttl
        self.deadline = deadline
        self.renew_from = sent
        """When the last successful grant or renewal was sent."""
        self.votes = votes
        """The nodes known to hold it, as bits."""
        self.token = token
        """0 when unfenced."""
        self.slot = 0
        """The watchdog's own."""
        self.presented = False
        """The owner was the caller's own: others may hold under it too."""
        self.parting: tuple[bytes, bytes] | None = None
        """Of a fair lock: its release as it is sent by whoever listens on that channel, made before it was asked for."""
        self.healed = False
        """A heal was sent from the watchdog's connections, so the release must follow it there too."""
        self.state = HELD
        self._ticket = True

    @property
    def floor(self) -> int:
        """No token of a later acquisition may be at or below this; 0 when unfenced."""
        return self.token + self.spare

    def form_cohort(self) -> None:
        """It may be passed on; the servers have counted a token along for each time."""
        self.turn = Turn(self.owner, self.renew_from + self.ttl)
        if self.token:
            self.spare = self.settings.cohort
            self.token -= self.spare

    def successor(self) -> Hold:
        """The same for the next of its cohort: the servers know no difference, but the token is a new one."""
        heir = Hold(self, self.owner, self.ttl, self.deadline, self.renew_from, self.votes, self.token)
        heir.passes = self.passes + 1
        heir.turn = self.turn
        heir.healed = self.healed
        if self.token:
            heir.token += 1
            heir.spare = self.spare - 1
        return heir

    def leave(self) -> bool:
        """From HELD to RELEASING; True for the one caller that made the move."""
        try:
            del self._ticket
        except AttributeError:
            return False
        self.state = RELEASING
        return True

    def end(self) -> None:
        """From RELEASING to RELEASED, by whoever made the first move."""
        if self.state == RELEASING:
            self.state = RELEASED

    def abandon(self) -> None:
        """To RELEASED from wherever an interrupt has left it, unless it is lost: somebody else sends the release."""
        with suppress(AttributeError):
            del self._ticket
        if self.state != LOST:
            self.state = RELEASED

    def lose(self, reason: str) -> bool:
        """From HELD to LOST; True for the one caller that made the move, after all watchers were told."""
        try:
            del self._ticket
        except AttributeError:
            return False
        self.reason = reason
        self.state = LOST
        for watcher in self.watchers:
            watcher()
        return True

    def watch(self, watcher: Callable[[], Any]) -> None:
        """Have `watcher` called when it is lost, or now if it is already; it must bear being called twice."""
        self.watchers += (watcher,)
        if self.state == LOST:
            watcher()

    def late_vote(self, node: int) -> None:
        """A node granted after the majority was reached: one more vote."""
        self.votes |= 1 << node

    def late_loss(self, node: int) -> None:
        """A node said "not yours" after the round was decided: heal it in the next one."""
        self.torn |= 1 << node

    def promise(self, sent: float, ttl: float, deadline: float) -> None:
        """An extension that the caller asked for is about to be sent: nothing older counts, and a shorter promise
        holds from now on, since it may be carried out though nobody confirms it."""
        self.ttl = ttl
        self.asked_at = sent
        self.deadline = min(self.deadline, deadline)

    def confirm(self, sent: float, deadline: float, votes: int) -> None:
        """A renewal sent at `sent` was confirmed in time."""
        if self.retrying:
            self.retrying = False
        self.votes = votes
        if sent >= self.asked_at:
            self.deadline = max(self.deadline, deadline)
            self.renew_from = max(self.renew_from, sent)


class Keeper(Protocol):
    """Who looks after holds between acquire and release: the client, for its watchdog and its waiting line."""

    def _granted(self, hold: Hold, /) -> Any:
        """A new hold: watch over it, and make of it what the caller gets."""

    def _ending(self, hold: Hold, /) -> None:
        """It was released: there is nothing to watch over any more."""

    def _unfinished(self, hold: Hold, /) -> None:
        """Its release was cut short, or must be repeated elsewhere: see to it."""

    def _letting_go(self, hold: Hold, now: float, /) -> None:
        """A cohort's lock is about to be released on the servers."""

    def _let_go(self, hold: Hold, others: bool, /) -> None:
        """It was; `others`: somebody of another process waits for it."""


class Usher(Keeper, Protocol):
    """A keeper that also sees to those who come in vain."""

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float, /) -> Awaitable[Any]:
        """It could not be had at once: wait for it; what `_granted` makes of it in the end."""
        ...
