"""One connection without I/O: it turns requests into bytes and bytes into answers, for any transport.

Requests are pipelined: each waits in `pending` for its replies, which come back in order, also long after the one who
asked has gone. Nothing is usable before the handshake has ended. A script that the server forgot (NOSCRIPT) is loaded
and the request sent again, in the order of the replies, so that a release still follows its acquire.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import hiredis

from handfast import lua
from handfast.core.effects import Fault, Poll
from handfast.core.handshake import Rejected, Steps, load_scripts
from handfast.wire.faults import from_reply

__all__ = ["Channel", "Discard"]

_NOTHING: Final = object()
_ReplyError: Final = hiredis.ReplyError
_Push: Final = hiredis.PushNotification
_RESENT: Final = b""
"""In the place of a payload: it was sent again already, another NOSCRIPT is an answer."""


class Discard:
    """A poll for replies that nobody waits for."""

    __slots__ = ("decided", "waiter", "width")

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.decided = True
        self.waiter = None

    def add(self, node: int, reply: Any) -> bool:
        return False


class Channel:
    """The state of one connection to node number `index`."""

    __slots__ = ("_gets", "_partial", "_reader", "_steps", "fault", "index", "out", "pending", "ready")

    def __init__(self, index: int, steps: Steps) -> None:
        self.index = index
        self._reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._gets = self._reader.gets
        self._partial: list[Any] = []
        self.pending: deque[tuple[Poll, bytes]] = deque()
        self.out: list[bytes] = []
        """Bytes for the transport to send; it takes and clears them."""
        self.ready = False
        """The handshake is over and requests are welcome."""
        self.fault: Fault | None = None
        """Why the connection is of no use any more."""
        self._steps = steps
        self._step(None)

    def request(self, payload: bytes, poll: Poll) -> None:
        self.pending.append((poll, payload))
        self.out.append(payload)

    def feed(self, data: bytes) -> None:
        """Take what arrived; answers go to their polls."""
        self._reader.feed(data)
        gets, pending, index = self._gets, self.pending, self.index
        while True:
            try:
                reply = gets()
            except hiredis.ProtocolError as error:
                self.fail(Fault("protocol", f"does not speak Redis' protocol ({error})", lasting=True))
                return
            if reply is _NOTHING:
                return
            kind = type(reply)
            if kind is _Push:
                continue
            if not pending:
                self.fail(Fault("protocol", f"sent a reply that nobody asked for: {reply!r}"[:200]))
                return
            poll, payload = pending[0]
            if kind is _ReplyError:
                reply = from_reply(str(reply))
            if poll.width == 1:
                pending.popleft()
                if kind is _ReplyError and self._again(poll, payload, [reply]):
                    continue
            else:
                self._partial.append(reply)
                if len(self._partial) < poll.width:
                    continue
                pending.popleft()
                reply, self._partial = self._partial, []
                if self._again(poll, payload, reply):
                    continue
            if poll.add(index, reply):
                waiter = poll.waiter
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)

    def fail(self, fault: Fault) -> None:
        """The connection is over: everybody who waits is told why."""
        if self.fault is None:
            self.fault = fault
        self.ready = False
        self.out.clear()
        while self.pending:
            poll, _ = self.pending.popleft()
            if poll.add(self.index, self.fault) and poll.waiter is not None and not poll.waiter.done():
                poll.waiter.set_result(None)

    def _again(self, poll: Poll, payload: bytes, replies: list[Any]) -> bool:
        """Load the scripts and send the request once more, if the server has forgotten them."""
        if payload is _RESENT or not any(type(r) is Fault and r.kind == "NOSCRIPT" for r in replies):
            return False
        self.pending.append((Discard(len(lua.NAMES)), _RESENT))
        self.pending.append((poll, _RESENT))
        self.out += [load_scripts(), payload]
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
            self.pending.append((_Step(self, width), _RESENT))
            self.out.append(commands)


class _Step:
    """The poll of one step of the handshake."""

    __slots__ = ("channel", "decided", "waiter", "width")

    def __init__(self, channel: Channel, width: int) -> None:
        self.channel = channel
        self.width = width
        self.decided = False
        self.waiter = None

    def add(self, node: int, reply: Any) -> bool:
        if type(reply) is Fault and self.channel.fault is not None:
            return False
        self.channel._step(reply if type(reply) is list and self.width > 1 else [reply])
        return False
