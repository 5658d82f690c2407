"""One attempt at a lock: a broadcast, and a hold if a majority grants it.

Validity counts from the moment before the first byte is sent. A failed attempt is taken back on the connections that
carried it, on every node that may have a vote or a claim of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast.core import guard, tokens
from handfast.core.config import LockConfig
from handfast.core.hold import Hold
from handfast.core.io import IO, Fault, Payloads, PushListener
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.nodes import NodeGroup
from handfast.core.release import take_back
from handfast.core.votes import Ballot, MultiReplyBallot, is_grant
from handfast.errors import ConfigError
from handfast.protocol import commands
from handfast.protocol.claims import Refused, decode_vote, token_in
from handfast.protocol.commands import Identity

__all__ = [
    "OUTAGE",
    "EarlyPushes",
    "admit",
    "attempt",
    "outage_since",
    "start_over",
    "claim_payload",
    "listen",
    "make_hold",
    "prepare",
    "read_checked",
    "read_vote",
    "withdraw",
]

OUTAGE: Final = 5.0
"""Seconds for which a caller without a timeout waits for servers that do not answer. For a contended lock such a caller
waits without end; in an outage that would be a hang."""
ARRIVAL: Final = b"0"
"""The ticket of a claim on a single node: the server uses the time of arrival."""


class EarlyPushes:
    """Keeps pushes to an acquisition that does not wait yet. A PushListener."""

    keys: tuple[bytes, ...] = ()

    # Class attributes instead of __init__: most acquisitions get no early push.
    pushes: tuple[tuple[int, Any], ...] = ()
    lost: tuple[int, ...] = ()
    """The nodes whose connections were lost, or that deleted all their data."""
    wakeup: Any = None
    """Set by pushes and losses, if there is a waiter."""

    def on_push(self, node: int, push: Any) -> None:
        self.pushes += ((node, push),)
        if self.wakeup is not None:
            self.wakeup.set_here()

    def on_connection_lost(self, node: int) -> None:
        self.lost += (node,)
        if self.wakeup is not None:
            self.wakeup.set_here()

    on_change = on_connection_lost
    """This listener tracks no keys, so the node has deleted all its data: the lock is free, and the claim is gone."""

    def repeat_to(self, listener: PushListener) -> None:
        """Give the listener the pushes that it has missed, and the lost connections: claims there must be sent again."""
        for node, push in self.pushes:
            listener.on_push(node, push)
        for node in self.lost:
            listener.on_connection_lost(node)


async def prepare(io: IO, acquisition: Acquisition) -> None:
    """Connect, and re-admit nodes whose quarantine is over."""
    group, until = acquisition.request.group, acquisition.until
    if not io.ready:
        wait = acquisition.wait
        within = OUTAGE if wait is None else wait or max(0.5, acquisition.timing.timeout)
        await io.connect(group.need, within if not wait or until is None else max(0.0, min(within, until - io.now())))
    if not group.quorum_can_vote:
        await admit(io, group, until if acquisition.wait else None)


async def admit(io: IO, group: NodeGroup, until: float | None) -> None:
    """Re-admit nodes whose quarantine is over, and raise if the quorum is misconfigured."""
    if not group.all_nodes_vote and group.voters() < group.need:
        await guard.repair(io, group, until)
    # Check after the repair, which may have corrected a node.
    error = group.config_error()
    if error is not None:
        raise ConfigError(error)


async def attempt(io: IO, acquisition: Acquisition, channel: bytes = b"") -> Ballot | None:
    """Make one attempt. If it succeeds, set `acquisition.hold` and return None; otherwise return the ballot.

    `channel`: empty on a quorum. With a channel, a refused attempt enters the queue of the single node. The node pushes
    to that channel.
    """
    if channel:
        listen(io, acquisition)
    acquisition.sent = sent = io.now()
    timing, standstills = acquisition.timing, acquisition.request.group.standstills
    ballot = _ballot(io, acquisition, sent, queues=bool(channel))
    payloads = _payloads(io, acquisition, ballot, channel, sent)
    await io.broadcast(payloads, ballot, acquisition.timeout(timing.timeout, sent))
    _forget_refusals(acquisition, ballot, queued=bool(channel))
    if ballot.won:
        ballot.late = await _conclude(io, acquisition, ballot, sent, standstills)
    if acquisition.hold is not None:
        return None
    acquisition.answered = io.now()
    return ballot


def listen(io: IO, acquisition: Acquisition) -> None:
    """Listen before a claim is sent: a push may come in the same packet as its reply."""
    io.mailbox[acquisition.identify(io.nonce).id] = EarlyPushes()


def _payloads(io: IO, acquisition: Acquisition, ballot: Ballot, channel: bytes, now: float) -> Payloads:
    """The bytes for each node. A node that may not vote is not asked, and the ballot gets the reason."""
    request, copies = acquisition.request, acquisition.timing.copies
    group, who = request.group, acquisition.identify(io.nonce)
    proposal = proposal_for(io, request.config)
    payload = _attempt_payload(acquisition, who, proposal, channel)
    if copies is not None:
        payload += copies.command
    if group.all_nodes_vote:
        acquisition.touched = (1 << group.n) - 1
        return payload
    payloads: list[bytes | None] = [None] * group.n
    for node in group.nodes:
        closed = group.closed(node, now)
        if closed is not None:
            ballot.add(node.index, closed)
        else:
            acquisition.touched |= 1 << node.index
            payloads[node.index] = payload
    return payloads


def proposal_for(io: IO, config: LockConfig) -> bytes:
    """The proposed token. A single node uses its own time instead."""
    group = config.group
    return b"%d" % group.proposal(io.wall()) if config.fence and group.n > 1 else b"0"


def _attempt_payload(acquisition: Acquisition, who: Identity, proposal: bytes, channel: bytes) -> bytes:
    request, timing = acquisition.request, acquisition.timing
    config = request.config
    if config.exact and len(request.names) == 1 and request.owner is None:
        return commands.set_nx(request.key, who.owner, timing.ttl_ms)
    if len(request.names) > 1:
        return commands.acquire_all(
            request.keys, config.guard_key_list, who, timing.ttl_ms, config.step, proposal,
            config.retention, config.longest_ms, not config.policy.fair,
        )  # fmt: skip
    return claim_payload(acquisition, who, proposal, ARRIVAL if channel else b"", channel)


def claim_payload(acquisition: Acquisition, who: Identity, proposal: bytes, ticket: bytes, channel: bytes) -> bytes:
    config, timing = acquisition.request.config, acquisition.timing
    return commands.claim(
        acquisition.request.queue_keys, config.guard_keys, who, timing.claim_terms, ticket, channel, proposal,
        config.claim_rules,
    )  # fmt: skip


def read_checked(_: int, reply: Any) -> Any:
    """Decode a vote that needs no proof: the node has no guard, or the connection checks it behind the vote.

    The reply to a published acquisition (SET NX) is OK, or nil if it was refused.
    """
    if reply is None:
        return Refused(0, b"", True, 0, b"")  # the published protocol does not name the holder
    return decode_vote(reply) if type(reply) is list else reply


def read_vote(io: IO, group: NodeGroup, sent: float) -> Callable[[int, Any], Any]:
    """Return a function that turns a node's reply to a claim into Granted, Refused or a Fault."""
    if not group.guard:
        return read_checked

    def read(node: int, reply: Any) -> Any:
        vote = decode_vote(reply)
        if type(vote) is Fault:
            return vote  # one of several replies may be a fault
        return guard.check_vote(group, node, vote.proof, vote.server_us, sent, io.now()) or vote

    return read


