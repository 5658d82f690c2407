"""Waiting in the queues of the nodes: fair, and without polling.

Each node keeps its own queue of claims and hands over its own vote. Safety does not depend on equal queues, because a
holder needs a majority of unexpired votes. Equal queues only make the wait short. A single node is a quorum of one.

**Tickets** decide the order. On one node the ticket is the server's time of arrival. On a quorum the waiter takes a
ticket once: the median of the nodes' times, so that the clients' clocks do not matter. All nodes sort by (ticket, id).
When claims arrive in different orders, a vote may be with a higher ticket than the lowest one in the queue. In that case
the node pushes an inquiry to that waiter, and the waiter yields the vote.

**Stamps** tell the votes of one node apart: each time a node gives its vote, the vote has a new stamp. A waiter that
yields a vote first records its stamp, and never counts a vote with that stamp or a smaller one. Without this, a waiter
could count a grant that arrives after its own yield was sent, and two clients would hold the lock.

**Validity.** The new holder did not send the command that gave it a vote, so it does not know when the ttl began. It
knows this: it sent its claim at its own time `s`, the node answered the claim at server time `T`, and the push says
that the vote was handed over at server time `H`. Between `s` and the hand-over lie at least (H - T) seconds of the
server's clock, which are at least (H - T) * (1 - drift) seconds of this machine's. So validity counts from
s + (H - T) * (1 - drift).

A waiter looks again (sends its claim again) when the present holder's ttl is over, because a key expires silently. If the
lock goes to a holder with a shorter ttl, a push tells the next waiter to look again. A waiter also looks again after a
lost connection. The claim has its old id, so it finds its place in the queue, or its vote.

In a cluster a push is only a hint to look again: its servers forward messages to each other, but count only their own
listeners. On a guarded node a push carries the node's marker, which the hand-over has read in the same step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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
    withdraw,
)
from handfast.core.clocks import known_times
from handfast.core.hold import Hold
from handfast.core.io import IO, CappedTimeout, Fault
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.votes import Ballot, MultiReplyBallot
from handfast.errors import ConfigError, NotAcquired
from handfast.protocol import commands
from handfast.protocol.claims import Granted, Inquiry, Push, Refused, Yours, decode_vote
from handfast.protocol.resp import encode

__all__ = ["CopiesMissing", "ServerQueue", "begin_again", "can_queue", "wait_in_queue"]

NEVER: Final = float("inf")
LOOK_AGAIN: Final = 5.0
"""Seconds after which to look again in any case: the key may have no ttl, or a new holder with a shorter ttl may hang."""
TOGETHER: Final = 0.0005
"""Claims that are due within so many seconds are sent together."""
OVERDUE: Final = 0.001 + TOGETHER
"""Seconds after the end of a ttl at which to look again. Servers count whole milliseconds, so the key is gone then."""
RETRY: Final = 0.1
"""Seconds after which to claim again on a node that is unreachable, or may not vote."""
FOREIGN_LOOK: Final = 0.05
"""Seconds after which to look again if another program has the key: it will not hand over."""
TRACK_REPLIES: Final = 3
"""The number of replies to `commands.track` for one key."""
TIME: Final = encode(b"TIME")
MADE_HERE: Final = re.compile(rb":.*:.*:[0-9a-f]{32}\Z", re.DOTALL)
"""An owner that handfast has made (host:pid:label:nonce). Such a holder hands over."""
KEEP_VOTE: Final = 1 / 3
"""The share of the ttl after which a waiter without a majority claims its votes again, to keep them."""


def can_queue(io: IO, acquisition: Acquisition) -> bool:
    """Whether enough nodes can push to a waiter."""
    group = acquisition.request.group
    return sum(1 for node in group.nodes if node.no_push is None) >= group.need


class CopiesMissing(Exception):
    """A majority has granted, but copies of the votes are missing. Other waiters may need no copies, so the waiter begins
    again behind them."""

    def __init__(self, explain: Callable[[float], NotAcquired | ConfigError]) -> None:
        super().__init__("copies are missing")
        self.explain = explain


class NodeVote:
    """The vote of one node, and its last answer."""

    __slots__ = (
        "answer",
        "deadline",
        "due",
        "inquired",
        "sent",
        "server_us",
        "stamp",
        "to_yield",
        "token",
        "unanswered",
        "yielded",
        "yielded_at",
    )

    def __init__(self) -> None:
        self.answer: Any = None
        """The last answer: Granted, Refused or a Fault."""
        self.deadline = 0.0
        """The time until which the vote counts; 0.0 if it does not count."""
        self.stamp = 0
        """The stamp of the vote that counts."""
        self.yielded = 0
        """The last stamp that was yielded. No vote with that stamp or a smaller one counts again."""
        self.yielded_at = 0.0
        """When that was decided."""
        self.to_yield = 0
        """The stamp of a yield that is not sent yet; 0 if there is none."""
        self.inquired = 0
        """The stamp of an inquiry that arrived before its grant; 0 if there is none."""
        self.token = 0
        self.sent = 0.0
        """When the last answered claim was sent: the local time just before."""
        self.server_us = 0
        """When the node answered that claim, on the node's clock."""
        self.due = 0.0
        """When to claim again."""
        self.unanswered = 0
        """The number of claims and yields without a reply. A push may give the vote before the reply to a claim comes."""


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
            queue.on_reply(node, vote, self._sent)
        return False

    def end(self) -> None:
        """End the request, and forget the waiter: an idle connection may keep this for the reply of a node that hangs,
        and would keep the waiter's client alive."""
        self.over = True
        self._queue = None


