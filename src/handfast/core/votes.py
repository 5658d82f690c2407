"""Vote counting.

A node's answer is a yes, a no or a fault. A missing answer is none of them. A ballot is decided when it has the yeses
that it needs, or when it cannot get them any more. Yes is a granted vote, a positive integer or a status. No is a refused
vote, nil or zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from handfast.core.io import IO, SILENT, Fault
from handfast.protocol.claims import Granted

__all__ = [
    "AllReplies",
    "Ballot",
    "BatchBallot",
    "MultiReplyBallot",
    "OneReply",
    "ask_by_broadcast",
    "is_grant",
    "majority",
]

FOREVER: Final = float("inf")


def majority(nodes: int) -> int:
    """
    >>> [majority(n) for n in (1, 2, 3, 4, 5)]
    [1, 2, 2, 3, 3]
    """
    return nodes // 2 + 1


def is_grant(answer: Any) -> bool:
    kind = type(answer)
    return kind is Granted or (kind is int and answer > 0) or kind is bytes


class OneReply:
    """Collects the reply of a single node. Nothing has to be counted."""

    # Class attributes instead of __init__: each operation on a single node makes one of these.
    width = 1
    checked = False
    until = FOREVER
    decided = False
    over = False
    waiter: Any = None
    reply: Any = None

    def add(self, node: int, reply: Any) -> bool:
        if self.decided:
            return False  # the reply of a node that was given up comes too late
        self.decided, self.reply = True, reply
        return True


async def ask_by_broadcast(io: IO, payload: bytes, timeout: float) -> Any:
    """`IO.ask` for drivers that have no quicker way."""
    collected = OneReply()
    await io.broadcast(payload, collected, timeout)
    return collected.reply if collected.decided else SILENT


class Ballot:
    """Counts the replies to a broadcast of one command.

    With `proves_loss`, the ballot also waits for the noes that prove that no majority has the vote. Without it, a fault
    and one no of three nodes decide, although the third node may still send the second no, which is the proof.
    """

    __slots__ = (
        "answers",
        "asked",
        "checked",
        "decided",
        "failed",
        "late",
        "missed",
        "need",
        "noes",
        "over",
        "proves_loss",
        "reduce",
        "until",
        "votes",
        "waiter",
        "width",
        "yeses",
    )

    def __init__(
        self,
        nodes: int,
        need: int,
        asked: int = 0,
        reduce: Callable[[int, Any], Any] | None = None,
        *,
        proves_loss: bool = False,
    ) -> None:
        self.answers: list[Any] = [None] * nodes
        """The answer of each node, or None if it has not answered. nil is kept as 0."""
        self.need = need
        self.asked = asked or nodes
        self.reduce = reduce
        """Turns a node's reply into its answer."""
        self.proves_loss = proves_loss
        self.yeses = 0
        self.votes = 0
        """Nodes, as bits, that said yes."""
        self.noes = 0
        """The number of noes and faults, which cannot become a yes."""
        self.decided = False
        self.late: Callable[[int], None] | None = None
        """Called with the node of each yes after the decision."""
        self.missed: Callable[[int], None] | None = None
        """Called with the node of each no after the decision."""
        self.failed: Callable[[int], None] | None = None
        """Called with the node of each fault after the decision."""
        self.over = False
        """The caller does not wait any more, whether the ballot is decided or not."""
        self.width = 1
        self.checked = False
        self.waiter: Any = None
        self.until = FOREVER
        """For these four see Collector."""

    def add(self, node: int, reply: Any) -> bool:
        if self.reduce is not None and type(reply) is not Fault:
            reply = self.reduce(node, reply)
        if reply is None:
            reply = 0
        self.answers[node] = reply
        if not (reply > 0 if type(reply) is int else type(reply) is bytes or type(reply) is Granted):  # as is_grant
            return self._no(node, reply)
        self.votes |= 1 << node
        self.yeses += 1
        if self.decided:
            if self.late is not None:
                self.late(node)
            return False
        if self.yeses >= self.need:
            self.decided = True
        elif self.noes and self.proves_loss:
            self.decided = self._loss_is_proved()
        return self.decided

    def _no(self, node: int, reply: Any) -> bool:
        """Count a no or a fault."""
        self.noes += 1
        if not self.decided:
            lost = self.asked - self.noes < self.need
            self.decided = self._loss_is_proved() if self.proves_loss and self.yeses < self.need else lost
            return self.decided
        if type(reply) is Fault:
            if self.failed is not None:
                self.failed(node)
        elif self.missed is not None and reply == 0:
            self.missed(node)
        return False

    def _loss_is_proved(self) -> bool:
        """Whether no majority can have the vote any more, or too few nodes are left that could prove it."""
        spare, refused = self.asked - self.need, self.refused()
        silent = self.asked - self.yeses - self.noes
        return self.noes > spare and (refused > spare or refused + silent <= spare)

    @property
    def won(self) -> bool:
        return self.yeses >= self.need

    def refused(self) -> int:
        """The number of nodes that answered no. A fault is not a no."""
        return sum(1 for a in self.answers if a is not None and type(a) is not Fault and not is_grant(a))

    def faults(self) -> int:
        """The number of nodes that failed or did not answer in time."""
        return sum(1 for a in self.answers if type(a) is Fault or (a is None and not self.decided))


class MultiReplyBallot(Ballot):
    """Counts the replies to payloads of several commands. `reduce` makes one answer of a node's replies."""

    __slots__ = ()

    def __init__(self, nodes: int, need: int, width: int, reduce: Callable[[int, Any], Any], asked: int = 0) -> None:
        super().__init__(nodes, need, asked, reduce)
        self.width = width


class AllReplies(MultiReplyBallot):
    """A ballot in which all answers matter: it is decided when all nodes have answered."""

    __slots__ = ()

    def __init__(self, nodes: int, width: int, reduce: Callable[[int, Any], Any]) -> None:
        super().__init__(nodes, nodes, width, reduce)

    def add(self, node: int, reply: Any) -> bool:
        super().add(node, reply)
        self.decided = self.yeses + self.noes >= self.asked
        return self.decided


class BatchBallot:
    """Counts the replies to a broadcast with many commands for each node. Each command has a ballot of its own.

    The batch is decided when every ballot is, or when all nodes have answered.
    """

    checked = False
    __slots__ = ("answered", "asked", "ballots", "decided", "open", "over", "tail", "until", "waiter", "width")

    def __init__(
        self,
        ballots: Sequence[Ballot],
        *,
        asked: int,
        extra: int = 0,
        tail: Callable[[int, list[Any]], Fault | None] | None = None,
        until: float = FOREVER,
    ) -> None:
        self.ballots = ballots
        self.until = until
        self.asked = asked
        self.answered = 0
        self.open = len(ballots)
        self.decided = False
        self.over = False
        self.waiter: Any = None
        self.width = len(ballots) + extra
        self.tail = tail
        """Checks the last `extra` replies of a node. If it returns a Fault, none of the node's replies counts."""

    def add(self, node: int, reply: Any) -> bool:
        replies: list[Any] = reply if self.width > 1 and type(reply) is list else [reply]
        fault = reply if type(reply) is Fault else None
        if fault is None and self.tail is not None:
            fault = self.tail(node, replies[len(self.ballots) :])
        for column, ballot in enumerate(self.ballots):
            if ballot.add(node, replies[column] if fault is None else fault):
                self.open -= 1
        self.answered += 1
        if self.decided or (self.open and self.answered < self.asked):
            return False
        self.decided = True
        return True
