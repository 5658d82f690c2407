"""A fair lock on one node: first come, first served, whoever comes from wherever.

Those who wait stand in a queue on the server, one for each process (of whom line.py keeps the order inside). A release
gives the lock to the first of them in the same step, and tells it by a push on its connection: one message, and nobody
else is woken. A waiter that is gone is passed over; see lua/hand_over.lua.

The new holder has not sent the command that gave it the lock, so it does not know when its ttl began. It knows this: it
asked at its own time `s`, and the server answered that it was asked at server time `T`; the push says that the lock was
handed over at server time `H`. So at least (H - T) seconds of the server's, which are at least (H - T) * (1 - drift) of
ours, lie between `s` and the hand-over, and validity may count from s + (H - T) * (1 - drift). The longer the wait, the
more that costs; but a waiter asks again whenever its holder's ttl is over, and then counts from there.

Whoever loses its connection asks again under the same owner, and finds itself in the queue, or holding the lock.

In a cluster a push is only a hint to ask again. Its nodes pass all messages on to each other, but count only their own
listeners: one who listens at the node that had the queue before is passed over, and told all the same.
"""

from __future__ import annotations

from typing import Any, Final

from handfast.core import commands, mutex, waiting
from handfast.core.commands import Request
from handfast.core.effects import SILENT, Effects, Fault, Watch
from handfast.core.group import Group
from handfast.core.hold import Hold, Keeper
from handfast.core.line import Lines, Place, Sight
from handfast.core.quorum import Vote
from handfast.core.terms import Terms
from handfast.errors import ConfigError, Contended, NoQuorum

__all__ = ["acquire", "try_acquire"]

UNKNOWN: Final = b"?"
"""The claim of one who has asked for a place in the queue, and has not heard of it."""


class _Attempt(Watch):
    """One owner's way into the lock, from the first question to the hold or the undoing; it gets the owner's messages."""

    __slots__ = ("asked", "claim", "owner", "request", "sent", "terms", "time")

    def __init__(self, bell: Any, request: Request, terms: Terms, owner: bytes) -> None:
        self.bell = bell
        self.keys = ()
        self.changed = set()
        self.message = b""
        self.request = request
        self.terms = terms
        self.owner = owner
        self.asked = False
        """Something was sent that is to be undone if it comes to nothing."""
        self.claim = b""
        """Its entry in the queue, as the server has last answered it."""
        self.sent = 0.0
        self.time = 0.0
        """When it last asked: by our clock, just before; and by the server's."""

    def handed_over(self, now: float) -> Hold | None:
        """Ours by a push: see above."""
        (token, seconds, micros, _), self.message = self.message.split(b" ", 3), b""
        waited = float(seconds) + float(micros) / 1e6 - self.time
        since = self.sent + waited * (1 - self.request.settings.policy.drift)
        if waited < 0 or since > now:
            # Older than the last answer, which said that it is not ours; or the server's clock was set: ask again.
            return None
        return self.hold(since, since + self.terms.validity, int(token), now)

    def granted(self, answer: list[Any], now: float) -> Hold | None:
        """Ours by the server's answer, with so much of its ttl left."""
        validity = self.request.settings.policy.validity(answer[1] / 1000)
        deadline = self.sent + validity
        # Of an older hand-over some of the ttl is gone already: it is to be renewed the sooner.
        return self.hold(deadline - self.terms.validity, deadline, int(answer[2]), now)

    def hold(self, since: float, deadline: float, token: int, now: float) -> Hold | None:
        """What it has; None if it has come too late to be of use."""
        if now >= deadline:
            return None
        hold = Hold(self.request, self.owner, self.terms.ttl, deadline, since, 1, token)
        if self.request.settings.cohort:
            hold.form_cohort(since)
        return hold

    def undo(self, io: Effects, keeper: Keeper) -> None:
        """Out of the queue; and if it is ours already, on to the next."""
        if self.asked and not io.post(commands.pass_on(self.request, self.owner, self.claim)):
            hold = Hold(self.request, self.owner, self.terms.ttl, 0.0, self.sent, 0, 0)
            hold.claim = self.claim
            hold.abandon()
            keeper._unfinished(hold)


async def _ask(io: Effects, attempt: _Attempt, payload: bytes, patience: float) -> Any:
    """The server's answer, or a Fault; of a guarded node only if it has shown its marker."""
    group = attempt.request.group
    if not group.guard:
        attempt.asked = True
        return await io.ask(payload, patience)
    closed = group.closed(group.nodes[0], io.now())
    if closed is not None:
        return closed
    attempt.asked = True
    ballot = Vote(1, 1)
    await io.exchange(payload, ballot, patience)
    return SILENT if ballot.answers[0] is None else ballot.answers[0]


