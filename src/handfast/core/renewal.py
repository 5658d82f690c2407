"""Renewal of many holds at once, and healing.

All due holds of a client leave in one write per node, one single-key command each. A hold is renewed when a majority
confirms it before its present deadline; it is lost when more than N-M nodes say "not yours", or at its deadline.
Errors and silence are unknown, and unknown is tried again until the deadline.

A node that says "not yours" while a majority confirms has lost the vote or never had it: it gets it back (heal.lua), so
that a long hold does not lose its votes one restart at a time. A healed node may be in quarantine: that it holds
our key is a fact, whatever else it has forgotten, and facts are all that a renewal counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from handfast.core import commands, guard
from handfast.core.effects import Effects, Fault
from handfast.core.group import Group
from handfast.core.hold import HELD, Hold
from handfast.core.quorum import Ballot, Rounds, said_yes
from handfast.core.resp import encode
from handfast.core.terms import Copies

__all__ = ["RENEW_AT", "RETRY_EVERY", "due", "expire", "renew"]

RENEW_AT: Final = 1 / 3
"""Share of the ttl after which to renew: leaves two thirds for retries."""
RETRY_EVERY: Final = 1 / 20
"""Share of the ttl between retries of a renewal that failed."""
TIME: Final = encode(b"TIME")


def due(hold: Hold, now: float) -> float:
    """When the watchdog must look at a hold next: to renew it, to try again, or to declare it lost."""
    until = hold.renew_until
    at = now + hold.ttl * RETRY_EVERY if hold.retrying else hold.renew_from + hold.ttl * RENEW_AT
    if until is not None and at >= until:
        return hold.deadline
    return min(at, hold.deadline)


def expire(hold: Hold, now: float) -> bool:
    """Declare a hold lost if its deadline has passed; True if this call did it."""
    if now < hold.deadline:
        return False
    if hold.renew_until is None or now < hold.renew_until:
        said = "; ".join(f"{node}: {text}" for node, text in hold.doubts.items())
        reason = f"no majority confirmed a renewal in time: {said}" if hold.retrying else "the deadline passed"
    else:
        reason = "max_hold was reached" if hold.renew_until else "the ttl ended and it was not renewed"
    return hold.lose(reason)


async def renew(
    io: Effects, group: Group, holds: Sequence[Hold], ttl: float | None = None, *, heal: bool = False
) -> None:
    """One round for holds that are HELD and before their deadline. Afterwards each is confirmed, retrying or LOST.

    With `ttl` it is the caller's own extension, of one hold.

    Only the watchdog heals: a release must be able to follow a heal on the connection that carried it.
    """
    sent = io.now()
    ballots = [Ballot(group.n, group.need) for _ in holds]
    settings = holds[0].settings
    extra, tail, suffix = _tail(io, group, settings.terms.copies, sent)
    if ttl is not None:
        holds[0].promise(sent, ttl, sent + settings.policy.validity(ttl))
    # Read once: a caller's own extension may change a hold's ttl while this round is under way.
    ttls = [hold.ttl for hold in holds]
    extensions = [
        commands.extend(hold, hold.owner, b"%d" % round(each * 1000)) for hold, each in zip(holds, ttls, strict=True)
    ]
    # Nothing is sent for what is lost, nor sent again.
    until = min(hold.deadline for hold in holds)
    rounds = Rounds(ballots, asked=group.n, extra=extra, tail=tail, until=until)
    patience = settings.terms.patience
    await io.exchange(b"".join(extensions) + suffix, rounds, patience)
    now = io.now()
    torn: list[tuple[Hold, Ballot]] = []
    for hold, ballot, each in zip(holds, ballots, ttls, strict=True):
        _conclude(hold, ballot, each, sent, now)
        if heal and ballot.won and (ballot.noes or hold.torn) and hold.state == HELD:
            torn.append((hold, ballot))
    if torn:
        await _heal(io, group, torn, patience)


def _conclude(hold: Hold, ballot: Ballot, ttl: float, sent: float, now: float) -> None:
    group = hold.group
    if now >= hold.deadline:
        # Final even if the nodes said yes: the lease was already over for everybody who looked at it.
        expire(hold, now)
    elif ballot.won:
        hold.confirm(sent, sent + hold.settings.policy.validity(ttl), ballot.votes)
        ballot.late = hold.late_vote
        ballot.missed = hold.late_loss
    elif ballot.refused() > group.n - group.need:
        hold.lose("a majority of the nodes no longer holds it for this owner")
    else:
        hold.retrying = True
        hold.doubts = {
            node.label: "confirmed" if said_yes(answer) else answer.text if type(answer) is Fault else "no answer"
            for node, answer in zip(group.nodes, ballot.answers, strict=True)
        }


async def _heal(io: Effects, group: Group, torn: list[tuple[Hold, Ballot]], patience: float) -> None:
    """Give their votes back to nodes that say "not yours", with the ttl that is left."""
    for i in range(group.n):
        # Those that say "not yours" now, and those that said it after the last round was decided.
        holds = [
            hold
            for hold, ballot in torn
            if (ballot.answers[i] == 0 or (ballot.answers[i] is None and hold.torn >> i & 1))
        ]
        for hold in holds:
            hold.healed = True  # before the look at its state: a release that comes now must know
        holds = [hold for hold in holds if hold.state == HELD]
        if not holds:
            continue
        heals: list[bytes] = []
        for hold in holds:
            left = round((hold.deadline - io.now()) * 1000)
            heals.append(commands.heal(hold, hold.owner, max(1, left), hold.floor))
        payloads: list[bytes | None] = [None] * group.n
        payloads[i] = b"".join(heals)
        ballots = [Ballot(group.n, 1, 1) for _ in holds]
        until = min(hold.deadline for hold in holds)
        await io.exchange(payloads, Rounds(ballots, asked=1, until=until), patience)
        for hold, ballot in zip(holds, ballots, strict=True):
            if ballot.won:
                hold.late_vote(i)
            if hold.torn:
                hold.torn &= ~(1 << i)


def _tail(io: Effects, group: Group, copies: Copies | None, sent: float) -> tuple[int, Any, bytes]:
    """What is asked once per batch, behind the renewals: the copies they must have, and the node's time."""
    extra = (copies is not None) + group.guard
    if not extra:
        return 0, None, b""

    def tail(node: int, replies: list[Any]) -> Fault | None:
        if group.guard and type(replies[-1]) is list:
            server_us = guard.server_time(replies[-1])
            if guard.clock_stepped(group.nodes[node], sent, io.now(), server_us, group.policy.drift):
                group.suspect(node)
        return copies.missing(replies[0]) if copies is not None else None

    return extra, tail, (copies.command if copies is not None else b"") + (TIME if group.guard else b"")
