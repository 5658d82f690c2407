"""One connection without I/O: it turns requests into bytes and bytes into answers, for any transport.

Requests are pipelined: each waits in `pending` for its replies, which come back in order, also long after the one who
asked has gone. Nothing is usable before the handshake has ended. A script that the server forgot (NOSCRIPT) is loaded
and the request sent again, in the order of the replies, so that a release still follows its acquire.

Votes of a guarded group are kept back until the node has shown its marker: the transport calls `seal` at the end of each
write with votes in it, and the marker's reply lets them pass, or turns them all into faults.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

import hiredis

from handfast import lua
from handfast.core.effects import SILENT, Fault, Poll
from handfast.core.group import Group, Node
from handfast.core.guard import clock_stepped, incarnation, server_time
from handfast.core.handshake import Rejected, Steps, load_scripts
from handfast.core.resp import encode
from handfast.net.faults import from_reply

__all__ = ["DISCARD", "NOTHING", "Connection", "Question", "Subscription", "garbled"]

NOTHING: Final = object()
"""What a reader gives that has no whole reply."""
_random = os.urandom
_ReplyError: Final = hiredis.ReplyError
_Push: Final = hiredis.PushNotification
REST: Final = 0.002
"""Seconds: far less than it takes to make a master a replica, to synchronise it and to promote it again (12 ms seen).
Whoever sends votes more often than this meets the replica's errors in between, and then asks too."""
INFO_REPLICATION: Final = encode(b"INFO", b"replication")
STEPPED: Final = Fault(
    "clock", "its clock stepped forward, so it may have let leases go early; no vote until it is checked"
)
UNREADY: Final = Fault("UNREADY", "forgot its data while connected, no vote until it is checked again")


def garbled(error: Exception) -> Fault:
    """Of a reader that has met what is no reply; a TypeError: a map with a key that cannot be one."""
    return Fault("protocol", f"does not speak Redis' protocol ({error})", lasting=True)


class Question(Protocol):
    """The future of a single answer."""

    over: bool
    """Answered, or given up: no further answer is welcome."""
    reply: Any

    def wake(self) -> None:
        """It has been answered: let whoever waits for it know. Not called where `wakes` is False."""

    wakes: bool

    def set_result(self, reply: Any, /) -> None:
        """Answer it, and let know."""


class _Sink:
    """A poll that is not a ballot."""

    __slots__ = ("waiter", "width")

    guarded = False
    decided = False
    over = False
    until = float("inf")

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.waiter: Any = None

    def add(self, node: int, reply: Any) -> bool:
        """Replies that nobody waits for."""
        return False


DISCARD: Final = _Sink()