async def try_acquire(io: Effects, request: Request, terms: Terms, keeper: Keeper) -> Any:
    """Once, without standing in the queue."""
    if not io.settled:
        await io.settle(1, max(0.5, terms.patience))
    if not request.group.fine:
        await mutex.admit(io, request.group, None)
    attempt = _Attempt(None, request, terms, request.settings.owner_start + io.nonce())
    hold: Hold | None = None
    try:
        # Who cannot hear on a channel cannot tell others on theirs either, and would not be able to let go of it.
        channel = io.channel or await _channel(io, request.group, terms.patience)
        if isinstance(channel, Fault):
            raise _refused(request, channel)
        attempt.sent = io.now()
        answer = await _ask(io, attempt, commands.claim(request, attempt.owner, terms, b"", b""), terms.patience)
        if type(answer) is Fault:
            raise _refused(request, answer)
        if answer[0] == 1:
            hold = attempt.granted(answer, io.now())
            if hold is None:
                raise _refused(request, Fault("late", "granted, but too late for the lease's validity"))
            return keeper._granted(hold)
    except BaseException:
        attempt.undo(io, keeper)
        if hold is not None:
            hold.abandon()
        raise
    left, holder = answer[1], answer[2].decode(errors="replace")
    nodes = {request.group.nodes[0].label: f"held by {holder}"}
    raise Contended(request.name, holder=holder, remaining=left / 1000 if left >= 0 else None, nodes=nodes)


def _refused(request: Request, fault: Fault) -> ConfigError | NoQuorum:
    label = request.group.nodes[0].label
    if fault.kind == "config":
        return ConfigError(f"{label}: {fault.text}")
    return NoQuorum(request.name, granted=0, needed=1, total=1, nodes={label: fault.text})


async def acquire(io: Effects, lines: Lines, place: Place, keeper: Keeper) -> Any:
    """At the head of the line of this process: stand in the server's queue until it is ours."""
    request = place.request
    hold: Hold | None = None
    while True:
        owner = request.settings.owner_start + io.nonce()
        attempt = io.mail[owner] = _Attempt(place.bell, request, place.terms, owner)
        try:
            hold = await _stand(io, lines, place, attempt)
            if hold is not None:
                place.line.holder = hold
                if hold is place.given:  # a sibling was quicker than the queue
                    attempt.undo(io, keeper)
                lease = keeper._granted(hold)
                place.given = None
                return lease
        except BaseException:
            attempt.undo(io, keeper)
            if hold is not None and hold is not place.given:
                hold.abandon()  # it may be watched over already
            raise
        finally:
            del io.mail[owner]
        attempt.undo(io, keeper)


async def _stand(io: Effects, lines: Lines, place: Place, attempt: _Attempt) -> Hold | None:
    """Until it is handed over to us, by a server or by a sibling; None if that came too late to be of use."""
    line, request, terms, until = place.line, place.request, place.terms, place.until
    group, tried, now = request.settings.group, 0, place.headed
    while True:
        if request.settings.cohort:
            await waiting.rely_on_sibling(io, place)
            now = io.now()
            given = place.usable(now)
            if given is not None:
                return given
        if not io.settled:
            await io.settle(1, waiting.to_connect(place, now))
            now = io.now()
        if not group.fine:
            await mutex.admit(io, group, until)
        patience = terms.patience if until is None else place.at_most(terms.patience, now)
        answer: Any = io.channel or await _channel(io, group, patience)
        if type(answer) is bytes:
            attempt.changed.clear()
            payload = commands.claim(request, attempt.owner, terms, answer, attempt.claim)
            attempt.claim = UNKNOWN
            attempt.message = b""  # the answer tells more than whatever was pushed before it
            attempt.sent = now = io.now()
            if until is not None:
                patience = place.at_most(terms.patience, now)
            if not group.guard:
                attempt.asked = True
            answer = await (_ask(io, attempt, payload, patience) if group.guard else io.ask(payload, patience))
        now = io.now()
        tried += 1
        if type(answer) is Fault:
            await _refusal(io, lines, place, answer, tried)
            now = io.now()
            continue
        line.outage = None
        attempt.time = float(answer[3]) + float(answer[4]) / 1e6
        if answer[0] == 1:
            return attempt.granted(answer, now)
        left, holder, attempt.claim = answer[1], answer[2], answer[5]
        line.sight = Sight(holder, left, now)
        again = now + (left / 1000 if left >= 0 else waiting.LOOK_AGAIN) + waiting.OVERDUE
        if tried == request.settings.policy.tries:
            raise waiting.given_up(place, now)
        if lines.telling:
            lines.began(place)
        while True:
            await io.park(place.bell, again if until is None or again < until else until)
            now = io.now()
            if attempt.message[:1] == b"-":
                again = min(again, now + float(attempt.message.split(b" ", 2)[1]) / 1000 + waiting.OVERDUE)
                attempt.message = b""
            elif attempt.message:
                hold = attempt.handed_over(now)
                if hold is not None and not group.guard and not group.clustered:
                    return hold
                break  # guarded, the node must show its marker; of a cluster, the right one; too late, it is passed on
            waiting.stay(lines, place, now)
            if attempt.changed or place.given is not None or now >= again:
                break


async def _channel(io: Effects, group: Group, patience: float) -> bytes | Fault:
    if not group.nodes[0].pushes:
        return Fault("config", "speaks RESP2 only: fair=True needs a server that can push (RESP3)")
    return await io.subscribe(patience)


async def _refusal(io: Effects, lines: Lines, place: Place, fault: Fault, tried: int) -> None:
    """The node could not be asked: back after a pause, if it is worth another try."""
    line, request, now = place.line, place.request, io.now()
    if fault.lasting or fault.kind == "config":
        raise _refused(request, fault)
    waiting.out_of_reach(place, now)
    line.sight = Sight(None, 0, now, {request.group.nodes[0].label: fault.text})
    if tried == request.settings.policy.tries:
        raise waiting.given_up(place, now)
    await waiting.outage(io, lines, place, tried)
