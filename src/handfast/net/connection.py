"""One connection without I/O: it turns requests into bytes and bytes into replies, for any transport.

Requests are pipelined. Each waits in `pending` for its replies, which come back in order, also long after the caller
has gone. Nothing is usable before the handshake has ended. A script that the server forgot (NOSCRIPT) is loaded and
the request sent again, in the order of the replies, so that a release still follows its claim.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis

from handfast.core.handshake import Rejected, Steps
from handfast.core.io import Collector, Fault
from handfast.net.faults import from_reply
from handfast.protocol.resp import encode
from handfast.protocol.scripts import LOAD_REPLIES, load_scripts

__all__ = ["DISCARD", "Connection", "Discard", "Subscription"]

_NOTHING: Final = object()
"""What a reader gives that has no whole reply."""
_ReplyError: Final = hiredis.ReplyError
_Push: Final = hiredis.PushNotification


class Discard:
    """A collector for replies that nobody waits for."""

    __slots__ = ("waiter", "width")

    decided = False
    over = False
    until = float("inf")

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.waiter: Any = None

    def add(self, node: int, reply: Any) -> bool:
        return False


DISCARD: Final = Discard()


class Connection:
    """The state of one connection to node number `index`."""

    __slots__ = (
        "_partial",
        "_steps",
        "channel",
        "fault",
        "index",
        "now",
        "on_push",
        "out",
        "pending",
        "reader",
        "ready",
        "redirected",
        "sent",
    )

    def __init__(self, index: int, steps: Steps, now: Callable[[], float]) -> None:
        self.index = index
        self.now = now
        """The clock that leases are counted on."""
        self.reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._partial: list[Any] = []
        self.pending: deque[Any] = deque()
        """Collectors whose replies have not come."""
        self.sent: deque[bytes] = deque()
        """In step with `pending`: what was sent for each; empty where it must not be sent again."""
        self.out: list[bytes] = []
        """Bytes for the transport to send; it takes and clears them."""
        self.ready = False
        """The handshake is over and requests are welcome."""
        self.fault: Fault | None = None
        """Why the connection is of no use any more."""
        self.on_push: Callable[[int, Any], None] | None = None
        """Told of what the node pushes."""
        self.redirected: Callable[[Any, bytes, Fault], bool] | None = None
        """Of a server that may have moved: asked about a request's error. True if the reply comes from elsewhere."""
        self.channel = b""
        """The pub/sub channel on which the node reaches this connection alone; empty without a subscription."""
        self._steps = steps
        self._step(None)

    def request(self, payload: bytes, collector: Collector) -> None:
        self.pending.append(collector)
        self.sent.append(payload)
        self.out.append(payload)

    def _expect(self, collector: Collector) -> None:
        """Replies to something that is not a request."""
        self.pending.append(collector)
        self.sent.append(b"")

    def feed(self, data: bytes) -> None:
        """Take what arrived. Replies go to their collectors."""
        self.reader.feed(data)
        gets = self.reader.gets
        try:
            while (reply := gets()) is not _NOTHING:
                kind = type(reply)
                if kind is _Push:
                    if self.on_push is not None:
                        self.on_push(self.index, reply)
                elif not self.pending:
                    self.fail(Fault("protocol", f"sent a reply that nobody asked for: {reply!r}"[:200]))
                    return
                else:
                    self._collect(from_reply(str(reply)) if kind is _ReplyError else reply)
        except (hiredis.ProtocolError, TypeError) as error:
            # A TypeError: a map with a key that cannot be one.
            self.fail(Fault("protocol", f"does not speak Redis' protocol ({error})", lasting=True))

    def _collect(self, reply: Any) -> None:
        """A reply for the first collector in `pending`."""
        collector = self.pending[0]
        if collector.width > 1:
            self._partial.append(reply)
            if len(self._partial) < collector.width:
                return
            reply, self._partial = self._partial, []
        self.pending.popleft()
        payload = self.sent.popleft()
        if (type(reply) is Fault or collector.width > 1) and self._again(collector, payload, reply):
            return
        # The same as `answer`, without the call: this runs for each reply of each node.
        if collector.add(self.index, reply):
            waiter = collector.waiter
            if waiter is not None and not waiter.over:
                waiter.set_result(None)

    def answer(self, collector: Any, reply: Any) -> None:
        """Hand a reply to its collector."""
        if collector.add(self.index, reply):
            waiter = collector.waiter
            if waiter is not None and not waiter.over:
                waiter.set_result(None)

    def fail(self, fault: Fault) -> None:
        """The connection is over: all who wait are told why."""
        if self.fault is None:
            self.fault = fault
        self.ready = False
        self.out.clear()
        self.sent.clear()
        while self.pending:
            self.answer(self.pending.popleft(), self.fault)

    def _again(self, collector: Any, payload: bytes, reply: Any) -> bool:
        """Send the request once more: elsewhere, if the server says so; here, with the scripts, if it has forgotten them.

        Not if the caller has gone meanwhile and has undone what it asked for, nor after the request's own end: it
        must not be carried out now.
        """
        faults = [r for r in (reply if type(reply) is list else [reply]) if type(r) is Fault]
        if not payload or not faults or collector.over or self.now() >= collector.until:
            return False
        if collector.waiter is not None and collector.waiter.over:
            return False
        if self.redirected is not None and self.redirected(collector, payload, faults[0]):
            return True
        if not any(fault.kind == "NOSCRIPT" for fault in faults):
            return False
        self._expect(Discard(LOAD_REPLIES))
        self._expect(collector)
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
            self._expect(_HandshakeStep(self, width))
            self.out.append(commands)


class Subscription(Discard):
    """Subscribes to a channel of the connection's own.

    What confirms a subscription is a push, so it is known by the reply to the PING behind it. A refusal is a reply of its
    own, and comes before that one.
    """

    __slots__ = ("_connection", "_done", "_name")

    def __init__(self, connection: Connection, prefix: bytes, done: Callable[[int, Fault | None], Any]) -> None:
        super().__init__()
        self._connection = connection
        self._name = prefix + os.urandom(12).hex().encode()
        self._done = done
        """Told when the node has answered, with its refusal if it was one."""

    @property
    def payload(self) -> bytes:
        return encode(b"SUBSCRIBE", self._name) + encode(b"PING")

    def add(self, node: int, reply: Any) -> bool:
        connection, fault = self._connection, reply if type(reply) is Fault else None
        if fault is None:
            connection.channel = self._name
        elif connection.fault is None:
            connection.pending.appendleft(DISCARD)
            connection.sent.appendleft(b"")
        self._done(node, fault)
        return False


class _HandshakeStep(Discard):
    """The collector of one step of the handshake."""

    __slots__ = ("_connection",)

    def __init__(self, connection: Connection, width: int) -> None:
        super().__init__(width)
        self._connection = connection

    def add(self, node: int, reply: Any) -> bool:
        if self._connection.fault is None:
            self._connection._step(reply if type(reply) is list and self.width > 1 else [reply])
        return False