class Connection:
    """The state of one connection to node number `index`."""

    __slots__ = (
        "_gets",
        "_group",
        "_partial",
        "_question",
        "_sealed_at",
        "_steps",
        "_voted",
        "_votes",
        "_wakes",
        "fault",
        "heard",
        "index",
        "name",
        "now",
        "out",
        "pending",
        "reader",
        "ready",
        "redirected",
        "sent",
    )

    def __init__(
        self, index: int, group: Group, steps: Steps, question: type[Question], now: Callable[[], float]
    ) -> None:
        self.index = index
        self._group = group
        self.now = now
        """The clock that leases are counted on."""
        self._question = question
        """What the transport uses for single questions; all else in `pending` is a poll."""
        self._wakes = question.wakes
        self.reader = hiredis.Reader(notEnoughData=NOTHING)
        self._gets = self.reader.gets
        self._partial: list[Any] = []
        self._sealed_at = float("-inf")
        self._votes: list[Poll] = []
        self._voted: list[Any] = []
        """Votes and what was voted: kept back until the marker has been seen."""
        self.pending: deque[Any] = deque()
        """Polls and questions whose replies have not come."""
        self.sent: deque[bytes] = deque()
        """In step with `pending`: what was sent for each; empty where it must not be sent again."""
        self.out: list[bytes] = []
        """Bytes for the transport to send; it takes and clears them."""
        self.ready = False
        """The handshake is over and requests are welcome."""
        self.fault: Fault | None = None
        """Why the connection is of no use any more."""
        self.heard: Callable[[int, Any], None] | None = None
        """Told of what the node pushes."""
        self.redirected: Callable[[Any, bytes, Fault], bool] | None = None
        """Of a server that may have moved: asked about a request's error; True if the answer comes from elsewhere."""
        self.name = b""
        """The pub/sub channel on which the node reaches this connection alone; empty before it has subscribed."""
        self._steps = steps
        self._step(None)

    def request(self, payload: bytes, poll: Poll | Question) -> None:
        self.pending.append(poll)
        self.sent.append(payload)
        self.out.append(payload)

    def _expect(self, poll: Poll | Question) -> None:
        """Replies to something that is not a request."""
        self.pending.append(poll)
        self.sent.append(b"")

    def seal(self) -> bytes:
        """Read marker and time behind the votes of this write; after a rest the node's promotions as well.

        A master that was made a replica and then a master again, on a live connection, may have taken over data in which
        the marker is and a lease is not. That takes longer than a moment, and INFO replication shows it.
        """
        now = self.now()
        rested = now - self._sealed_at > REST
        self._sealed_at = now
        self._expect(_Seal(self, self._group.nodes[self.index], now, rested))
        return self._group.read_seal + INFO_REPLICATION if rested else self._group.read_seal

    def feed(self, data: bytes, reply: Any = NOTHING) -> None:
        """Take what arrived; answers go to their polls. A `reply` was taken from what arrived before."""
        self.reader.feed(data)
        gets, pending, sent, index = self._gets, self.pending, self.sent, self.index
        question = self._question
        try:
            if reply is NOTHING:
                reply = gets()
            while reply is not NOTHING:
                kind = type(reply)
                if kind is _Push:
                    if self.heard is not None:
                        self.heard(index, reply)
                    reply = gets()
                    continue
                if not pending:
                    self.fail(Fault("protocol", f"sent a reply that nobody asked for: {reply!r}"[:200]))
                    return
                poll = pending[0]
                if kind is _ReplyError:
                    reply = from_reply(str(reply))
                    self._sealed_at = float("-inf")  # whatever it was, the next seal is a thorough one
                if type(poll) is question:
                    pending.popleft()
                    payload = sent.popleft()
                    if not poll.over and (kind is not _ReplyError or not self._again(poll, payload, reply)):
                        poll.reply = reply
                        poll.over = True
                        if self._wakes:
                            poll.wake()
                else:
                    self._count(poll, kind, reply)
                reply = gets()
        except (hiredis.ProtocolError, TypeError) as error:
            self.fail(garbled(error))

    def _count(self, poll: Any, kind: type, reply: Any) -> None:
        """A reply for the first in `pending`, which is a poll."""
        width = poll.width
        if width > 1:
            self._partial.append(reply)
            if len(self._partial) < width:
                return
            reply, self._partial = self._partial, []
        self.pending.popleft()
        payload = self.sent.popleft()
        if (kind is _ReplyError or width > 1) and self._again(poll, payload, reply):
            return
        if self._group.guard and poll.guarded:
            self._votes.append(poll)
            self._voted.append(reply)
        elif poll.add(self.index, reply):
            future = poll.waiter
            if future is not None and not future.over:
                future.set_result(None)

    def fail(self, fault: Fault) -> None:
        """The connection is over: everybody who waits is told why."""
        if self.fault is None:
            self.fault = fault
        self.ready = False
        self.out.clear()
        self._pass_votes(self.fault)
        self.sent.clear()
        while self.pending:
            self.answer(self.pending.popleft(), self.fault)

    def answer(self, poll: Any, reply: Any) -> None:
        """Tell whoever waits, poll or question."""
        if type(poll) is self._question:
            if not poll.over:
                poll.set_result(reply)
        elif poll.add(self.index, reply) and poll.waiter is not None and not poll.waiter.over:
            poll.waiter.set_result(None)

    def _pass_votes(self, fault: Fault | None) -> None:
        votes, voted = self._votes, self._voted
        self._votes, self._voted = [], []
        index = self.index
        for poll, reply in zip(votes, voted, strict=True):
            if poll.add(index, reply if fault is None else fault):
                future = poll.waiter
                if future is not None and not future.over:
                    future.set_result(None)

    def _again(self, poll: Any, payload: bytes, reply: Any) -> bool:
        """Send the request once more: elsewhere, if the server says so; here, with the scripts, if it has forgotten them.

        Not for who has gone meanwhile and has undone what it asked for, nor for what has come to its end: it must not be
        carried out now.
        """
        faults = [r for r in (reply if type(reply) is list else [reply]) if type(r) is Fault]
        if not payload or not faults:
            return False
        if type(poll) is not self._question and (
            poll.over or (poll.waiter is not None and poll.waiter.over) or self.now() >= poll.until
        ):
            return False
        if self.redirected is not None and self.redirected(poll, payload, faults[0]):
            return True
        if not any(fault.kind == "NOSCRIPT" for fault in faults):
            return False
        self._expect(_Sink(len(lua.NAMES)))
        self._expect(poll)
        self.out += [load_scripts(), payload]
        if self._group.guard and getattr(poll, "guarded", False):
            self.out.append(self.seal())
        return True

    def _step(self, replies: list[Any] | None) -> None:
        """Advance the handshake."""
        try:
            commands, width = next(self._steps) if replies is None else self._steps.send(replies)
        except StopIteration:
            self.ready = True
        except Rejected as rejected:
            self.fail(rejected.fault)
        else:
            self._expect(_Step(self, width))
            self.out.append(commands)