class ServerQueue:
    """One waiter's claims on all nodes, and the votes that they have brought. A PushListener."""

    keys: Sequence[bytes] = ()

    def __init__(self, io: IO, wakeup: Any, acquisition: Acquisition) -> None:
        self.io = io
        self.wakeup = wakeup
        self.acquisition = acquisition
        self.config = self.acquisition.request.config
        self.group = self.config.group
        self.who = self.acquisition.identify(io.nonce)
        self.votes = [NodeVote() for _ in self.group.nodes]
        self.ticket = ARRIVAL
        self.proposal = b"0"
        self.claimed = 0
        """Nodes, as bits, in whose queues the waiter has a claim."""
        self.standstills = self.group.standstills
        """The group's count of standstills when the votes were counted; see NodeGroup."""
        self.holds = False
        """The waiter has a majority and ignores inquiries from now on."""
        self.unreachable_since: float | None = None
        """The time since which no majority can be reached; None while one can."""
        self.seen_at = io.now()
        self.tracked = False
        """The lock's keys are tracked, because another program holds one."""
        self.requests: set[_ClaimReplies] = set()
        """Claims and yields that some nodes have not answered yet."""
        self.wakes_at = NEVER
        """Until when the waiter sleeps, unless something wakes it."""

    # -- replies and pushes

    def on_reply(self, node: int, answer: Any, sent: float) -> None:
        """Handle the reply to a claim or a yield that was sent at `sent`."""
        vote, now = self.votes[node], self.io.now()
        if type(answer) is int:
            answer = decode_vote(answer)
        vote.answer, self.seen_at = answer, now
        if type(answer) is Fault:
            self._failed(vote, answer)
            self.wakeup.set_here()  # perhaps no majority can be reached any more
        else:
            vote.sent, vote.server_us = sent, answer.server_us
            if type(answer) is Granted:
                if 0 < answer.stamp < vote.yielded and sent > vote.yielded_at:
                    # The stamps of a node grow, unless it forgot them and its clock was set back. Without this the waiter
                    # would yield to itself until the clock has caught up.
                    vote.yielded = 0
                left = self.acquisition.timing.ttl if answer.left_ms < 0 else answer.left_ms / 1000
                # Never believe more than the requested ttl: a server whose clock was set back reports hours.
                validity = self.config.policy.validity(min(left, self.acquisition.timing.ttl))
                self._count(node, answer.stamp, answer.token, sent + validity)
                if answer.inquired:
                    self._inquired(node, answer.stamp)
            else:
                vote.deadline = 0.0
                vote.due = now + self._look_again(answer)
            self._wake(vote)

    def _wake(self, vote: NodeVote) -> None:
        """Wake the waiter if it has something to do now. Most answers of a quorum only prepare the last one."""
        if vote.to_yield or vote.due < self.wakes_at or (vote.deadline and self._has_majority()):
            self.wakeup.set_here()

    def _failed(self, vote: NodeVote, fault: Fault) -> None:
        """Handle a fault. After a loss of data or a step of the node's clock, the vote does not count any more."""
        vote.due = self.io.now() + RETRY
        if fault is guard.UNREADY or fault is guard.STEPPED:
            vote.deadline = 0.0

    def _look_again(self, refusal: Refused) -> float:
        """Seconds until the lock may be free without a push: its ttl may end, or its holder may not hand over."""
        if self._foreign(refusal) and not self.tracked:
            return FOREIGN_LOOK
        left = LOOK_AGAIN if refusal.left_ms < 0 else refusal.left_ms / 1000
        return min(left, self.acquisition.timing.ttl, LOOK_AGAIN) + OVERDUE

    @staticmethod
    def _foreign(refusal: Any) -> bool:
        """Whether the holder is another program, which does not hand over."""
        return type(refusal) is Refused and refusal.plain and MADE_HERE.search(refusal.holder) is None

    def on_push(self, node: int, push: Push) -> None:
        if type(push) is Inquiry:
            self._inquired(node, push.stamp)
        elif type(push) is Yours:
            self._handed_over(node, push)
        else:
            self.votes[node].due = 0.0
        self._wake(self.votes[node])

    def _handed_over(self, node: int, push: Yours) -> None:
        """Handle a hand-over at server time H; see Validity above."""
        vote, now = self.votes[node], self.io.now()
        waited = (push.server_us - vote.server_us) / 1e6
        since = vote.sent + waited * self.config.slowest
        if self.group.clustered or not vote.server_us or waited < 0 or since > now:
            # The push proves nothing, or is older than the last answer, or a clock was set: claim again.
            vote.due = 0.0
            return
        fault = guard.check_vote(self.group, node, push.proof, push.server_us, vote.sent, now)
        if fault is not None:
            vote.answer = fault
            self._failed(vote, fault)
            self.wakeup.set_here()
            return
        vote.answer, self.seen_at = Granted(-1, push.token, push.stamp, False, push.server_us, b""), now
        self._count(node, push.stamp, push.token, since + self.acquisition.timing.validity)

    def _count(self, node: int, stamp: int, token: int, deadline: float) -> None:
        """Count a vote, unless it was yielded or has expired."""
        vote, now = self.votes[node], self.io.now()
        if 0 < stamp <= vote.yielded:
            vote.to_yield = stamp
        elif now >= deadline:
            vote.deadline, vote.due = 0.0, 0.0
        else:
            vote.deadline, vote.stamp, vote.token = deadline, stamp, token
            if stamp and stamp == vote.inquired:
                self._inquired(node, stamp)
            vote.due = min(deadline, now + self.acquisition.timing.ttl * KEEP_VOTE)

    def _inquired(self, node: int, stamp: int) -> None:
        """Handle an inquiry: yield the vote to a lower ticket, unless this waiter has a majority."""
        vote = self.votes[node]
        if stamp > max(vote.stamp, vote.yielded):
            vote.inquired = stamp  # the inquiry has overtaken its grant
        if self._has_majority() or not vote.deadline or stamp != vote.stamp:
            return
        # Uncount and record the vote first. Once the yield is sent, another waiter may have the vote.
        vote.deadline = 0.0
        vote.yielded, vote.yielded_at = stamp, self.io.now()
        vote.to_yield = stamp

    def _has_majority(self) -> bool:
        """Whether a majority of votes counts now. Such a waiter ignores inquiries, also while it agrees on a token."""
        now = self.io.now()
        return self.holds or sum(1 for vote in self.votes if vote.deadline > now) >= self.group.need

    def on_change(self, node: int) -> None:
        """Claim again on a node where a tracked key has changed."""
        self.votes[node].due = 0.0
        self.wakeup.set_here()

    def on_connection_lost(self, node: int) -> None:
        self.votes[node].due = 0.0
        self.wakeup.set_here()

    # -- the waiter's steps

    def seed(self, ballot: Ballot, sent: float, *, queued: bool) -> None:
        """Start from the answers to a first attempt. `queued`: the attempt was a claim as well."""
        self._take_ticket([a.server_us for a in ballot.answers if type(a) is Refused and a.server_us])
        for node, answer in enumerate(ballot.answers):
            if queued and answer is not None:
                self.on_reply(node, answer, sent)
            else:
                self.votes[node].answer = answer

    def _take_ticket(self, times: list[int]) -> None:
        if self.group.n > 1 and times and self.ticket == ARRIVAL:
            self.ticket = b"%d" % sorted(times)[(len(times) - 1) // 2]
            self.proposal = proposal_for(self.io, self.config)

    async def send_due(self) -> None:
        """Send the claims and yields that are due."""
        io, now = self.io, self.io.now()
        due = [node for node, vote in enumerate(self.votes) if vote.to_yield or now + TOGETHER >= vote.due]
        if not due:
            return
        timeout = self.acquisition.timeout(self.acquisition.timing.timeout, now)
        if any(self._unsubscribed(node) for node in due):
            await io.subscribe(timeout)
            timeout = self.acquisition.timeout(self.acquisition.timing.timeout, io.now())
        if self.group.n > 1 and self.ticket == ARRIVAL:
            await self._ask_for_ticket(timeout)
        foreign = [node for node in due if self._foreign(self.votes[node].answer) and self.group.nodes[node].tracks]
        if foreign and not self.tracked:
            self.tracked, self.keys = True, self.acquisition.request.keys
            io.track(self)
        look = commands.track(self.keys, tracked=True) if foreign else b""
        self._send([node for node in due if node not in foreign], b"", 1)
        self._send(foreign, look, 1 + TRACK_REPLIES)

    def _send(self, nodes: list[int], before: bytes, width: int) -> None:
        now = self.io.now()
        payloads: list[bytes | None] = [None] * self.group.n
        for node in nodes:
            payload = self._due_payload(node, now)
            if payload is not None:
                payloads[node] = before + payload
                self.votes[node].unanswered += 1
        asked = sum(1 for payload in payloads if payload is not None)
        if asked:
            replies = _ClaimReplies(self, now, asked, width)
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

    def _due_payload(self, node: int, now: float) -> bytes | None:
        vote, state = self.votes[node], self.group.nodes[node]
        config = self.config
        # When to claim again if the node does not answer.
        vote.due = now + max(RETRY, 2 * self.acquisition.timing.timeout)
        fault = self.group.closed(state, now) or state.no_push
        if fault is None and not self.io.channels[node]:
            # `state.fault` may come from another connection of this client. A channel proves that this one is up.
            fault = state.fault or Fault("closed", "is being connected")
        if fault is not None:
            vote.answer, vote.due = fault, now + RETRY
            return None
        if self.group.n > 1 and self.ticket == ARRIVAL:
            vote.due = now + RETRY  # there is no ticket, because the nodes did not tell their times
            return None
        self.acquisition.touched |= 1 << node
        self.claimed |= 1 << node
        if vote.to_yield:
            stamp, vote.to_yield = vote.to_yield, 0
            keys = self.acquisition.request.queue_keys
            return commands.yield_vote(keys, config.guard_keys, self.who, stamp, state.floor, config.retention_arg)
        channel = self.io.channels[node]
        return claim_payload(self.acquisition, self.who, state, self.proposal, self.ticket, channel)

    def counted(self, now: float) -> list[int]:
        """The nodes whose votes count now."""
        if self.standstills != self.group.standstills:
            self.standstills = self.group.standstills
            self._uncount(list(range(self.group.n)))
        return [node for node, vote in enumerate(self.votes) if vote.deadline > now]

    async def conclude(self, counted: list[int], now: float) -> Hold | None:
        """Make the hold with a majority of votes, if the nodes agree on a token."""
        self.holds = True
        acquisition, timing = self.acquisition, self.acquisition.timing
        token = 0
        if self.config.fence:
            counters = {node: self.votes[node].token for node in counted}
            timeout = acquisition.timeout(timing.timeout, now)
            value, agreeing = await tokens.agree(self.io, acquisition.request, self.who, counters, timeout)
            if value is None:
                self._uncount([node for node in counted if node not in agreeing])
                return None
            token, counted = value, [node for node in counted if node in agreeing]
        deadlines = sorted((self.votes[node].deadline for node in counted), reverse=True)
        deadline = deadlines[self.group.need - 1]
        if self.io.now() >= deadline:
            self._uncount(counted)
            return None
        votes, since = sum(1 << node for node in counted), deadline - timing.validity
        hold = make_hold(acquisition, deadline, since, votes, token, self.standstills)
        hold.claimed = self.claimed
        hold.claims_under_way = sum(1 << node for node, vote in enumerate(self.votes) if vote.unanswered)
        if timing.copies is not None and not await self._copied(hold):
            raise CopiesMissing(self.explain)
        return hold

    def _uncount(self, nodes: list[int]) -> None:
        self.holds = False
        for node in nodes:
            self.votes[node].deadline = self.votes[node].due = 0.0

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
        answers = [vote.answer for vote in self.votes]
        faults = [answer for answer in answers if type(answer) is Fault]
        if not faults:
            self.unreachable_since = None
            return
        if explain.cannot_succeed(self.group, answers) or any(fault.kind == "config" for fault in faults):
            raise self.explain(now)
        if len(faults) <= self.group.n - self.group.need:
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
        if type(vote.answer) is Granted:
            if self.acquisition.timing.copies is not None:
                return Fault("copies", "its copies are not confirmed")
            # A vote that does not count any more was yielded to another waiter, or has expired.
            return vote.answer if vote.deadline > now else Refused(0, b"", False, 0, b"")
        if vote.answer is None and self.group.n > 1 and self.ticket == ARRIVAL:
            return Fault("unasked", "not asked, because too few nodes answer")
        return vote.answer

    def next_look(self) -> float:
        return self.acquisition.earlier(min(vote.due for vote in self.votes))


async def wait_in_queue(
    io: IO, queues: WaitQueues, waiter: Waiter, acquisition: Acquisition, first: Ballot | None
) -> Hold:
    """Wait until a majority of the nodes has given its votes, or a sibling has handed its hold over.

    `acquisition`: the waiter's own, or its part for one of several names. `first`: the answers to its last attempt.
    """
    queue = ServerQueue(io, waiter.wakeup, acquisition)
    early = io.mailbox.get(queue.who.id)
    io.mailbox[queue.who.id] = queue
    waiter.queue.explain = queue.explain
    try:
        if first is not None:
            queue.seed(first, acquisition.sent, queued=type(early) is EarlyPushes)
        if type(early) is EarlyPushes:
            early.repeat_to(queue)
        while True:
            waiter.wakeup.is_set = False  # whatever has set it so far is seen below
            now = io.now()
            queues.check(waiter, now)
            given = waiter.usable(now)
            if given is not None:
                return given
            counted = queue.counted(now)
            if len(counted) >= queue.group.need:
                hold = await queue.conclude(counted, now)
                if hold is not None:
                    return hold
            queue.check_reachable(now)
            if not (io.ready and queue.group.quorum_can_vote and queue.group.all_nodes_vote):
                await _reconnect(io, acquisition, queue)
            await queue.send_due()
            queue.wakes_at = min(queue.next_look(), waiter.report_at)
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
    withdraw(io, acquisition)
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
    elif group.repair_due(io.now()):
        # The watchdog repairs nodes only while it has holds, and a waiter has none.
        await guard.repair(io, group, acquisition.until)
