"""The state of one acquisition.

    HELD ──begin_release──> RELEASING ──finish_release──> RELEASED
     ├──mark_lost──> LOST
     └──revoke──> REVOKED

RELEASED, LOST and REVOKED are final: none is ever renewed or held again, even if the key is still there. Nothing is
sent for a LOST hold. A hold is REVOKED when its client closes: the holder is told as of a loss, and the client releases
the keys. `TRANSITIONS` is the table that `Hold._move` looks up.

The caller's thread and the watchdog's may leave HELD at the same moment, one to release and one to declare a loss. There
is one permit to leave it, and taking the permit is atomic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from handfast.core.config import LockKeys
from handfast.protocol.commands import NO_GENERATION, Identity

__all__ = ["HELD", "LOST", "RELEASED", "RELEASING", "REVOKED", "TRANSITIONS", "CohortTurn", "Hold"]

HELD: Final = "held"
RELEASING: Final = "releasing"
RELEASED: Final = "released"
LOST: Final = "lost"
REVOKED: Final = "revoked"

TRANSITIONS: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        (HELD, "begin_release"): RELEASING,
        (RELEASING, "finish_release"): RELEASED,
        (HELD, "mark_lost"): LOST,
        (HELD, "revoke"): REVOKED,
    }
)


class CohortTurn:
    """What a cohort took from the servers, and hands over from one of its holds to the next."""

    __slots__ = ("__weakref__", "ends", "over", "owner")

    def __init__(self, owner: bytes, ends: float) -> None:
        self.owner = owner
        self.ends = ends
        """Until when it may be handed over inside the process."""
        self.over = False
        """The same client has acquired the lock anew: what is left of this turn is lost, though it does not know yet."""


class Hold(LockKeys):
    """What is held, until when, and on which nodes. Times are on the driver's `now` clock."""

    # Only what every hold needs has a slot. The rest are class attributes until one differs: there may be 100,000 holds.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_permit",
        "deadline",
        "granted_at",
        "renew_from",
        "slot",
        "state",
        "token",
        "ttl",
        "votes",
        "who",
    )

    reason = ""
    """Why it was lost or revoked, or found to have ended when it was released."""
    renew_until: float | None = None
    """End of renewal: None never, 0.0 is not renewed at all, else the time set by max_hold."""
    retrying = False
    """The last renewal was not confirmed."""
    renewal_replies: Mapping[str, str] = MappingProxyType({})
    """What each node said to a renewal that was not confirmed."""
    standstills = 0
    """How often this machine's clock had stood still when the deadline was worked out: see NodeGroup."""
    extended_at = 0.0
    """When the caller last sent an extension of its own."""
    nodes_to_heal = 0
    """Nodes that said "not yours" too late to be healed at once, as bits."""
    healed = False
    """A vote was restored on the watchdog's connections, so the release must follow it there too."""
    release_unconfirmed = False
    """Some node may not have carried out the release: the watchdog repeats it."""
    carrier: Any = None
    """The connections that carried its acquisition. A release on others may overtake a request that is under way."""
    asked = 0
    """Nodes, as bits, that were asked for a vote."""
    may_arrive_late = False
    """Its claim may still be on its way, on a connection that was given up: the watchdog releases it twice."""
    repeat_release: Callable[[Hold], Any] | None = None
    """Has the watchdog repeat the release, if a node fails after a majority has confirmed it."""
    handed_over = False
    """Its release has given a vote to a waiter: others want this lock."""
    abandoned = False
    """It was a lease, and nobody can release it any more: the watchdog does."""
    claimed = 0
    """Nodes, as bits, in whose queues it waited: a claim may be left there."""
    on_lost: tuple[Callable[[], Any], ...] = ()
    """Called, in the thread that notices, when the hold is lost or revoked."""
    reserved_tokens = 0
    """Of a cohort's lock: tokens beyond its own, for the holds that it may be handed over to."""
    handovers = 0
    """How often it was handed over inside the process since it was acquired from the servers."""
    next_hold: Hold | None = None
    """The hold that it was handed over to."""
    turn: CohortTurn | None = None
    """Of a cohort's lock."""

    def __init__(
        self, target: LockKeys, who: Identity, ttl: float, deadline: float, renew_from: float, votes: int, token: int
    ) -> None:
        self.config = target.config
        self.group = target.group
        self.names = target.names
        self.key = target.key
        self.queue_keys = target.queue_keys
        self.who = who
        self.ttl = ttl
        self.deadline = deadline
        self.renew_from = renew_from
        """When the last successful grant or renewal was sent."""
        self.granted_at = renew_from
        """When it began."""
        self.votes = votes
        """The nodes known to hold it, as bits."""
        self.token = token
        """0 when unfenced."""
        self.slot = 0
        """The schedule's own."""
        self.state = HELD
        self._permit = [True]

    @property
    def explicit_owner(self) -> bool:
        """The caller chose the owner: others may hold under it too."""
        return self.who.generation != NO_GENERATION

    @property
    def token_floor(self) -> int:
        """No token of a later acquisition may be at or below this; 0 when unfenced."""
        return self.token + self.reserved_tokens

    # -- transitions

    def _move(self, event: str) -> bool:
        """Make a transition; False if the table has none, or another thread was first."""
        state = self.state  # read once: another thread may leave it between two looks
        target = TRANSITIONS.get((state, event))
        if target is None:
            return False
        if state == HELD:
            try:
                self._permit.pop()
            except IndexError:
                return False
        self.state = target
        return True

    def begin_release(self) -> bool:
        """True for the one caller that made the move."""
        return self._move("begin_release")

    def finish_release(self) -> None:
        self._move("finish_release")

    def mark_lost(self, reason: str) -> bool:
        """The lease is over, and nobody released it. True for the one caller that made the move, after all listeners were
        told."""
        return self._end_early("mark_lost", reason)

    def revoke(self, reason: str) -> bool:
        """Take it from its holder, who is told as of a loss. True for the one caller that made the move; it sees to the
        release on the servers."""
        return self._end_early("revoke", reason)

    def forget(self, reason: str) -> None:
        """Mark it lost and tell nobody: in the child after a fork, where a listener may wait for a lock for ever."""
        self.on_lost = ()
        self._end_early("mark_lost", reason, silently=True)

    def _end_early(self, event: str, reason: str, *, silently: bool = False) -> bool:
        before, self.reason = self.reason, reason
        if not self._move(event):
            self.reason = before
            return False
        for listener in self.on_lost:
            listener()
        if self.group.observer is not None and not silently:
            self.group.observer.ended_early(self)
        return True

    @property
    def ended_early(self) -> bool:
        """It ended before its holder released it."""
        return self.state in (LOST, REVOKED)

    def give_up(self) -> None:
        """Move to RELEASED from wherever an interrupt has left it, unless it ended early. The caller sees to the
        release."""
        self.begin_release()
        self.finish_release()

    def when_lost(self, listener: Callable[[], Any]) -> None:
        """Call `listener` when it ends early, or now if it has. The listener must bear being called twice."""
        self.on_lost += (listener,)
        if self.ended_early:
            listener()

    # -- votes and renewal

    def late_vote(self, node: int) -> None:
        """A node granted after the majority was reached: one more vote."""
        self.votes |= 1 << node

    def is_on(self, node: int) -> bool:
        """A vote or a claim of it may be on this node."""
        return bool((self.votes | self.claimed) >> node & 1)

    def release_failed(self, node: int) -> None:
        """A node failed after a majority had confirmed the release. It may keep a dead vote, and with it its queue."""
        if self.repeat_release is not None and self.is_on(node):
            self.repeat_release(self)

    def late_loss(self, node: int) -> None:
        """A node said "not yours" after the round was decided: the next round heals it."""
        self.nodes_to_heal |= 1 << node

    def promise(self, sent: float, ttl: float, deadline: float) -> None:
        """An extension that the caller asked for is about to be sent. Nothing older counts, and a shorter ttl holds from
        now on, since a node may carry it out though nobody confirms it."""
        self.ttl = ttl
        self.extended_at = sent
        self.deadline = min(self.deadline, deadline)

    def confirm(self, sent: float, deadline: float, votes: int) -> None:
        """A renewal sent at `sent` was confirmed in time."""
        if self.retrying:
            self.retrying = False
        self.votes = votes
        if sent >= self.extended_at:
            self.deadline = max(self.deadline, deadline)
            self.renew_from = max(self.renew_from, sent)

    # -- cohort

    def form_cohort(self) -> None:
        """It may be handed over inside the process; the servers have counted a token for each time."""
        self.turn = CohortTurn(self.who.owner, self.renew_from + self.ttl)
        if self.token:
            self.reserved_tokens = self.config.cohort
            self.token -= self.reserved_tokens

    def successor(self) -> Hold:
        """The same for the next hold of its cohort: the servers see no difference, but the token is a new one."""
        hold = Hold(self, self.who, self.ttl, self.deadline, self.renew_from, self.votes, self.token)
        hold.handovers = self.handovers + 1
        hold.turn = self.turn
        hold.healed = self.healed
        hold.carrier, hold.asked = self.carrier, self.asked
        hold.standstills = self.standstills
        if self.token:
            hold.token += 1
            hold.reserved_tokens = self.reserved_tokens - 1
        return hold

    def held_at(self, now: float) -> bool:
        return self.state == HELD and now < self.deadline