class Subscription(_Sink):
    """The poll of a subscription to the connection's own channel.

    What confirms it is a push, so it is known by the reply to the PING behind it. A refusal is a reply of its own, and
    comes before that one.
    """

    __slots__ = ("connection", "decided", "name", "over", "reply")

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection
        self.decided = self.over = False
        prefix = (connection._group.policy.prefix or "handfast:").encode()
        self.name = prefix + b"hand:" + _random(12).hex().encode()
        self.reply: bytes | Fault = SILENT

    @property
    def payload(self) -> bytes:
        return encode(b"SUBSCRIBE", self.name) + encode(b"PING")

    def add(self, node: int, reply: Any) -> bool:
        connection = self.connection
        if type(reply) is not Fault:
            connection.name = self.reply = self.name
        else:
            self.reply = reply
            if connection.fault is None:
                connection.pending.appendleft(DISCARD)
                connection.sent.appendleft(b"")
        self.decided = True
        return True


class _Step(_Sink):
    """The poll of one step of the handshake."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection, width: int) -> None:
        super().__init__(width)
        self.connection = connection

    def add(self, node: int, reply: Any) -> bool:
        if self.connection.fault is None:
            self.connection._step(reply if type(reply) is list and self.width > 1 else [reply])
        return False


class _Seal(_Sink):
    """The marker that must be there behind the votes of one write, and the time that it may be."""

    __slots__ = ("connection", "incarnation", "marker", "node", "sent")

    def __init__(self, connection: Connection, node: Node, sent: float, rested: bool) -> None:
        super().__init__(3 if rested else 2)
        self.connection = connection
        self.node = node
        self.sent = sent
        self.marker = node.marker
        self.incarnation = node.incarnation

    def add(self, node: int, reply: Any) -> bool:
        connection = self.connection
        fault = reply if type(reply) is Fault else self._broken(reply)
        if fault is not None:
            group = connection._group
            if group.nodes[node].marker == self.marker:
                group.set_marker(group.nodes[node], b"")
        connection._pass_votes(fault)
        return False

    def _broken(self, reply: Any) -> Fault | None:
        for each in reply:
            if type(each) is Fault:
                return each
        marker, time, *more = reply
        if not self.marker or marker != self.marker:
            return UNREADY
        group, info = self.connection._group, more[0] if more else None
        if clock_stepped(self.node, self.sent, self.connection.now(), server_time(time), group.policy.drift):
            group.suspect(self.node.index)
            return STEPPED
        if info is not None and (b"role:master" not in info or incarnation(self.node.run_id, info) != self.incarnation):
            return UNREADY
        return None
