"""Renewal of many holds at once, and healing.

The renewals of all due holds of a client leave in one write per node, one command for each hold. A hold is renewed when a
majority confirms it before its present deadline. It is lost at its deadline, or earlier if so many nodes say "not yours"
that the others are no majority.
After errors and silence the renewal is tried again until the deadline.

A node that says "not yours" while a majority confirms has lost the vote, or never had it. It gets the vote back
(scripts/restore_vote.lua), so that a long hold does not lose its votes one restart at a time. A healed node may be in
quarantine. It can still confirm a renewal, because it has the key, whatever else it has forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from handfast.core import clocks, guard
from handfast.core.config import Copies
from handfast.core.hold import HELD, Hold
from handfast.core.io import IO, Fault
from handfast.core.nodes import NodeGroup
from handfast.core.votes import AllReplies, Ballot, BatchBallot, is_grant
from handfast.protocol import commands
from handfast.protocol.resp import encode

__all__ = ["RENEW_AT", "RETRY_EVERY", "due", "expire", "extend", "renew"]

RENEW_AT: Final = 1 / 3
"""The share of the ttl after which to renew. It leaves two thirds of the ttl for retries."""
RETRY_EVERY: Final = 1 / 20
"""The share of the ttl between two tries of a renewal."""
WHY_TIMEOUT: Final = 0.1
"""Seconds that the servers have to name the owner of a lost lease's key. The report of the loss waits for it."""
TIME: Final = encode(b"TIME")


def due(hold: Hold, now: float) -> float:
    """The time when a hold is due: for a renewal, for a retry, or because it is lost."""
    until = hold.renew_until
    at = now + hold.ttl * RETRY_EVERY if hold.retrying else hold.renew_from + hold.ttl * RENEW_AT
    if until is not None and at >= until:
        return hold.deadline
    return min(at, hold.deadline)


def expire(hold: Hold, now: float) -> bool:
    """Mark a hold lost if it is held and its deadline has passed. True if this call did it."""
    if hold.state != HELD:
        return False
    if now < hold.deadline:
        return False
    if hold.renew_until is None or now < hold.renew_until:
        said = "; ".join(f"{node}: {text}" for node, text in hold.renewal_replies.items())
        reason = f"no majority confirmed a renewal in time: {said}" if hold.retrying else "the deadline passed"
    else:
        reason = "max_hold was reached" if hold.renew_until else "the ttl ended and it was not renewed"
    return hold.mark_lost(reason)


async def extend(io: IO, hold: Hold, ttl: float) -> None:
    """Renew a hold now, for its caller. The hold's fields have the outcome."""
    group = hold.group
    if not io.ready:
        await io.connect(group.need, max(0.5, hold.config.timing.timeout))
        # Connecting may have taken long, and nothing must be sent for a hold that has ended.
        if hold.state != HELD or expire(hold, io.now()):
            return
    await renew(io, group, [hold], ttl=ttl)


async def renew(io: IO, group: NodeGroup, holds: Sequence[Hold], ttl: float | None = None, *, heal: bool = False) -> None:
    """Run one round of renewals for holds that are HELD. Afterwards each is confirmed, retrying or LOST.

    With `ttl` this is the caller's own extension of one hold. Only the watchdog heals: a release must be able to follow a
    restored vote on the connection that carried it.
    """
    sent = io.now()
    ballots = [Ballot(group.n, group.need, proves_loss=True) for _ in holds]
    config = holds[0].config
    extra, tail, suffix = _tail(io, group, config.timing.copies, sent)
    if ttl is not None:
        holds[0].promise(sent, ttl, sent + config.policy.validity(ttl))
    # Read each ttl once: a caller's own extension may change it while this round is under way.
    ttls = [hold.ttl for hold in holds]
    longest = b"%d" % config.longest_ms
    extensions = [
        commands.extend(hold.keys, hold.who, b"%d" % round(each * 1000), longest)
        for hold, each in zip(holds, ttls, strict=True)
    ]
    # After the first deadline the batch is not sent again: nothing must be sent for a lost hold.
    until = min(hold.deadline for hold in holds)
    batch = BatchBallot(ballots, asked=group.n, extra=extra, tail=tail, until=until)
    await io.broadcast(b"".join(extensions) + suffix, batch, config.timing.timeout)
    refused = {hold: ballot for hold, ballot in zip(holds, ballots, strict=True) if _refused(hold, ballot, io.now())}
    reasons = await _why_refused(io, group, refused, config.timing.timeout) if refused else {}
    now = io.now()
    damaged: list[tuple[Hold, Ballot]] = []
    for hold, ballot, each in zip(holds, ballots, ttls, strict=True):
        if hold in reasons:
            hold.mark_lost(reasons[hold])
        else:
            _conclude(hold, ballot, each, sent, now)
        if heal and ballot.won and (ballot.noes or hold.nodes_to_heal) and hold.state == HELD:
            damaged.append((hold, ballot))
    if damaged:
        await _heal(io, group, damaged, config.timing.timeout)


def _refused(hold: Hold, ballot: Ballot, now: float) -> bool:
    """Whether the hold is lost before its deadline, because too many nodes say "not yours"."""
    return now < hold.deadline and not ballot.won and ballot.refused() > hold.group.n - hold.group.need


