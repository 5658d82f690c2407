"""Vote counting, and nothing else.

A node's answer is a yes, a no or a fault. Unknown is neither: a ballot is decided when the yeses reach the need, or when
they no longer can. Replies of all commands fall into the same three kinds, so `Ballot` counts them all:
yes: a positive integer, a status, a re-entry (an array of one); no: nil, zero, a refusal (an array of two).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from handfast.core.effects import Fault

__all__ = ["Ballot", "Census", "Rounds", "Vote", "WideBallot", "majority", "said_yes"]


def majority(nodes: int) -> int:
    """
    >>> [majority(n) for n in (1, 2, 3, 4, 5)]
    [1, 2, 2, 3, 3]
    """
    return nodes // 2 + 1


def said_yes(answer: Any) -> bool:
    kind = type(answer)
    return (kind is int and answer > 0) or kind is bytes or (kind is list and len(answer) == 1)


class Ballot:
    """The count of one broadcast of one command."""

    width = 1
    guarded = False
    # One ballot is made for each operation: what most of them never change is not set for each.
    yeses = 0
    votes = 0
    """The nodes that said yes, as bits."""
    noes = 0
    """Noes and faults: answers that cannot become a yes."""
    decided = False
    waiter: Any = None
    late: Callable[[int], None] | None = None
    """Told of yeses that come after the decision."""
    missed: Callable[[int], None] | None = None
    """Told of noes that come after the decision."""
    over = False
    """Nobody waits for it any more, decided or not."""
    until = float("inf")
    """See effects.Poll."""

    def __init__(self, nodes: int, need: int, asked: int = 0) -> None:
        self.answers: list[Any] = [None] * nodes
        """By node: what it said, or None where it has not answered; nil is kept as 0."""
        self.need = need
        self.asked = asked or nodes

    def add(self, node: int, reply: Any) -> bool:
        kind = type(reply)
        if kind is int:
            yes = reply > 0
        elif kind is bytes:
            yes = True
        else:
            yes = kind is list and len(reply) == 1
            if reply is None:
                reply = 0
        self.answers[node] = reply
        if yes:
            self.yeses += 1
            self.votes |= 1 << node
            if self.decided:
                if self.late is not None:
                    self.late(node)
                return False
            if self.yeses < self.need:
                return False
        else:
            self.noes += 1
            if self.decided and self.missed is not None and reply == 0:
                self.missed(node)
            if self.decided or self.asked - self.noes >= self.need:
                return False
        self.decided = True
        return True

    @property
    def won(self) -> bool:
        return self.yeses >= self.need

    def refused(self) -> int:
        """Nodes that answered no (a fault is not a no)."""
        return sum(1 for a in self.answers if a is not None and type(a) is not Fault and not said_yes(a))


class Vote(Ballot):
    """A ballot whose yeses grant a lock: a guarded node must show its marker behind them."""

    guarded = True


class WideBallot(Ballot):
    """A ballot over payloads of several commands: `judge` makes one answer of a node's replies."""

    def __init__(
        self, nodes: int, need: int, width: int, judge: Callable[[int, list[Any]], Any], guarded: bool = False
    ) -> None:
        super().__init__(nodes, need)
        self.width = width
        self.judge = judge
        self.guarded = guarded

    def add(self, node: int, reply: Any) -> bool:
        return super().add(node, reply if type(reply) is Fault else self.judge(node, reply))


class Census(WideBallot):
    """Everybody is asked and everybody's answer matters: decided when all have answered."""

    def __init__(self, nodes: int, width: int, judge: Callable[[int, list[Any]], Any]) -> None:
        super().__init__(nodes, nodes, width, judge)

    def add(self, node: int, reply: Any) -> bool:
        super().add(node, reply)
        self.decided = self.yeses + self.noes >= self.asked
        return self.decided


class Rounds:
    """The count of one broadcast that carries many commands per node: a ballot for each column.

    Decided when every column is, or when all nodes have answered.
    """

    __slots__ = ("answered", "asked", "ballots", "decided", "open", "over", "tail", "until", "waiter", "width")

    guarded = False

    def __init__(
        self,
        ballots: Sequence[Ballot],
        *,
        asked: int,
        extra: int = 0,
        tail: Callable[[int, list[Any]], Fault | None] | None = None,
        until: float = Ballot.until,
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
        """Takes the last `extra` replies of a node; a Fault from it voids the node's whole answer."""

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
