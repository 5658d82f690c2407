"""The usual way to a lock on a single node without a guard: one claim and, if it is refused, one hand-over.

One reply decides there, and a refused claim is in the node's queue at once. So most acquisitions are one claim, and most
waits end with one push. This module handles these cases without the ballots and votes of a quorum. In all other cases it
gives up, and queue.py goes on with the answer and the pushes that are kept here.

This is a shortcut: `attempt` and `wait_in_queue` give the same results at a higher price. See docs/decisions.md,
Shortcuts, for what it gains.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from handfast.core import explain
from handfast.core.attempt import ARRIVAL, EarlyPushes, make_hold, read_checked
from handfast.core.hold import Hold
from handfast.core.io import IO, SILENT
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.node_votes import handed_over_at, is_foreign, look_after
from handfast.core.votes import Ballot, is_grant
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol import commands
from handfast.protocol.claims import Refused, Yours, token_in

__all__ = ["Refusal", "ask", "ask_at_once", "read", "wait_for_hand_over"]

OK: Final = b"OK"


def ask_at_once(io: IO, queues: WaitQueues, acquisition: Acquisition) -> Awaitable[Any] | None:
    """Send the claim now, if this process has no waiters for the lock and nothing has to be awaited before. Otherwise
    return None. `read` reads the reply; if it is no hold, `acquire` goes on.

    This is for a driver that shares its connections, and needs not borrow them.
    """
    request = acquisition.request
    if not acquisition.timing.one_claim or len(request.names) > 1 or not io.ready:
        return None
    if queues.by_key and queues.has_waiters(request):
        return None
    channel = b""
    if request.config.queues_on_arrival and acquisition.wait != 0:
        channel = io.channels[0]
        if not channel:
            return None
    return ask(io, acquisition, channel)


def ask(io: IO, acquisition: Acquisition, channel: bytes) -> Awaitable[Any]:
    """Send the claim. `read` reads the reply. `channel`: as for `attempt`."""
    request, timing = acquisition.request, acquisition.timing
    config, ticket = request.config, b""
    who = acquisition.who or acquisition.identify(io.nonce)
    if channel:
        ticket = ARRIVAL
        acquisition.channel = channel
        io.mailbox[who.id] = EarlyPushes()
    acquisition.touched = 1
    if config.exact and request.owner is None:
        payload = commands.set_nx(request.key, who.owner, timing.ttl_ms)
    else:
        payload = commands.claim(
            request.queue_keys, b"", who, timing.claim_terms, ticket, channel, b"0", config.claim_rules
        )
    # Read the count before the clock: another thread may notice a standstill in between.
    acquisition.standstills = request.group.standstills
    acquisition.sent = sent = io.now()
    return io.ask(payload, acquisition.timeout(timing.timeout, sent) if acquisition.wait else timing.timeout)


def read(io: IO, acquisition: Acquisition, reply: Any) -> Ballot | Refusal | None:
    """Read the reply to `ask`. A valid grant sets `acquisition.hold`; otherwise this returns why it failed."""
    request = acquisition.request
    # The usual grants come first: an integer is a token, OK is the reply to a published command.
    granted = reply > 0 if type(reply) is int else reply == OK
    answer = token = reply
    if not granted:
        answer = read_checked(0, reply)
        granted, token = is_grant(answer), token_in(answer)
    if granted:
        sent, standstills = acquisition.sent, acquisition.standstills
        deadline = sent + acquisition.timing.validity
        if io.now() < deadline and request.group.standstills == standstills:
            hold = make_hold(acquisition, deadline, sent, 1, token if request.config.fence else 0, standstills)
            hold.carrier, hold.asked = io, 1
            if acquisition.channel:
                io.mailbox.pop(hold.who.id, None)
            acquisition.hold = hold
            return None
    elif type(answer) is Refused:
        if acquisition.channel:
            acquisition.answered = io.now()
            return Refusal(acquisition, answer)
        acquisition.touched = 0  # there is no vote and no claim to take back
    return _ballot(answer)


def _ballot(answer: Any) -> Ballot:
    """The ballot that the general code would have made of the answer."""
    ballot = Ballot(1, 1)
    if answer is not SILENT:
        ballot.add(0, answer)
    return ballot


class Refusal:
    """A refused claim that is in the node's queue."""

    __slots__ = ("acquisition", "answer")

    def __init__(self, acquisition: Acquisition, answer: Refused) -> None:
        self.acquisition = acquisition
        self.answer = answer

    def ballot(self) -> Ballot | None:
        """The refusal as the general code knows it. None if this machine's clock has stood still since the claim was
        sent: nothing can be counted from that time, so the waiter must claim again."""
        stood_still = self.acquisition.request.group.standstills != self.acquisition.standstills
        return None if stood_still else _ballot(self.answer)

    def explain(self, now: float) -> NotAcquired | ConfigError:
        """The error for a wait that ends now."""
        acquisition = self.acquisition
        age = now - acquisition.answered
        return explain.not_acquired(acquisition.request, [self.answer], acquisition.timing.timeout, age=age)


async def wait_for_hand_over(io: IO, waiter: Waiter, refusal: Refusal) -> Hold | None:
    """Wait for the hand-over to a claim that was refused. None if the wait ends in any other way: the caller continues
    with the general code."""
    acquisition, answer = waiter.acquisition, refusal.answer
    assert acquisition.who is not None
    early = io.mailbox.get(acquisition.who.id)
    if type(early) is not EarlyPushes or acquisition.request.owner is not None or is_foreign(answer):
        return None
    if not early.pushes and not early.lost:
        waiter.queue.explain = refusal.explain
        early.wakeup = waiter.wakeup
        look = acquisition.answered + look_after(answer, acquisition.timing.ttl)
        try:
            await io.wait(waiter.wakeup, look if acquisition.until is None else min(look, acquisition.until))
        finally:
            waiter.queue.explain = early.wakeup = None
    if waiter.given is not None or early.lost or len(early.pushes) != 1:
        return None
    push = early.pushes[0][1]
    return _accept(io, acquisition, answer, push) if type(push) is Yours else None


def _accept(io: IO, acquisition: Acquisition, answer: Refused, push: Yours) -> Hold | None:
    """The hold from a hand-over; None if the push does not prove until when it is valid."""
    request, now = acquisition.request, io.now()
    since = handed_over_at(request.config, acquisition.sent, answer.server_us, push, now)
    if since is None or request.group.standstills != acquisition.standstills:
        return None
    deadline = since + acquisition.timing.validity
    if now >= deadline:
        return None
    return make_hold(acquisition, deadline, since, 1, push.token if request.config.fence else 0, acquisition.standstills)
