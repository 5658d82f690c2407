"""A fair lock on one node: first come, first served, whoever comes from wherever.

Those who wait stand in a queue on the server, one for each process (of whom line.py keeps the order inside). A release
gives the lock to the first of them in the same step, and tells it by a push on its connection: one message, and nobody
else is woken. A waiter that is gone is passed over; see lua/hand_over.lua.

The new holder has not sent the command that gave it the lock, so it does not know when its ttl began. It knows this: it
asked at its own time `s`, and the server answered that it was asked at server time `T`; the push says that the lock was
handed over at server time `H`. So at least (H - T) seconds of the server's, which are at least (H - T) * (1 - drift) of
ours, lie between `s` and the hand-over, and validity may count from s + (H - T) * (1 - drift). The longer the wait, the
more that costs; but a waiter asks again whenever its holder's ttl is over, and then counts from there.

Most waits are short. So who comes waits briefly first: the server puts it in the queue and says no more than that, and a
lock that is handed over in that time counts from the question, for which nobody's clock has to be known. Only who has
waited for longer asks who holds the lock, and for how long.

Whoever loses its connection asks again under the same owner, and finds itself in the queue, or holding the lock.

Nobody in the queue is told when something else happens to the lock: when it is deleted by hand, or released by one who
knows of no queue. A waiter that finds such a holder, or has waited for as long as it takes to renew, has itself told of
changes as the waiters of other locks do (waiting.py). Not sooner: each hand-over is a change too, and would wake all.

In a cluster a push is only a hint to ask again. Its nodes pass all messages on to each other, but count only their own
listeners: one who listens at the node that had the queue before is passed over, and told all the same.
"""

from __future__ import annotations

from typing import Any, Final

from handfast.core import commands, mutex, waiting
from handfast.core.commands import Request
from handfast.core.effects import SILENT, Effects, Fault
from handfast.core.group import Group
from handfast.core.hold import Hold, Keeper
from handfast.core.line import Line, Lines, Place
from handfast.core.quorum import Vote, WideBallot
from handfast.core.renewal import RENEW_AT
from handfast.core.terms import Terms
from handfast.errors import ConfigError, Contended, NoQuorum

__all__ = ["acquire", "try_acquire"]

FOREVER: Final = float("inf")
UNKNOWN: Final = b"?"
"""The claim of one who has asked for a place in the queue, and has not heard of it."""
TOO_SOON: Final = 0.005
"""Seconds within which silence says nothing of a server."""
FAR: Final = 10.0
"""Seconds for which nobody waits briefly after an answer that took longer than that."""
BRIEFLY: Final = b"!"
"""The claim of one who is not in the queue yet, and will look in soon."""


def handed_over(place: Place, now: float) -> Hold | None:
    """Ours by a push: see above. None if that is not to be believed, or too late to be of use."""
    token, seconds, micros, _ = place.message
    place.message = ()
    since = place.sent
    if place.time:
        waited = float(seconds) + float(micros) / 1e6 - place.time
        since = place.sent + waited * place.request.settings.slowest
        if waited < 0.0 or since > now:
            # Older than the last answer, which said that it is not ours; or the server's clock was set: ask again.
            return None
    hold: Hold = place.hold
    hold.renew_from = since
    hold.deadline = since + place.terms.validity
    hold.token = int(token)
    return hold if now < hold.deadline else None


def granted(place: Place, answer: list[Any], now: float) -> Hold | None:
    """Ours by the server's answer, with so much of its ttl left; None if that is too late to be of use."""
    # Never more than was asked for: where the server's clock was set back, it says that hours are left.
    deadline = place.sent + place.request.settings.policy.validity(min(answer[1] / 1000, place.terms.ttl))
    # Of an older hand-over some of the ttl is gone already: it is to be renewed the sooner.
    hold: Hold = place.hold
    hold.renew_from = deadline - place.terms.validity
    hold.deadline = deadline
    hold.token = int(answer[2])
    return hold if now < deadline else None


