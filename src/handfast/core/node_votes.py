"""The votes of the nodes for one waiter: which of them count, and until when.

Replies to claims and pushes bring the votes, in any order. A waiter holds the lock if a majority of votes counts at one
moment. A single node is a quorum of one.

**Stamps** tell the votes of one node apart: each time a node gives its vote, the vote has a new stamp. A waiter that
yields a vote first records its stamp, and does not count a vote with that stamp or a smaller one. Without this, a waiter
could count a grant that arrives after its own yield was sent, and two clients would hold the lock. There is one
exception: a smaller stamp in the reply to a claim that was sent after the yield is a new vote, of a node that has
forgotten its stamps.

**Validity.** The new holder did not send the command that gave it a vote, so it does not know when the ttl began. It
knows this: it sent its claim at its own time `s`, the node answered the claim at server time `T`, and the push says
that the vote was handed over at server time `H`. Between `s` and the hand-over lie at least (H - T) seconds of the
server's clock, which are at least (H - T) * (1 - drift) seconds of this machine's. So validity counts from
s + (H - T) * (1 - drift).

Each vote also has a time at which the waiter looks again (claims again), because a key expires silently: when the
present holder's ttl is over, before its own vote or claim expires, after a fault, and at once after a lost connection.

In a cluster a push is only a hint to look again: its servers forward messages to each other, but count only their own
listeners. On a guarded node a push carries the node's marker, which the hand-over has read in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from handfast.core import guard
from handfast.core.config import LockConfig
from handfast.core.io import IO, Fault
from handfast.core.local_queue import Acquisition
from handfast.options import MADE_HERE
from handfast.protocol.claims import Granted, Inquiry, Push, Refused, Yours, decode_vote
from handfast.protocol.commands import NO_GENERATION

__all__ = ["NEVER", "RETRY", "TOGETHER", "NodeVote", "NodeVotes", "handed_over_at", "is_foreign", "look_after"]

NEVER: Final = float("inf")
LOOK_AGAIN: Final = 5.0
"""Seconds after which to look again in any case: the key may have no ttl, or a new holder with a shorter ttl may hang."""
TOGETHER: Final = 0.0005
"""Claims that are due within so many seconds are sent together."""
OVERDUE: Final = 0.001 + TOGETHER
"""Seconds between the end of a ttl and the next look. Servers count whole milliseconds, so the key is gone by then."""
RETRY: Final = 0.1
"""Seconds after which to claim again on a node that is unreachable, or may not vote."""
FOREIGN_LOOK: Final = 0.05
"""Seconds after which to look again if another program has the key: it will not hand over."""
KEEP_VOTE: Final = 1 / 3
"""The share of the ttl after which a waiter without a majority claims its votes again, to keep them."""


def is_foreign(answer: Any) -> bool:
    """Whether a node has answered that another program holds the lock, which does not hand over."""
    return type(answer) is Refused and answer.plain and MADE_HERE.fullmatch(answer.holder) is None


def look_after(refusal: Refused, ttl: float) -> float:
    """Seconds after which a refused waiter looks again: the holder's ttl, its own ttl or LOOK_AGAIN; the least counts."""
    left = LOOK_AGAIN if refusal.left_ms < 0 else refusal.left_ms / 1000
    return min(left, ttl, LOOK_AGAIN) + OVERDUE


def handed_over_at(config: LockConfig, sent: float, server_us: int, push: Yours, now: float) -> float | None:
    """The earliest local time of a hand-over, from a claim that was sent at `sent` and answered at server time
    `server_us`; see Validity above. None if it cannot be told, so that the waiter must claim again."""
    waited = (push.server_us - server_us) / 1e6
    since = sent + waited * config.slowest
    if config.group.clustered or not server_us or waited < 0 or since > now:
        return None  # the push proves nothing, or is older than the answer, or a clock was set
    return since


