"""Waiting in the queues of the nodes: fair, and without polling.

Each node keeps its own queue of claims and hands over its own vote. Safety does not depend on equal queues, because a
holder needs a majority of unexpired votes. Equal queues only make the wait short. A single node is a quorum of one.

**Tickets** decide the order. On one node the ticket is the server's time of arrival. On a quorum the waiter takes a
ticket once: the median of the nodes' times, so that the clients' clocks do not matter. All nodes sort by (ticket, id).
When claims arrive in different orders, a vote may be with a higher ticket than the lowest one in the queue. In that case
the node pushes an inquiry to that waiter, and the waiter yields the vote.

A waiter looks again (sends its claim again) when the present holder's ttl is over, because a key expires silently. If the
lock goes to a holder with a shorter ttl, a push tells the next waiter to look again. A waiter also looks again after a
lost connection. The claim has its old id, so it finds its place in the queue, or its vote.

Which votes count, and until when, is decided in node_votes.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast.core import explain, guard, tokens
from handfast.core.attempt import (
    ARRIVAL,
    OUTAGE,
    EarlyPushes,
    admit,
    claim_payload,
    make_hold,
    proposal_for,
    read_vote,
    start_over,
)
from handfast.core.clocks import known_times
from handfast.core.hold import Hold
from handfast.core.io import IO, CappedTimeout, Fault
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.node_votes import NEVER, RETRY, TOGETHER, NodeVote, NodeVotes, is_foreign
from handfast.core.votes import Ballot, MultiReplyBallot
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol import commands
from handfast.protocol.claims import Granted, Refused, Yours
from handfast.protocol.resp import encode

__all__ = ["CannotQueue", "CopiesMissing", "ServerQueue", "begin_again", "can_queue", "wait_in_queue"]

TRACK_REPLIES: Final = 3
"""The number of replies to `commands.track` for one key."""
TIME: Final = encode(b"TIME")


def can_queue(io: IO, acquisition: Acquisition) -> bool:
    """Whether enough nodes can push to a waiter."""
    group, able = acquisition.request.group, 0
    for node in group.nodes:
        if node.no_push is None:
            able += 1
    return able >= group.need


class CannotQueue(Exception):
    """Too few nodes can push to a waiter. Some were connected only after the wait had begun."""


class CopiesMissing(Exception):
    """A majority has granted, but copies of the votes are missing. Other waiters may need no copies, so the waiter begins
    again behind them."""

    def __init__(self, explain: Callable[[float], NotAcquired | ConfigError]) -> None:
        super().__init__("copies are missing")
        self.explain = explain


class _ClaimReplies:
    """Collects the replies to claims of one send. Replies to commands before the claim in a payload are dropped."""

    checked = False
    decided = False
    over = False
    waiter: Any = None

    def __init__(self, queue: ServerQueue, sent: float, nodes: int, width: int = 1) -> None:
        self.width = width
        self._unanswered = nodes
        self._queue: ServerQueue | None = queue
        self._sent = sent
        self._read = read_vote(queue.io, queue.group, sent)
        self.until = NEVER

    def add(self, node: int, reply: Any) -> bool:
        if self.width > 1 and type(reply) is list:
            reply = reply[-1]
        queue, vote = self._queue, reply if type(reply) is Fault else self._read(node, reply)
        self._unanswered -= 1
        if queue is not None:
            if type(vote) is not Fault:  # after a fault the claim may still be under way
                queue.votes[node].unanswered -= 1
            if not self._unanswered:
                queue.requests.discard(self)
            queue.on_reply(node, vote, self._sent, queue.io.now())
        return False

    def end(self) -> None:
        """End the request, and forget the waiter: an idle connection may keep this for the reply of a node that hangs,
        and would keep the waiter's client alive."""
        self.over = True
        self._queue = None