def undo(io: Effects, place: Place, keeper: Keeper) -> None:
    """Out of the queue; and if it is ours already, on to the next."""
    if place.asked and not io.post(commands.pass_on(place.request, place.owner, place.claim)):
        hold = Hold(place.request, place.owner, place.terms.ttl, 0.0, place.sent, 0, 0)
        hold.claim = place.claim
        hold.abandon()
        keeper._unfinished(hold)
    place.asked, place.claim = False, b""


async def _ask(io: Effects, place: Place, payload: bytes, patience: float) -> Any:
    """The server's answer, or a Fault; of a guarded node only if it has shown its marker."""
    group = place.request.group
    if not group.guard:
        place.asked = True
        answer = io.ask(payload, patience)
        return await answer if io.suspends else answer
    closed = group.closed(group.nodes[0], io.now())
    if closed is not None:
        return closed
    place.asked = True
    ballot = Vote(1, 1)
    await io.exchange(payload, ballot, patience)
    return SILENT if ballot.answers[0] is None else ballot.answers[0]


async def try_acquire(io: Effects, request: Request, terms: Terms, keeper: Keeper) -> Any:
    """Once, without standing in the queue."""
    if not io.settled:
        await io.settle(1, max(0.5, terms.patience))
    if not request.group.fine:
        await mutex.admit(io, request.group, None)
    place = Place(Line(), request, terms, None, 0.0, 0.0, None)
    place.come_as(io.nonce())
    hold: Hold | None = None
    try:
        # Who cannot hear on a channel cannot tell others on theirs either, and would not be able to let go of it.
        channel = io.channel or await _channel(io, request.group, terms.patience)
        if isinstance(channel, Fault):
            raise _refused(request, channel)
        place.sent = io.now()
        answer = await _ask(io, place, commands.claim(request, place.owner, terms, b"", b""), terms.patience)
        if type(answer) is Fault:
            raise _refused(request, answer)
        if answer[0] == 1:
            hold = granted(place, answer, io.now())
            if hold is None:
                raise _refused(request, Fault("late", "granted, but too late for the lease's validity"))
            if request.settings.cohort:
                hold.form_cohort()
            return keeper._granted(hold)
    except BaseException:
        undo(io, place, keeper)
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
    """At the head of the line of this process: stand in the server's queue until it is ours, handed over by the server
    or by a sibling. One frame for the whole of it: it is passed through at every hand-over."""
    line, request, terms, until = place.line, place.request, place.terms, place.until
    settings = request.settings
    group, tried, now, mail, clock = settings.group, 0, place.headed, io.mail, io.now
    hold: Hold | None = None
    try:
        seen, heeded, channel = b"", 0, b""  # not a loop first: see line_up
        while hold is None:
            if settings.cohort:
                await waiting.rely_on_sibling(io, lines, place)
                now = clock()
                hold = place.usable(now)
                if hold is not None:
                    break
            if not place.owner:
                nonce = io.nonce  # often not a method
                place.come_as(nonce())
                mail[place.owner] = place
            if not io.settled:
                await io.settle(1, waiting.to_connect(place, now))
                now = clock()
            if not group.fine:
                await mutex.admit(io, group, until)
            if lines.closed:
                waiting.stay(lines, place, now)
            patience = terms.patience if until is None else place.at_most(terms.patience, now)
            answer: Any = io.channel or await _channel(io, group, patience)
            if type(answer) is bytes:
                place.changed.clear()
                before = place.claim
                if place.vouched:
                    before = commands.claimed(request, place.owner, terms, channel, place.vouched)
                    place.vouched = 0
                channel = answer
                brief = not before and settings.brief and now >= lines.near_from
                if brief and (until is None or until - now > 2 * terms.brief):
                    before = BRIEFLY
                    place.time = 0.0
                    place.hold.parting = answer, commands.pass_on(request, place.owner, b"", answer)
                payload = commands.claim(request, place.owner, terms, answer, before)
                place.claim = UNKNOWN
                place.message = ()  # the answer tells more than whatever was pushed before it
                place.sent = now = clock()
                if until is not None:
                    patience = place.at_most(terms.patience, now)
                if group.guard:
                    answer = await _ask(io, place, payload, patience)
                elif before is BRIEFLY and not (io.suspends or lines.telling):
                    place.asked = line.hailed = True
                    answer = io.hail(payload, patience, place, terms.brief)
                    line.hailed = False
                else:
                    place.asked = True
                    answer = io.ask(payload, patience)
                    if io.suspends:
                        answer = await answer
            now = clock()
            tried += 1
            if type(answer) is Fault:
                if answer.kind == "timeout" and now - place.sent < TOO_SOON:
                    waiting.stay(lines, place, now)  # it ran out of time, too soon to tell anything of the server
                await _refusal(io, lines, place, answer, tried)
                now = clock()
                continue
            line.outage = None
            if type(answer) is int:  # in the queue, and for a moment no more has to be known
                line.queued, place.vouched = True, answer
                again, heed_at = place.sent + terms.brief, FOREVER
                if now > again + terms.brief / 5 and not place.message:  # it took so long to be answered
                    lines.near_from = now + FAR
                    if until is not None and until - now < now - place.sent:
                        again = FOREVER  # another answer would come too late
                if lines.telling:
                    lines.began(place)
            elif answer[0] == 1:
                hold = granted(place, answer, now)
                if hold is None:
                    undo(io, place, keeper)
                    del mail[place.owner]
                    place.owner = b""
                continue
            else:
                place.time = float(answer[3]) + float(answer[4]) / 1e6
                left, place.claim = answer[1], answer[5]
                line.sight = (answer[2], left, now, None)
                if tried == settings.tries:
                    raise waiting.given_up(place, now)
                if lines.telling:
                    lines.began(place)
                again = now + (left / 1000 if left >= 0 else waiting.LOOK_AGAIN) + waiting.OVERDUE
                if answer[2] == seen and place.keys:  # it was renewed, perhaps one of many times
                    heeded += 1
                    heed_at = now + min(0.05, 0.001 * 2.0 ** min(heeded, 6))
                else:
                    seen, heeded = answer[2], 0
                    heed_at = now + terms.ttl * RENEW_AT if seen[-32:].isupper() else now
            while True:
                if not place.message:
                    if now >= heed_at:
                        heed_at = FOREVER
                        if await _gone(io, place, place.at_most(min(terms.patience, again - now), now)):
                            break
                    end = again if again < heed_at else heed_at
                    if until is not None and until < end:
                        end = until
                    if settings.cohort:
                        await io.park(place.bell, end)
                    elif io.suspends:
                        await io.hear(place, end)
                    else:
                        io.hear(place, end)
                    now = clock()
                message = place.message
                if message:
                    if message[0] != b"-":
                        # Guarded, the node must show its marker first; of a cluster, it must be the right one.
                        if not group.guard and not group.clustered:
                            hold = handed_over(place, now)
                        break
                    again = min(again, now + float(message[1]) / 1000 + waiting.OVERDUE)
                    place.message = ()
                waiting.stay(lines, place, now)
                if place.changed or place.given is not None or now >= again:
                    break
        line.holder = hold
        if hold is place.given:  # a sibling was quicker than the queue
            undo(io, place, keeper)
        elif settings.cohort:
            hold.form_cohort()
        place.lease = keeper._granted(hold)
        place.given = None
        return place.lease
    except BaseException:
        undo(io, place, keeper)
        if hold is not None and hold is not place.given:
            hold.abandon()  # it may be watched over already
        raise
    finally:
        mail.pop(place.owner, None)
        if place.keys:
            io.unwatch(place)


async def _gone(io: Effects, place: Place, patience: float) -> bool:
    """Have it told of whatever happens to the lock from now on; True if that is free already."""
    request = place.request
    if not request.group.nodes[0].tracks:
        return False
    if not place.keys:
        place.keys = request.keys
        io.watch(place)
    found: list[Any] = []

    def judge(node: int, replies: list[Any]) -> Any:
        found.append(replies[1])
        return 1

    await io.exchange(commands.look(request), WideBallot(1, 1, 3, judge), patience)
    return found == [None]


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
    line.sight = (None, 0, now, {request.group.nodes[0].label: fault.text})
    if tried == request.settings.tries:
        raise waiting.given_up(place, now)
    await waiting.outage(io, lines, place, tried)