class NodeVote:
    """The vote of one node, and its last answer."""

    # Class attributes instead of __init__: each wait makes one of these for each node, and sets few of its attributes.
    answer: Any = None
    """The last answer: Granted, Yours, Refused or a Fault."""
    deadline = 0.0
    """The time until which the vote counts; 0.0 if it does not count."""
    stamp = 0
    """The stamp of the vote that counts."""
    yielded = 0
    """The last stamp that was yielded. A vote with that stamp or a smaller one does not count; see Stamps above."""
    yielded_at = 0.0
    """When the waiter decided to yield that stamp."""
    to_yield = 0
    """The stamp of a yield that is not sent yet; 0 if there is none."""
    inquired = 0
    """The stamp of an inquiry that arrived before its grant; 0 if there is none."""
    token = 0
    sent = 0.0
    """When the last answered claim was sent: the local time just before."""
    server_us = 0
    """When the node answered that claim, on the node's clock."""
    due = 0.0
    """When to claim again."""
    unanswered = 0
    """The number of claims and yields without a reply. A push may give the vote before the reply to a claim comes."""


class NodeVotes:
    """The votes of all nodes for one waiter, as replies and pushes bring them. A PushListener."""

    keys: Sequence[bytes] = ()
    holds = False
    """The waiter has a majority and ignores inquiries from now on."""
    must_yield = False
    """A yield is due and not sent."""
    tracked = False
    """The lock's keys are tracked, because another program holds one."""
    wakes_at = NEVER
    """Until when the waiter sleeps, unless something wakes it."""

    def __init__(self, io: IO, wakeup: Any, acquisition: Acquisition) -> None:
        self.io = io
        self.wakeup = wakeup
        self.acquisition = acquisition
        self.config = acquisition.request.config
        self.group = self.config.group
        self.who = acquisition.identify(io.nonce)
        self.shares = self.group.n > 1 and self.who.generation != NO_GENERATION
        """The owner is explicit, so that the waiter may share the votes of a holder."""
        self.votes = [NodeVote() for _ in self.group.nodes]
        self.standstills = self.group.standstills
        """The group's count of standstills when the votes were counted; see NodeGroup."""
        self.seen_at = acquisition.sent
        """When the last answer came."""

    def on_reply(self, node: int, answer: Any, sent: float, now: float) -> None:
        """Handle the reply to a claim or a yield that was sent at `sent` and answered at `now`."""
        vote = self.votes[node]
        if type(answer) is int:
            answer = decode_vote(answer)
        vote.answer, self.seen_at = answer, now
        if type(answer) is Fault:
            self._failed(vote, answer, now)
            return
        vote.sent, vote.server_us = sent, answer.server_us
        if type(answer) is Granted:
            self._granted(vote, answer, sent, now)
        else:
            vote.deadline = 0.0
            vote.due = now + self._look_again(answer)
        if self.shares:
            self._answer_postponed(now)
        self._wake(vote, now)

    def _granted(self, vote: NodeVote, answer: Granted, sent: float, now: float) -> None:
        if 0 < answer.stamp < vote.yielded and sent > vote.yielded_at:
            # The stamps of a node grow, unless it forgot them and its clock was set back. Without this the waiter would
            # yield to itself until the clock has caught up.
            vote.yielded = 0
        ttl = self.acquisition.timing.ttl
        # Never believe more than the requested ttl: a server whose clock was set back reports hours.
        left = ttl if answer.left_ms < 0 else min(ttl, answer.left_ms / 1000)
        self._count(vote, answer.stamp, answer.token, sent + self.config.policy.validity(left), now)
        if answer.inquired and not self._postpones(vote, answer.stamp, now):
            self._inquired(vote, answer.stamp, now)

    def _postpones(self, vote: NodeVote, stamp: int, now: float) -> bool:
        """Whether to answer an inquiry later. A waiter that joins a holder of its explicit owner gets the
        shares of a majority one after another. So it waits for all replies, and yields only if they bring no majority."""
        if not self.shares or vote.inquired == stamp or not any(each.unanswered for each in self.votes):
            return False
        # A node may not reply at all. So claim here again soon: if the node says the same, the waiter yields.
        vote.inquired, vote.due = stamp, min(vote.due, now + RETRY)
        return True

    def _answer_postponed(self, now: float) -> None:
        """Yield the shares whose inquiries were postponed, when all claims are answered."""
        if not any(each.unanswered for each in self.votes):
            for vote in self.votes:
                if vote.inquired and vote.inquired == vote.stamp:
                    self._inquired(vote, vote.stamp, now)
            if self.must_yield:
                self.wakeup.set_here()

    def _wake(self, vote: NodeVote, now: float) -> None:
        """Wake the waiter if it has something to do now. Most answers of a quorum complete no majority."""
        if vote.to_yield or vote.due < self.wakes_at or (vote.deadline and self._has_majority(now)):
            self.wakeup.set_here()

    def _failed(self, vote: NodeVote, fault: Fault, now: float) -> None:
        """Handle a fault. After a loss of data or a step of the node's clock, the vote does not count any more."""
        vote.answer, vote.due = fault, now + RETRY
        if fault is guard.UNREADY or fault is guard.STEPPED:
            vote.deadline = 0.0
        self.wakeup.set_here()  # perhaps no majority can be reached any more

    def _look_again(self, refusal: Refused) -> float:
        """Seconds until the lock may be free without a push: its ttl may end, or its holder may not hand over."""
        if refusal.plain and not self.tracked and is_foreign(refusal):
            return FOREIGN_LOOK
        if refusal.holder == self.who.owner:
            # The node has kept the vote for this explicit owner, although the waiter has yielded its share. The waiter
            # may join the holder again, or must yield the share under its present stamp.
            return RETRY
        return look_after(refusal, self.acquisition.timing.ttl)

    def on_push(self, node: int, push: Push) -> None:
        vote, now = self.votes[node], self.io.now()
        if type(push) is Yours:
            self._handed_over(node, vote, push, now)
        elif type(push) is Inquiry:
            self._inquired(vote, push.stamp, now)
        else:
            vote.due = 0.0
        self._wake(vote, now)

    def _handed_over(self, node: int, vote: NodeVote, push: Yours, now: float) -> None:
        since = handed_over_at(self.config, vote.sent, vote.server_us, push, now)
        if since is None or not guard.is_recent(self.group, vote.sent, now):
            vote.due = 0.0
            return
        if self.group.guard:
            fault = guard.check_vote(self.group, node, push.proof, push.server_us, vote.sent, now)
            if fault is not None:
                self._failed(vote, fault, now)
                return
        vote.answer, self.seen_at = push, now
        self._count(vote, push.stamp, push.token, since + self.acquisition.timing.validity, now)

    def _count(self, vote: NodeVote, stamp: int, token: int, deadline: float, now: float) -> None:
        """Count a vote, unless it was yielded or has expired."""
        if 0 < stamp <= vote.yielded:
            vote.to_yield, self.must_yield = stamp, True
        elif now >= deadline:
            vote.deadline, vote.due = 0.0, 0.0
        else:
            vote.deadline, vote.stamp, vote.token = deadline, stamp, token
            vote.due = min(deadline, now + self.acquisition.timing.ttl * KEEP_VOTE)
            if stamp and stamp == vote.inquired:
                self._inquired(vote, stamp, now)

    def _inquired(self, vote: NodeVote, stamp: int, now: float) -> None:
        """Handle an inquiry: yield the vote to a lower ticket, unless this waiter has a majority."""
        if stamp > max(vote.stamp, vote.yielded):
            vote.inquired = stamp  # the inquiry has overtaken its grant
        if self._has_majority(now) or not vote.deadline or stamp != vote.stamp:
            return
        # Uncount and record the vote first. Once the yield is sent, another waiter may have the vote.
        vote.deadline = 0.0
        vote.yielded, vote.yielded_at = stamp, now
        vote.to_yield, self.must_yield = stamp, True

    def _has_majority(self, now: float) -> bool:
        """Whether a majority of votes counts now. Such a waiter ignores inquiries, also while it agrees on a token."""
        if self.holds:
            return True
        counted = 0
        for vote in self.votes:
            if vote.deadline > now:
                counted += 1
        return counted >= self.group.need

    def on_change(self, node: int) -> None:
        """Claim again on a node where a tracked key has changed, or all data was deleted."""
        self.votes[node].due = 0.0
        self.wakeup.set_here()

    def on_connection_lost(self, node: int) -> None:
        self.votes[node].due = 0.0
        self.wakeup.set_here()

    def counted(self, now: float) -> list[int]:
        """The nodes whose votes count now."""
        if self.standstills != self.group.standstills:
            self.standstills = self.group.standstills
            self.uncount(list(range(self.group.n)))
        nodes: list[int] = []
        for node, vote in enumerate(self.votes):
            if vote.deadline > now:
                nodes.append(node)
        return nodes

    def uncount(self, nodes: list[int]) -> None:
        self.holds = False
        for node in nodes:
            self.votes[node].deadline = self.votes[node].due = 0.0