class ServerQueue(NodeVotes):
    """One waiter's claims on all nodes, and the votes that they have brought."""

    ticket = ARRIVAL
    proposal = b"0"
    claimed = 0
    """Nodes, as bits, in whose queues the waiter has a claim."""
    unreachable_since: float | None = None
    """The time since which no majority can be reached; None while one can."""

    def __init__(self, io: IO, wakeup: Any, acquisition: Acquisition) -> None:
        super().__init__(io, wakeup, acquisition)
        self.requests: set[_ClaimReplies] = set()
        """Claims and yields that some nodes have not answered yet."""

    # -- the waiter's steps

    def seed(self, ballot: Ballot, *, queued: bool) -> None:
        """Start from the answers to a first attempt. `queued`: the attempt was a claim as well."""
        acquisition = self.acquisition
        if self.group.n > 1:
            self._take_ticket([a.server_us for a in ballot.answers if type(a) is Refused and a.server_us])
        for node, answer in enumerate(ballot.answers):
            if queued and answer is not None:
                self.on_reply(node, answer, acquisition.sent, acquisition.answered)
            else:
                self.votes[node].answer = answer

    def _take_ticket(self, times: list[int]) -> None:
        if times and self.ticket == ARRIVAL:
            self.ticket = b"%d" % sorted(times)[(len(times) - 1) // 2]
            self.proposal = proposal_for(self.io, self.config)

    async def send_due(self) -> None:
        """Send the claims and yields that are due."""
        self.must_yield = False
        io, now = self.io, self.io.now()
        due = [node for node, vote in enumerate(self.votes) if vote.to_yield or now + TOGETHER >= vote.due]
        if not due:
            return
        if self.shares:
            due = list(range(self.group.n))  # the shares of a holder make a majority only together
        timeout = self.acquisition.timeout(self.acquisition.timing.timeout, now)
        if not all(io.channels) and any(self._unsubscribed(node) for node in due):
            io.reconnect()  # nothing else may be sent for seconds
            await io.subscribe(timeout)
            timeout = self.acquisition.timeout(self.acquisition.timing.timeout, io.now())
        if self.group.n > 1 and self.ticket == ARRIVAL:
            await self._ask_for_ticket(timeout)
        answered = [node for node in due if type(self.votes[node].answer) is Refused]
        foreign = [node for node in answered if is_foreign(self.votes[node].answer) and self.group.nodes[node].tracks]
        if not foreign:
            self._send(due, b"", 1)
            return
        if not self.tracked:
            self.tracked, self.keys = True, self.acquisition.request.keys
            io.track(self)
        self._send([node for node in due if node not in foreign], b"", 1)
        self._send(foreign, commands.track(self.keys, tracked=True), 1 + TRACK_REPLIES)

    def _send(self, nodes: list[int], before: bytes, width: int) -> None:
        now, asked = self.io.now(), 0
        again = now + max(RETRY, 2 * self.acquisition.timing.timeout)  # if the node does not answer
        payloads: list[bytes | None] = [None] * self.group.n
        for node in nodes:
            if self._may_claim(node, now):
                vote = self.votes[node]
                payloads[node] = before + self._payload(node, vote)
                vote.due = again
                vote.unanswered += 1
                asked |= 1 << node
        if asked:
            self.acquisition.touched |= asked
            self.claimed |= asked
            replies = _ClaimReplies(self, now, asked.bit_count(), width)
            self.requests.add(replies)
            self.io.send(payloads, replies)

    async def _ask_for_ticket(self, timeout: float) -> None:
        """Take a ticket if no refusal has told the nodes' times: from their known clocks, or else by asking the nodes."""
        times = known_times(self.group, self.io.now())
        if len(times) >= self.group.need:
            self._take_ticket(times)
            return

        def read(_: int, reply: Any) -> int:
            times.append(guard.server_time(reply))
            return 1

        await self.io.broadcast(TIME, Ballot(self.group.n, self.group.need, reduce=read), timeout)
        self._take_ticket(times)

    def _unsubscribed(self, node: int) -> bool:
        return not self.io.channels[node] and self.group.nodes[node].no_push is None

    def _may_claim(self, node: int, now: float) -> bool:
        """Whether a claim can be sent to the node now. If not, the waiter tries again later."""
        group, state = self.group, self.group.nodes[node]
        fault = (None if group.all_nodes_vote else group.closed(state, now)) or state.no_push
        if fault is None and not self.io.channels[node]:
            # `state.fault` may come from another connection of this client. A channel proves that this one is up.
            fault = state.fault or Fault("closed", "is being connected")
        if fault is None and (group.n == 1 or self.ticket != ARRIVAL):
            return True
        vote = self.votes[node]
        vote.due = now + RETRY
        if fault is not None:  # otherwise there is no ticket, because the nodes did not tell their times
            vote.answer = fault
        return False

    def _payload(self, node: int, vote: NodeVote) -> bytes:
        """The yield that is due, or else the claim."""
        if not vote.to_yield:
            return claim_payload(self.acquisition, self.who, self.proposal, self.ticket, self.io.channels[node])
        stamp, vote.to_yield = vote.to_yield, 0
        keys, config = self.acquisition.request.queue_keys, self.config
        return commands.yield_vote(keys, config.guard_keys, self.who, stamp, config.retention_arg)

    async def conclude(self, counted: list[int], now: float) -> Hold | None:
        """Make the hold with a majority of votes, if the nodes agree on a token."""
        self.holds = True
        acquisition, timing = self.acquisition, self.acquisition.timing
        token = 0
        if self.config.fence:
            agreed, counted = await self._agree(counted, now)
            if agreed is None:
                return None
            token = agreed
        deadlines, votes = [], 0
        for node in counted:
            deadlines.append(self.votes[node].deadline)
            votes |= 1 << node
        deadlines.sort()
        deadline = deadlines[-self.group.need]
        if self.io.now() >= deadline or self.standstills != self.group.standstills:
            self.uncount(counted)
            return None
        hold = make_hold(acquisition, deadline, deadline - timing.validity, votes, token, self.standstills)
        if self.claimed:
            hold.claimed = self.claimed
            hold.claims_under_way = sum(1 << node for node, vote in enumerate(self.votes) if vote.unanswered)
        if timing.copies is not None and not await self._copied(hold):
            raise CopiesMissing(self.explain)
        return hold

    async def _agree(self, counted: list[int], now: float) -> tuple[int | None, list[int]]:
        """Agree on a token with the nodes whose votes count. Returns the token, or None if too few nodes have it; and the
        nodes that have it."""
        if self.group.n == 1:
            return self.votes[0].token, counted
        counters = {node: self.votes[node].token for node in counted}
        timeout = self.acquisition.timeout(self.acquisition.timing.timeout, now)
        token, agreeing = await tokens.agree(self.io, self.acquisition.request, self.who, counters, timeout)
        if token is None:
            self.uncount([node for node in counted if node not in agreeing])
        return token, [node for node in counted if node in agreeing]

    async def _copied(self, hold: Hold) -> bool:
        """Wait for the copies after one more write: WAIT concerns the writes of one connection, and another connection
        wrote the hand-over."""
        timing = self.acquisition.timing
        assert timing.copies is not None
        copies = timing.copies

        def reduce(_: int, replies: list[Any]) -> Any:
            return copies.missing(replies[1]) or replies[0]

        payload = commands.extend(hold.keys, hold.who, timing.ttl_ms, b"%d" % self.config.longest_ms) + copies.command
        ballot = MultiReplyBallot(self.group.n, self.group.need, 2, reduce)
        await self.io.broadcast(payload, ballot, self.acquisition.timeout(timing.timeout, self.io.now()))
        if ballot.won and self.io.now() < hold.deadline:
            return True
        for vote, answer in zip(self.votes, ballot.answers, strict=True):
            vote.answer = answer if type(answer) is Fault else vote.answer
        return False

    # -- ending

    def end(self) -> None:
        """End all requests: after NOSCRIPT a connection must not send a claim again behind the release."""
        for replies in self.requests:
            replies.end()

    def check_reachable(self, now: float) -> None:
        """Raise if no majority can be reached, and none is expected soon."""
        faults = 0
        for vote in self.votes:
            if type(vote.answer) is Fault:
                faults += 1
        if not faults:
            self.unreachable_since = None
            return
        answers = [vote.answer for vote in self.votes]
        misconfigured = any(type(answer) is Fault and answer.kind == "config" for answer in answers)
        if misconfigured or explain.cannot_succeed(self.group, answers):
            raise self.explain(now)
        if faults <= self.group.n - self.group.need:
            self.unreachable_since = None
        elif self.unreachable_since is None:
            self.unreachable_since = now
        elif self.acquisition.until is None and now >= self.unreachable_since + OUTAGE:
            raise self.explain(now)

    def explain(self, now: float) -> NotAcquired | ConfigError:
        """The error for a wait that ends now."""
        answers = [self._explained(vote, now) for vote in self.votes]
        timeout = self.acquisition.timing.timeout
        return explain.not_acquired(self.acquisition.request, answers, timeout, age=now - self.seen_at)

    def _explained(self, vote: NodeVote, now: float) -> Any:
        """The answer of a node, for the error."""
        if type(vote.answer) in (Granted, Yours):
            if self.acquisition.timing.copies is not None:
                return Fault("copies", "its copies are not confirmed")
            if vote.deadline > now:
                return Granted(-1, vote.token, vote.stamp, False, vote.server_us, b"")
            return Refused(0, b"", False, 0, b"")  # it was yielded to another waiter, or has expired
        if vote.answer is None and self.group.n > 1 and self.ticket == ARRIVAL:
            return Fault("unasked", "not asked, because too few nodes answer")
        return vote.answer

    def next_look(self) -> float:
        """When to send something again, or to stop waiting."""
        look = self.acquisition.earlier(NEVER)
        for vote in self.votes:
            if vote.due < look:
                look = vote.due
        return look


async def wait_in_queue(
    io: IO, queues: WaitQueues, waiter: Waiter, acquisition: Acquisition, first: Ballot | None
) -> Hold:
    """Wait until a majority of the nodes has given its votes, or a sibling has handed its hold over.

    Raises CannotQueue if it turns out that too few nodes can push.

    `acquisition`: the waiter's own, or its part for one of several names. `first`: the answers to its last attempt.
    """
    queue = ServerQueue(io, waiter.wakeup, acquisition)
    early = io.mailbox.get(queue.who.id)
    io.mailbox[queue.who.id] = queue
    waiter.queue.explain = queue.explain
    try:
        if first is not None:
            queue.seed(first, queued=type(early) is EarlyPushes)
        if type(early) is EarlyPushes:
            early.repeat_to(queue)
        while True:
            waiter.wakeup.is_set = False  # whatever has set it so far is seen below
            now = io.now()
            queues.check(waiter, now)
            if waiter.given is not None and (given := waiter.usable(now)) is not None:
                return given
            counted = queue.counted(now)
            if len(counted) >= queue.group.need:
                hold = await queue.conclude(counted, now)
                if hold is not None:
                    return hold
            queue.check_reachable(now)
            if not (io.ready and queue.group.quorum_can_vote and queue.group.all_nodes_vote):
                await _reconnect(io, acquisition, queue)
            look = queue.next_look()
            if queue.must_yield or look <= io.now() + TOGETHER:
                if not can_queue(io, acquisition):
                    raise CannotQueue
                await queue.send_due()
                look = queue.next_look()
            queue.wakes_at = min(look, waiter.report_at)
            await io.wait(waiter.wakeup, queue.wakes_at)
    finally:
        queue.end()
        io.mailbox.pop(queue.who.id, None)
        if queue.tracked:
            io.untrack(queue)
        waiter.queue.explain = None


async def begin_again(io: IO, queues: WaitQueues, waiter: Waiter, missing: CopiesMissing, since: float | None) -> float:
    """Pass the votes on, and pause. `since` is when copies were first missing; it is returned."""
    acquisition, now = waiter.acquisition, io.now()
    since = now if since is None else since
    start_over(io, queues, acquisition)
    if acquisition.until is None and now >= since + OUTAGE:
        raise missing.explain(now)
    waiter.queue.explain = missing.explain
    await io.sleep(acquisition.earlier(now + RETRY))
    queues.check(waiter, io.now())
    return since


async def _reconnect(io: IO, acquisition: Acquisition, queue: ServerQueue) -> None:
    group, now = queue.group, io.now()
    if not io.ready:
        since = queue.unreachable_since
        within = OUTAGE if since is None else max(0.0, since + OUTAGE - now)
        await io.connect(group.need, CappedTimeout(within, max(0.0, acquisition.earlier(NEVER) - now)))
    if not group.quorum_can_vote:
        await admit(io, group, acquisition.until)
    elif group.repair_due(io.now(), io.channels):
        # The watchdog begins a repair only for a client that holds a lock. A client that only waits has to do it here.
        await guard.repair(io, group, acquisition.until)