async def _why_refused(io: IO, group: NodeGroup, holds: Mapping[Hold, Ballot], timeout: float) -> dict[Hold, str]:
    """Ask for the present owners of the keys, for the error. The leases are lost in any case, so this asks only once."""
    found: list[list[Any]] = [[None] * group.n for _ in holds]
    keys = [key for hold in holds for key in hold.keys]

    def read(node: int, replies: Any) -> int:
        answers = iter(replies if len(keys) > 1 else [replies])
        for hold, by_node in zip(holds, found, strict=True):
            owners = [next(answers) for _ in hold.keys]
            by_node[node] = next((owner for owner in owners if owner != hold.who.owner), owners[0]) or b""
        return 1

    everybody = AllReplies(group.n, len(keys), read)
    await io.broadcast(b"".join(encode(b"GET", key) for key in keys), everybody, min(timeout, WHY_TIMEOUT))
    return {hold: _reason(hold, by_node, holds[hold].answers) for hold, by_node in zip(holds, found, strict=True)}


def _reason(hold: Hold, owners: Sequence[Any], answers: Sequence[Any]) -> str:
    """Why a hold is lost, from the owner of its key on each node: empty if there is none, an owner, a Fault or None.
    `answers` are the replies to the renewal."""
    said = [
        "it still holds the key" if owner == hold.who.owner and is_grant(answer) else _about_key(hold, owner)
        for owner, answer in zip(owners, answers, strict=True)
    ]
    if len(said) == 1:
        return said[0]
    nodes = "; ".join(f"{node.label}: {text}" for node, text in zip(hold.group.nodes, said, strict=True))
    return f"a majority of the nodes no longer holds it: {nodes}"


def _about_key(hold: Hold, owner: Any) -> str:
    if type(owner) is not bytes:
        return "it does not hold the key for this lease any more"
    if not owner:
        return "its key is gone: deleted, evicted, or the server restarted without it"
    if owner == hold.who.owner:
        return "its owner has the key, but not for this lease any more"
    return f"now held by {owner.decode(errors='replace')}"


def _conclude(hold: Hold, ballot: Ballot, ttl: float, sent: float, now: float) -> None:
    group = hold.group
    if now >= hold.deadline:
        # The deadline counts even if the nodes said yes: the lease has already ended for its holder.
        expire(hold, now)
    elif ballot.won:
        hold.confirm(sent, sent + hold.config.policy.validity(ttl), ballot.votes)
        ballot.late = hold.late_vote
        ballot.missed = hold.late_loss
    else:
        hold.retrying = True
        hold.renewal_replies = {
            node.label: _said(answer, ballot.decided) for node, answer in zip(group.nodes, ballot.answers, strict=True)
        }


def _said(answer: Any, decided: bool) -> str:
    """A node's answer to a renewal, in words. If the other nodes have decided, it had no time to answer."""
    if type(answer) is Fault:
        return answer.text
    if answer is None:
        return "not waited for" if decided else "no answer"
    return "confirmed" if is_grant(answer) else "does not hold it any more"


async def _heal(io: IO, group: NodeGroup, damaged: list[tuple[Hold, Ballot]], timeout: float) -> None:
    """Restore the votes on nodes that say "not yours", with the remaining ttl."""
    for node in range(group.n):
        # The node said "not yours" in this round, or after the last round was decided.
        holds = [
            hold
            for hold, ballot in damaged
            if (ballot.answers[node] == 0 or (ballot.answers[node] is None and hold.nodes_to_heal >> node & 1))
        ]
        for hold in holds:
            hold.healed = True  # set before the state is read: a release that begins now must see it
        holds = [hold for hold in holds if hold.state == HELD]
        if holds:
            await _restore(io, group, node, holds, timeout)


async def _restore(io: IO, group: NodeGroup, node: int, holds: list[Hold], timeout: float) -> None:
    """Restore the votes for these holds on one node."""
    words: list[bytes] = []
    for hold in holds:
        left = max(1, round((hold.deadline - io.now()) * 1000))
        config = hold.config
        words.append(
            commands.restore_vote(hold.keys, config.mark_keys, hold.who, left, hold.token_floor, config.retention)
        )
    payloads: list[bytes | None] = [None] * group.n
    payloads[node] = b"".join(words)
    ballots = [Ballot(group.n, 1, 1) for _ in holds]
    until = min(hold.deadline for hold in holds)
    await io.broadcast(payloads, BatchBallot(ballots, asked=1, until=until), timeout)
    for hold, ballot in zip(holds, ballots, strict=True):
        if ballot.won:
            hold.late_vote(node)
        if hold.nodes_to_heal:
            hold.nodes_to_heal &= ~(1 << node)


def _tail(io: IO, group: NodeGroup, copies: Copies | None, sent: float) -> tuple[int, Any, bytes]:
    """The commands at the end of each batch of renewals: they ask for the copies, and for the node's time."""
    extra = (copies is not None) + group.guard
    if not extra:
        return 0, None, b""

    def tail(node: int, replies: list[Any]) -> Fault | None:
        if group.guard and type(replies[-1]) is list:
            clocks.read_clock(group, node, sent, io.now(), guard.server_time(replies[-1]))
        return copies.missing(replies[0]) if copies is not None else None

    return extra, tail, (copies.command if copies is not None else b"") + (TIME if group.guard else b"")
