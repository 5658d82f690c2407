"""The state of one acquisition.

    HELD ──begin_release──> RELEASING ──finish_release──> RELEASED
     ├──mark_lost──> LOST
     └──revoke──> REVOKED

RELEASED, LOST and REVOKED are final: such a hold is never renewed or held again, even if its key is still there. Nothing
is sent for a LOST hold. A hold is REVOKED when its client closes: to the holder this looks like a loss, and the client
releases the keys.

The caller's thread and the watchdog's may try to leave HELD at the same moment, one to release and one to declare a
loss. There is one permit to leave HELD, and taking it is atomic. A thread that declares a loss announces the reason
before it takes the permit, and writes `reason` and the state afterwards. So a released hold never shows the reason of a
loss that came too late, and a thread that is refused the permit finds the reason at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from handfast.core.config import LockKeys
from handfast.protocol.commands import NO_GENERATION, Identity

__all__ = ["HELD", "LOST", "RELEASED", "RELEASING", "REVOKED", "CohortTurn", "Hold"]

HELD: Final = "held"
RELEASING: Final = "releasing"
RELEASED: Final = "released"
LOST: Final = "lost"
REVOKED: Final = "revoked"


class CohortTurn:
    """One acquisition from the servers by a cohort, handed over from one of its holds to the next."""

    __slots__ = ("__weakref__", "ends", "over", "owner")

    def __init__(self, owner: bytes, ends: float) -> None:
        self.owner = owner
        self.ends = ends
        """The time until which the turn may be handed over inside the process."""
        self.over = False
        """This client has acquired the lock from the servers again, so a hold that is left of this turn is lost."""


class Hold(LockKeys):
    """One lock that is held: its keys, its deadline and its nodes. Times are on the driver's `now` clock."""

    # There may be 100,000 holds, so attributes that few of them set have no slot: they are class attributes until a hold
    # needs another value. Reading such a default takes ten times as long as reading a slot, so what every acquisition or
    # release reads has a slot.
    __slots__ = (
        "__dict__",
        "__weakref__",
        "_permit",
        "asked",
        "carrier",
        "deadline",
        "granted_at",
        "handed_over",
        "handovers",
        "healed",
        "on_lost",
        "reason",
        "release_unconfirmed",
        "renew_from",
        "renew_until",
        "slot",
        "standstills",
        "state",
        "token",
        "ttl",
        "turn",
        "votes",
        "who",
    )

    retrying = False
    """The last renewal was not confirmed."""
    renewal_replies: Mapping[str, str] = MappingProxyType({})
    """The reply of each node to a renewal that was not confirmed."""
    extended_at = 0.0
    """When the caller last sent an extension of its own."""
    nodes_to_heal = 0
    """Nodes, as bits, that said "not yours" too late to be healed at once."""
    may_arrive_late = False
    """The claim may still be under way on a connection that was closed, so the watchdog releases it twice."""
    repeat_release: Callable[[Hold], Any] | None = None
    """Makes the watchdog repeat the release. Called if a node fails after a majority has confirmed it."""
    _announced = ""
    """The reason of a thread that was about to declare a loss, whether it then got the permit or not."""
    abandoned = False
    """The hold was a lease that its caller can no longer release, so the watchdog releases it."""
    claimed = 0
    """Nodes, as bits, in whose queues the acquisition waited: a claim may be left there."""
    claims_under_way = 0
    """Nodes, as bits, that had not answered a claim when the hold was made, whether they have given their vote or not."""
    reserved_tokens = 0
    """In a cohort: tokens beyond its own, for the holds that follow it."""
    next_hold: Hold | None = None
    """The hold to which this one was handed over."""

    def __init__(
        self, target: LockKeys, who: Identity, ttl: float, deadline: float, renew_from: float, votes: int, token: int
    ) -> None:
        self.config = target.config
        self.group = target.group
        self.names = target.names
        self.key = target.key
        self.keys = target.keys
        self.queue_keys = target.queue_keys
        self.who = who
        self.ttl = ttl
        self.deadline = deadline
        self.renew_from = renew_from
        """When the last successful grant or renewal was sent."""
        self.granted_at = renew_from
        """When the hold began."""
        self.votes = votes
        """Nodes, as bits, that are known to have given their vote."""
        self.token = token
        """The fencing token; 0 when unfenced."""
        self.slot = 0
        """The slot in the schedule. Only the schedule uses it."""
        self.state = HELD
        self._permit = bytearray(1)
        self.carrier: Any = None
        """The connections that carried the acquisition. A release on others may overtake a request that is under way."""
        self.asked = 0
        """Nodes, as bits, that were asked for a vote."""
        self.on_lost: tuple[Callable[[], Any], ...] = ()
        """Called, in the thread that notices, when the hold is lost or revoked."""
        self.release_unconfirmed = False
        """A node may not have carried out the release, so the watchdog repeats it."""
        self.handed_over = False
        """The release has given a vote to a waiter, so other clients want this lock."""
        self.reason = ""
        """Why the hold was lost or revoked, or had ended before its release. See `why_ended`."""
        self.renew_until: float | None = None
        """When renewal ends: None for never, 0.0 for a hold that is not renewed, else the time set by max_hold."""
        self.standstills = 0
        """The group's count of standstills when the deadline was computed: see NodeGroup."""
        self.healed = False
        """The watchdog has restored a vote. The release must follow it on the watchdog's connections as well."""
        self.turn: CohortTurn | None = None
        """The cohort's turn; None without a cohort."""
        self.handovers = 0
        """The number of hand-overs inside the process since the acquisition from the servers."""

    @property
    def explicit_owner(self) -> bool:
        """Whether the caller chose the owner. Other acquisitions may hold the lock under that owner as well."""
        return self.who.generation != NO_GENERATION

    @property
    def token_floor(self) -> int:
        """Tokens of later acquisitions must be larger than this; 0 when unfenced."""
        return self.token + self.reserved_tokens

    # -- transitions

    def _take_permit(self) -> bool:
        """Take the permit to leave HELD. False if another thread has left HELD, or is about to."""
        try:
            self._permit.pop()
        except IndexError:
            return False
        return True

    def begin_release(self) -> bool:
        """Begin the release. True for the one caller that made the transition."""
        if not self._take_permit():
            return False
        self.state = RELEASING
        return True

    def finish_release(self) -> None:
        if self.state == RELEASING:
            self.state = RELEASED

    def mark_lost(self, reason: str) -> bool:
        """Mark the hold lost. True for the one caller that made the transition, after all listeners were called."""
        return self._end_early(LOST, reason)

    def revoke(self, reason: str) -> bool:
        """Take the hold from its holder, to whom this looks like a loss. True for the one caller that made the
        transition. That caller must release it on the servers."""
        return self._end_early(REVOKED, reason)

    def forget(self, reason: str) -> None:
        """Mark the hold lost in the child after a fork. No listener is called: it might wait for a lock for ever."""
        self.on_lost = ()
        self._end_early(LOST, reason, silently=True)

    def _end_early(self, state: str, reason: str, *, silently: bool = False) -> bool:
        self._announced = reason
        if not self._take_permit():
            return False
        self.reason = reason  # before the state: a thread that sees the state must find the reason
        self.state = state
        for listener in self.on_lost:
            listener()
        if self.group.observer is not None and not silently:
            self.group.observer.ended_early(self)
        return True

    @property
    def ended_early(self) -> bool:
        """Whether the hold was lost or revoked."""
        return self.state in (LOST, REVOKED)

    @property
    def why_ended(self) -> str:
        """Why the hold was lost or revoked, or had ended before its release; empty if it has not, or not before. Another
        thread may have the permit, so that a release is refused, but may not have written the reason yet."""
        return self.reason or (self._announced if self.state == HELD else "")

    def give_up(self) -> None:
        """Move to RELEASED from any state in which an interrupt has left it, unless it ended early. The caller must
        release it on the servers."""
        self.begin_release()
        self.finish_release()

    def when_lost(self, listener: Callable[[], Any]) -> None:
        """Call `listener` when the hold ends early, or now if it has ended. The listener may be called twice."""
        self.on_lost += (listener,)
        if self.state != HELD and self.ended_early:
            listener()

    def stop_listening(self, listener: Callable[[], Any]) -> None:
        """Do not call `listener` any more. A listener that refers to its hold must do this at its end: otherwise only the
        garbage collector would free the two."""
        listeners = self.on_lost
        self.on_lost = () if len(listeners) == 1 else tuple([each for each in listeners if each is not listener])

    # -- votes and renewal

    def late_vote(self, node: int) -> None:
        """Add the vote of a node that granted after the majority was reached."""
        self.votes |= 1 << node

    @property
    def unanswered(self) -> int:
        """Nodes, as bits, that may carry out a request of the acquisition after its release on another connection."""
        return self.asked & ~self.votes | self.claims_under_way

    def is_on(self, node: int) -> bool:
        """Whether a vote or a claim of this hold may be on the node."""
        return bool((self.votes | self.claimed) >> node & 1)

    def release_failed(self, node: int) -> None:
        """Repeat the release after a node failed, although a majority has confirmed it: the node may keep the vote, and
        the waiters in its queue would wait."""
        if self.repeat_release is not None and self.is_on(node):
            self.repeat_release(self)

    def late_loss(self, node: int) -> None:
        """Note a node that said "not yours" after the round was decided. The next round heals it."""
        self.nodes_to_heal |= 1 << node

    def promise(self, sent: float, ttl: float, deadline: float) -> None:
        """Note that the caller's own extension is about to be sent. Earlier renewals do not count any more. A shorter ttl
        applies at once, because a node may carry the extension out without confirming it."""
        self.ttl = ttl
        self.extended_at = sent
        self.deadline = min(self.deadline, deadline)

    def confirm(self, sent: float, deadline: float, votes: int) -> None:
        """Apply a renewal that was sent at `sent` and confirmed in time."""
        if self.retrying:
            self.retrying = False
        self.votes = votes
        if sent >= self.extended_at:
            self.deadline = max(self.deadline, deadline)
            self.renew_from = max(self.renew_from, sent)

    # -- cohort

    def form_cohort(self) -> None:
        """Allow hand-overs inside the process. The servers have counted a token for each of them."""
        self.turn = CohortTurn(self.who.owner, self.renew_from + self.ttl)
        if self.token:
            self.reserved_tokens = self.config.cohort
            self.token -= self.reserved_tokens

    def successor(self) -> Hold:
        """Make the next hold of the cohort. The servers see no difference, but it has a new token."""
        hold = Hold(self, self.who, self.ttl, self.deadline, self.renew_from, self.votes, self.token)
        hold.handovers = self.handovers + 1
        hold.turn = self.turn
        hold.healed = self.healed
        hold.carrier, hold.asked = self.carrier, self.asked
        if self.claims_under_way:
            hold.claims_under_way = self.claims_under_way
        hold.standstills = self.standstills
        if self.token:
            hold.token += 1
            hold.reserved_tokens = self.reserved_tokens - 1
        return hold

    def held_at(self, now: float) -> bool:
        return self.state == HELD and now < self.deadline