def _ballot(io: IO, acquisition: Acquisition, sent: float, *, queues: bool) -> Ballot:
    """The ballot of an attempt. It reads the votes and, if copies are needed, their number."""
    copies, group = acquisition.timing.copies, acquisition.request.group
    # A claim that queues and a claim of several names show the node's proof. All others are checked by the connection.
    checked = group.guard and not queues and len(acquisition.request.names) == 1
    read = read_checked if checked else read_vote(io, group, sent)
    if copies is None:
        ballot = Ballot(group.n, group.need, reduce=read)
    else:

        def read_both(node: int, replies: list[Any]) -> Any:
            vote = read(node, replies[0])
            return copies.missing(replies[1]) or vote if is_grant(vote) else vote

        ballot = MultiReplyBallot(group.n, group.need, 2, read_both)
    ballot.checked = checked
    return ballot


def _forget_refusals(acquisition: Acquisition, ballot: Ballot, *, queued: bool) -> None:
    """Forget the nodes that have clearly refused: they have no vote to take back, and no claim unless it was `queued`."""
    if ballot.noes and not queued:
        for node, answer in enumerate(ballot.answers):
            if type(answer) is Refused:
                acquisition.touched &= ~(1 << node)


async def _conclude(
    io: IO, acquisition: Acquisition, ballot: Ballot, sent: float, standstills: int
) -> Callable[[int], None] | None:
    """Agree on a token after a majority has granted, and make the hold if the deadline is still ahead. Returns a function
    that takes late votes."""
    request, timing = acquisition.request, acquisition.timing
    token: int | None = 0
    if request.config.fence:
        counters = {node: token_in(answer) for node, answer in enumerate(ballot.answers) if ballot.votes >> node & 1}
        token = tokens.agreed(request.group, counters)
        if token is None:
            who = acquisition.identify(io.nonce)
            token, _ = await tokens.agree(io, request, who, counters, acquisition.timeout(timing.timeout, io.now()))
    deadline = sent + timing.validity
    if token is None or io.now() >= deadline or request.group.standstills != standstills:
        return None
    acquisition.hold = hold = make_hold(acquisition, deadline, sent, ballot.votes, token, standstills)
    return hold.late_vote


