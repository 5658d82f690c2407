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
"""

from __future__ import annotations

from typing import Any

from handfast.core import commands, mutex, waiting
from handfast.core.commands import Request
from handfast.core.effects import SILENT, Effects, Fault, Watch
from handfast.core.hold import Hold, Keeper
from handfast.core.line import Lines, Place, Sight
from handfast.core.quorum import Vote
from handfast.core.terms import Terms
from handfast.errors import ConfigError, Contended, NoQuorum

__all__ = ["acquire", "try_acquire"]


class _Attempt:
    """One owner's way into the lock, from the first question to the hold or the undoing."""

    def __init__(self, io: Effects, request: Request, terms: Terms) -> None:
        self.io = io
        self.request = request
        self.terms = terms
        self.owner = request.settings.owner_start + io.nonce()
        self.claim = b""
        """Our entry in the queue, as the server has last answered it."""
        self.asked = False
        self.sent = 0.0
        self.time = 0
        """When we last asked: by our clock, just before; and by the server's."""

    async def ask(self, channel: bytes, patience: float) -> Any:
        """Take it, or stand in the queue (with a channel): the server's answer, or a Fault."""
        io, group = self.io, self.request.group
        payload = commands.claim(self.request, self.owner, self.terms, channel, self.claim)
        self.asked = True
        self.sent = io.now()
        if not group.guard:
            answer = await io.ask(payload, patience)
        else:
            ballot = Vote(1, 1)
            await io.exchange(payload, ballot, patience)
            answer = ballot.answers[0] if ballot.answers[0] is not None else SILENT
        if type(answer) is list:
            self.time = answer[-1]
            if answer[0] == 0:
                self.claim = answer[3]
        return answer

    def granted(self, left_ms: int, token: int) -> Hold | None:
        """Ours by the server's answer, with so much of its ttl left."""
        return self._hold(self.sent, left_ms / 1000, token)

    def handed_over(self, message: bytes) -> Hold | None:
        """Ours by a push: see above."""
        token, time, _ = message.split(b" ", 2)
        waited = max(0, int(time) - self.time) / 1e6
        since = self.sent + waited * (1 - self.request.settings.policy.drift)
        return self._hold(min(since, self.io.now()), self.terms.ttl, int(token))

    def _hold(self, since: float, ttl: float, token: int) -> Hold | None:
        deadline = since + self.request.settings.policy.validity(ttl)
        if self.io.now() >= deadline:
            return None
        hold = Hold(self.request, self.owner, self.terms.ttl, deadline, since, 1, token)
        if self.request.settings.cohort:
            hold.form_cohort(since)
        return hold

    def undo(self, keeper: Keeper) -> None:
        """Out of the queue; and if it is ours already, on to the next."""
        if self.asked and not self.io.post(commands.pass_on(self.request, self.owner, self.claim)):
            hold = Hold(self.request, self.owner, self.terms.ttl, 0.0, self.sent, 0, 0)
            hold.claim = self.claim
            hold.abandon()
            keeper._unfinished(hold)


async def try_acquire(io: Effects, request: Request, terms: Terms, keeper: Keeper) -> Any:
    """Once, without standing in the queue."""
    if not io.settled:
        await io.settle(1, max(0.5, terms.patience))
    if not request.group.fine:
        await mutex.admit(io, request.group)
    attempt = _Attempt(io, request, terms)
    try:
        answer = await attempt.ask(b"", terms.patience)
        hold = attempt.granted(answer[1], answer[2]) if type(answer) is list and answer[0] == 1 else None
        if hold is not None:
            return keeper._granted(hold)
        if type(answer) is Fault:
            raise _refused(request, answer)
        if answer[0] == 1:
            raise _refused(request, Fault("late", "granted, but too late for the lease's validity"))
    except BaseException:
        attempt.undo(keeper)
        raise
    holder, left = answer[1].decode(errors="replace"), answer[2]
    raise Contended(request.name, holder=holder, remaining=left / 1000 if left >= 0 else None)


def _refused(request: Request, fault: Fault) -> ConfigError | NoQuorum:
    label = request.group.nodes[0].label
    if fault.kind == "config":
        return ConfigError(f"{label}: {fault.text}")
    return NoQuorum(request.name, granted=0, needed=1, total=1, nodes={label: fault.text})


async def acquire(io: Effects, lines: Lines, place: Place, keeper: Keeper) -> Any:
    """At the head of the line of this process: stand in the server's queue until it is ours."""
    while True:
        attempt = _Attempt(io, place.request, place.terms)
        watch = Watch(place.bell, (attempt.owner,))
        io.watch(watch)
        try:
            hold = await _stand(io, lines, place, attempt, watch)
            if hold is not None:
                place.line.holder = hold
                lease = keeper._granted(hold)
                if hold.owner != attempt.owner:  # a sibling was quicker than the queue
                    attempt.undo(keeper)
                return lease
        except BaseException:
            attempt.undo(keeper)
            raise
        finally:
            io.unwatch(watch)
        attempt.undo(keeper)


async def _stand(io: Effects, lines: Lines, place: Place, attempt: _Attempt, watch: Watch) -> Hold | None:
    """Until it is handed over to us, by a server or by a sibling; None if that came too late to be of use."""
    line, group, tried = place.line, place.request.group, 0
    while True:
        if line.holder is not None:
            await waiting.rely_on_sibling(io, place)
            given = lines.take(place, io.now())
            if given is not None:
                return given
        if tried:
            waiting.stay(lines, place, io.now())
        if not io.settled:
            await io.settle(1, place.at_most(mutex.OUTAGE, io.now()))
        if not group.fine:
            await mutex.admit(io, group)
        watch.changed.clear()
        patience = place.at_most(place.terms.patience, place.since if not tried else io.now())
        channel: Any = io.channel or await io.subscribe(patience)
        answer: Any = channel if type(channel) is Fault else await attempt.ask(channel, patience)
        tried += 1
        if type(answer) is Fault:
            await _refusal(io, lines, place, answer, tried)
            continue
        line.outage = None
        kind, left = answer[0], answer[2]
        if kind == 1:
            return attempt.granted(answer[1], left)
        lines.began(place)
        line.sight = Sight(answer[1], left, attempt.sent)
        again = attempt.sent + (left / 1000 if left >= 0 else waiting.LOOK_AGAIN) + waiting.OVERDUE
        while True:
            await io.park(place.bell, place.sooner(again))
            if watch.message:
                message, watch.message = watch.message, b""
                hold = attempt.handed_over(message)
                if hold is not None and not group.guard:
                    return hold
                break  # guarded, the node must show its marker; too late, it is to be passed on
            now = io.now()
            waiting.stay(lines, place, now)
            if watch.changed or place.given is not None or now >= again:
                break


async def _refusal(io: Effects, lines: Lines, place: Place, fault: Fault, tried: int) -> None:
    """The node could not be asked: back after a pause, if it is worth another try."""
    line, request, now = place.line, place.request, io.now()
    if fault.lasting or fault.kind == "config":
        raise _refused(request, fault)
    line.outage = line.outage or now
    line.sight = Sight(None, 0, now, {request.group.nodes[0].label: fault.text})
    if tried == request.settings.policy.tries:
        raise waiting.given_up(place, now)
    await waiting.outage(io, lines, place, tried)
