"""One connection without I/O: it turns requests into bytes and bytes into answers, for any transport.

Requests are pipelined: each waits in `pending` for its replies, which come back in order, also long after the one who
asked has gone. Nothing is usable before the handshake has ended. A script that the server forgot (NOSCRIPT) is loaded
and the request sent again, in the order of the replies, so that a release still follows its acquire.

Votes of a guarded group are kept back until the node has shown its marker: the transport calls `seal` at the end of each
write with votes in it, and the marker's reply lets them pass, or turns them all into faults.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import hiredis

from handfast import lua
from handfast.core.effects import Fault, Poll
from handfast.core.group import Group, Node
from handfast.core.guard import incarnation
from handfast.core.handshake import Rejected, Steps, load_scripts
from handfast.core.resp import encode
from handfast.wire.faults import from_reply

__all__ = ["Channel", "Posted"]

_NOTHING: Final = object()
_ReplyError: Final = hiredis.ReplyError
_Push: Final = hiredis.PushNotification
REST: Final = 0.05
"""Seconds: far less than it takes to make a master a replica, to synchronise it and to promote it again."""
INFO_REPLICATION: Final = encode(b"INFO", b"replication")
UNREADY: Final = Fault("UNREADY", "forgot its data while connected, no vote until it is checked again")


Asked = tuple[Any, bytes]
"""A single question: the future of its answer, and what was sent."""


class _Sink:
    """A poll that is not a ballot."""

    __slots__ = ("sent", "waiter", "width")

    guarded = False
    decided = False
    over = False

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.waiter: Any = None
        self.sent: Any = b""
        """Empty: it is not sent again if the scripts were forgotten."""

    def add(self, node: int, reply: Any) -> bool:
        """Replies that nobody waits for."""
        return False


class Posted(_Sink):
    """A request that nobody waits for, but which must be carried out."""

    __slots__ = ()

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.sent = payload


def _is_over(poll: Poll | Asked) -> bool:
    """Who asked has gone, and has undone what it asked for: it must not be carried out now."""
    if isinstance(poll, tuple):
        return bool(poll[0].done())
    return poll.over or (poll.waiter is not None and poll.waiter.done())


class Channel:
    """The state of one connection to node number `index`."""

    __slots__ = (
        "_gets",
        "_group",
        "_partial",
        "_reader",
        "_sealed_at",
        "_steps",
        "_votes",
        "fault",
        "index",
        "out",
        "pending",
        "ready",
    )

    def __init__(self, index: int, group: Group, steps: Steps) -> None:
        self.index = index
        self._group = group
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._gets = self._reader.gets
        self._partial: list[Any] = []
        self._sealed_at = float("-inf")
        self._votes: list[tuple[Poll, Any]] = []
        """Kept back until the marker has been seen."""
        self.pending: deque[Poll | Asked] = deque()
        self.out: list[bytes] = []
        """Bytes for the transport to send; it takes and clears them."""
        self.ready = False
        """The handshake is over and requests are welcome."""
        self.fault: Fault | None = None
        """Why the connection is of no use any more."""
        self._steps = steps
        self._step(None)

    def request(self, payload: bytes, poll: Poll | Asked) -> None:
        self.pending.append(poll)
        self.out.append(payload)

    def seal(self, now: float) -> bytes:
        """Read the marker behind the votes of this write; after a rest its promotions as well.

        A master that was made a replica and then a master again, on a live connection, may have taken over data in which
        the marker is and a lease is not. That takes longer than a moment, and INFO replication shows it.
        """
        rested = now - self._sealed_at > REST
        self._sealed_at = now
        self.pending.append(_Seal(self, self._group.nodes[self.index], rested))
        return self._group.read_marker + INFO_REPLICATION if rested else self._group.read_marker

    def feed(self, data: bytes) -> None:
        """Take what arrived; answers go to their polls."""
        self._reader.feed(data)
        try:
            self._deliver()
        except (hiredis.ProtocolError, TypeError) as error:  # a TypeError: a map with a key that cannot be one
            self.fail(Fault("protocol", f"does not speak Redis' protocol ({error})", lasting=True))

    def _deliver(self) -> None:
        gets, pending, index, guard = self._gets, self.pending, self.index, self._group.guard
        while (reply := gets()) is not _NOTHING:
            kind = type(reply)
            if kind is _Push:
                continue
            if not pending:
                self.fail(Fault("protocol", f"sent a reply that nobody asked for: {reply!r}"[:200]))
                return
            poll = pending[0]
            if kind is _ReplyError:
                reply = from_reply(str(reply))
            if isinstance(poll, tuple):
                pending.popleft()
                if (kind is not _ReplyError or not self._again(poll, reply)) and not poll[0].done():
                    poll[0].set_result(reply)
                continue
            width = poll.width
            if width > 1:
                self._partial.append(reply)
                if len(self._partial) < width:
                    continue
                reply, self._partial = self._partial, []
            pending.popleft()
            if (kind is _ReplyError or width > 1) and self._again(poll, reply):
                continue
            if guard and poll.guarded:
                self._votes.append((poll, reply))
            elif poll.add(index, reply):
                waiter = poll.waiter
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)

    def fail(self, fault: Fault) -> None:
        """The connection is over: everybody who waits is told why."""
        if self.fault is None:
            self.fault = fault
        self.ready = False
        self.out.clear()
        self._pass_votes(self.fault)
        while self.pending:
            self._answer(self.pending.popleft(), self.fault)

    def _answer(self, poll: Poll | Asked, reply: Any) -> None:
        if isinstance(poll, tuple):
            if not poll[0].done():
                poll[0].set_result(reply)
        elif poll.add(self.index, reply) and poll.waiter is not None and not poll.waiter.done():
            poll.waiter.set_result(None)

    def _pass_votes(self, fault: Fault | None) -> None:
        votes, self._votes = self._votes, []
        for poll, reply in votes:
            self._answer(poll, reply if fault is None else fault)

    def _again(self, poll: Poll | Asked, reply: Any) -> bool:
        """Load the scripts and send the request once more, if the server has forgotten them."""
        replies = reply if type(reply) is list else [reply]
        if not any(type(r) is Fault and r.kind == "NOSCRIPT" for r in replies) or _is_over(poll):
            return False
        again: Poll | Asked
        if isinstance(poll, tuple):
            sent: bytes | None = poll[1]
            again = (poll[0], b"")
        else:
            sent = poll.sent if isinstance(poll.sent, bytes) else poll.sent[self.index]
            again = _Again(poll)
        if not sent:
            return False
        self.pending.append(_Sink(len(lua.NAMES)))
        self.pending.append(again)
        self.out += [load_scripts(), sent]
        if not isinstance(poll, tuple) and poll.guarded and self._group.guard:
            self.out.append(self.seal(self._sealed_at))
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
            self.pending.append(_Step(self, width))
            self.out.append(commands)


class _Step(_Sink):
    """The poll of one step of the handshake."""

    __slots__ = ("channel",)

    def __init__(self, channel: Channel, width: int) -> None:
        super().__init__(width)
        self.channel = channel

    def add(self, node: int, reply: Any) -> bool:
        if self.channel.fault is None:
            self.channel._step(reply if type(reply) is list and self.width > 1 else [reply])
        return False


class _Seal(_Sink):
    """The marker that must be there behind the votes of one write."""

    __slots__ = ("channel", "incarnation", "marker", "node")

    def __init__(self, channel: Channel, node: Node, rested: bool) -> None:
        super().__init__(2 if rested else 1)
        self.channel = channel
        self.node = node
        self.marker = node.marker
        self.incarnation = node.incarnation

    def add(self, node: int, reply: Any) -> bool:
        channel = self.channel
        fault = reply if type(reply) is Fault else self._broken(reply)
        if fault is not None:
            group = channel._group
            if group.nodes[node].marker == self.marker:
                group.set_marker(group.nodes[node], b"")
        channel._pass_votes(fault)
        return False

    def _broken(self, reply: Any) -> Fault | None:
        marker, info = reply if self.width > 1 else (reply, None)
        if type(marker) is Fault or type(info) is Fault:
            return marker if type(marker) is Fault else info
        if not self.marker or marker != self.marker:
            return UNREADY
        if info is not None and (b"role:master" not in info or incarnation(self.node.run_id, info) != self.incarnation):
            return UNREADY
        return None


class _Again(_Sink):
    """A poll whose request was sent a second time: another NOSCRIPT is an answer."""

    __slots__ = ("guarded", "poll")

    def __init__(self, poll: Poll) -> None:
        super().__init__(poll.width)
        self.poll = poll
        self.guarded = poll.guarded
        self.waiter = poll.waiter

    def add(self, node: int, reply: Any) -> bool:
        return self.poll.add(node, reply)