def make_hold(
    acquisition: Acquisition, deadline: float, renew_from: float, votes: int, token: int, standstills: int
) -> Hold:
    request = acquisition.request
    assert acquisition.who is not None
    hold = Hold(request, acquisition.who, acquisition.timing.ttl, deadline, renew_from, votes, token)
    if standstills:
        hold.standstills = standstills
    if request.config.cohort and request.owner is None:
        hold.form_cohort()
    return hold


def withdraw(io: IO, acquisition: Acquisition) -> None:
    """Take back the votes and claims that an acquisition may have left on the servers.

    This ends the acquisition's own hold. A hold from a sibling belongs to another acquisition, and stays.
    """
    hold = acquisition.hold
    if hold is not None and hold.who is acquisition.who:
        hold.give_up()
        acquisition.hold = None
    if acquisition.touched:
        assert acquisition.who is not None
        if not take_back(io, acquisition.request, acquisition.who, acquisition.touched):
            acquisition.left_behind += (acquisition.remains(),)
        acquisition.touched = 0
        # Use a new identity from now on. A server may carry this out after a later claim that comes on another
        # connection. With the old identity, that claim or its vote would be taken back.
        acquisition.who = None


def outage_since(waiter: Waiter, faults: int, since: float | None, now: float) -> float | None:
    """The time since which no majority answers; None while one does. After OUTAGE seconds this raises the waiter's error,
    if the caller set no timeout. `faults`: the nodes that failed. `since`: what the last call has returned."""
    acquisition, explain = waiter.acquisition, waiter.queue.explain
    group = acquisition.request.group
    if faults <= group.n - group.need:
        return None
    if since is not None and acquisition.until is None and now >= since + OUTAGE:
        assert explain is not None
        raise explain(now)
    return now if since is None else since


def start_over(io: IO, queues: WaitQueues, acquisition: Acquisition) -> None:
    """Withdraw before another try. What could not be taken back goes to the watchdog now, and not only at the end of the
    wait: a vote whose reply was lost would block the next try."""
    withdraw(io, acquisition)
    while acquisition.left_behind:
        queues.abandon(acquisition.left_behind[0])
        acquisition.left_behind = acquisition.left_behind[1:]
