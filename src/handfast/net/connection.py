"""One connection without I/O: it turns requests into bytes and bytes into replies, for any transport.

Requests are pipelined. The collector of each request waits in `pending` for the replies, which come back in order, even
long after the caller has gone. No request is sent before the handshake has ended. If the server has forgotten a script
(NOSCRIPT), the connection loads it and sends the request again, in the order of the replies, so that a release still
follows its claim.

Replies to requests that must be checked are kept back. Behind the last of them in a write, `take` adds the check's
commands; when these are answered, the kept replies are given to their collectors, or a fault instead. A connection with a
check also asks the server from time to time whether it is still the same, and ends if it is not, or if the server deletes
or replaces all its data: the replies that follow would prove nothing.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import hiredis

from handfast.core.handshake import Rejected, Steps
from handfast.core.io import Check, Collector, Fault
from handfast.net.faults import from_reply
from handfast.protocol.resp import encode
from handfast.protocol.scripts import load_scripts, scripts_in

__all__ = ["DISCARD", "Connection", "Discard", "Subscription"]

_NOTHING: Final = object()
"""The parser returns this while no reply is complete."""
_ReplyError: Final = hiredis.ReplyError
_Push: Final = hiredis.PushNotification


class Discard:
    """A collector that ignores its replies."""

    __slots__ = ("waiter", "width")

    checked = False
    decided = False
    over = False
    until = float("inf")

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.waiter: Any = None

    def add(self, node: int, reply: Any) -> bool:
        return False


DISCARD: Final = Discard()
NOT_CONFIRMED: Final = Fault("push", "did not confirm a subscription, so it cannot push to waiters", lasting=True)


class Connection:
    """The state of one connection to node number `index`."""

    __slots__ = (
        "_confirmed_at",
        "_kept",
        "_partial",
        "_steps",
        "channel",
        "check",
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
        "subscribed_to",
        "unchecked",
    )

    def __init__(self, index: int, steps: Steps, now: Callable[[], float], check: Check | None = None) -> None:
        self.index = index
        self.now = now
        """The clock of the leases."""
        self.reader = hiredis.Reader(notEnoughData=_NOTHING)
        self._partial: list[Any] = []
        self.pending: deque[Any] = deque()
        """Collectors that still lack replies, in the order of their requests."""
        self.sent: deque[bytes] = deque()
        """The request of each collector in `pending`; empty if it must not be sent again."""
        self.out: list[bytes] = []
        """Bytes to send. The transport gets them by `take`."""
        self.check = check
        self.unchecked = False
        """A request in `out` must be checked."""
        self._kept: list[tuple[Any, Any]] = []
        """Replies that wait for a check, with their collectors."""
        self.ready = False
        """The handshake has ended, so requests may be sent."""
        self.fault: Fault | None = None
        """Why the connection is no longer usable."""
        self.on_push: Callable[[int, Any], None] | None = None
        """Called with each push of the node."""
        self.redirected: Callable[[Any, bytes, Fault], bool] | None = None
        """Called with an error reply if the server may have moved. True if another connection brings the reply."""
        self.channel = b""
        """The pub/sub channel on which the node reaches this connection alone; empty without a subscription."""
        self.subscribed_to = b""
        """The channel whose subscription the server has confirmed last."""
        self._confirmed_at = now()
        """When the last confirmation was sent. Every later reply comes after its answer. The handshake counts as one."""
        self._steps = steps
        self._step(None)

    def request(self, payload: bytes, collector: Collector) -> None:
        self.confirm()
        self.pending.append(collector)
        self.sent.append(payload)
        self.out.append(payload)
        if collector.checked:
            self.unchecked = True

    def request_now(self, payload: bytes, collector: Collector) -> bytes:
        """Like `request` and `take`, for a transport that writes each request at once."""
        check = self.check
        if self.out or (
            check is not None and (collector.checked or self.now() - self._confirmed_at >= check.confirmed_for)
        ):
            self.request(payload, collector)
            return self.take()
        self.pending.append(collector)
        self.sent.append(payload)
        return payload

    def confirm(self) -> None:
        """Let a confirmation precede the next request, unless the last one is recent."""
        if self.check is not None and (now := self.now()) - self._confirmed_at >= self.check.confirmed_for:
            self._confirmed_at = now
            self._expect(_Confirmation(self, self.check))
            self.out.append(self.check.confirmation)

    def take(self) -> bytes:
        """Take the bytes to write now. The transport calls this once for each write."""
        out = self.out
        if self.unchecked:
            self.add_check()
        data = out[0] if len(out) == 1 else b"".join(out)
        out.clear()
        return data

    def add_check(self) -> None:
        """Let a check follow the requests that must be checked."""
        assert self.check is not None
        self.unchecked = False
        payload, width = self.check.question(self.index)
        self._expect(_CheckReplies(self, self.check, width))
        self.out.append(payload)

    def _expect(self, collector: Collector) -> None:
        """Expect replies to bytes that must not be sent again: the handshake, or SCRIPT LOAD."""
        self.pending.append(collector)
        self.sent.append(b"")

    def feed(self, data: bytes) -> None:
        """Parse received bytes and give each reply to its collector."""
        self.reader.feed(data)
        gets, pending, index = self.reader.gets, self.pending, self.index
        pop_pending, pop_sent = pending.popleft, self.sent.popleft
        try:
            while (reply := gets()) is not _NOTHING:
                kind = type(reply)
                if kind is _Push:
                    if reply[0] == b"subscribe":
                        self.subscribed_to = reply[1]
                    elif self.check is not None and reply[0] == b"invalidate" and reply[1] is None:
                        self.fail(self.check.emptied)
                        return
                    elif self.on_push is not None:
                        self.on_push(self.index, reply)
                    continue
                if not pending:
                    self.fail(Fault("protocol", f"sent a reply that nobody asked for: {reply!r}"[:200]))
                    return
                if kind is _ReplyError or pending[0].width > 1:
                    self._collect(from_reply(str(reply)) if kind is _ReplyError else reply)
                    continue
                # The usual case, without a further call: one reply, no error. It runs for each reply of each node.
                pop_sent()
                collector = pop_pending()
                if collector.checked:
                    self._kept.append((collector, reply))
                elif collector.add(index, reply):
                    waiter = collector.waiter
                    if waiter is not None and not waiter.over:
                        waiter.set_result(None)
        except (hiredis.ProtocolError, TypeError) as error:
            # The parser raises TypeError for a map with an unhashable key.
            self.fail(Fault("protocol", f"does not speak Redis' protocol ({error})", lasting=True))

    def _collect(self, reply: Any) -> None:
        """Give a reply to the first collector in `pending`."""
        width = self.pending[0].width
        if width > 1:
            self._partial.append(reply)
            if len(self._partial) < width:
                return
            reply, self._partial = self._partial, []
        collector = self.pending.popleft()
        payload = self.sent.popleft()
        failed = type(reply) is Fault
        if payload and (width > 1 or failed) and self._again(collector, payload, reply):
            return
        if collector.checked and not failed:
            self._kept.append((collector, reply))
        else:
            self.answer(collector, reply)

    def end_check(self, fault: Fault | None) -> None:
        """Give the kept replies to their collectors; if the check has failed, its fault instead."""
        kept, self._kept = self._kept, []
        for collector, reply in kept:
            self.answer(collector, reply if fault is None else fault)

    def answer(self, collector: Any, reply: Any) -> None:
        """Give a reply to its collector."""
        if collector.add(self.index, reply):
            waiter = collector.waiter
            if waiter is not None and not waiter.over:
                waiter.set_result(None)

    def fail(self, fault: Fault) -> None:
        """End the connection: every pending collector gets the fault."""
        if self.fault is None:
            self.fault = fault
        self.ready = False
        self.out.clear()
        self.sent.clear()
        self.end_check(self.fault)
        while self.pending:
            self.answer(self.pending.popleft(), self.fault)

    def _again(self, collector: Any, payload: bytes, reply: Any) -> bool:
        """Send a refused request again: to another node if the server redirects it; here, after its scripts, on NOSCRIPT.

        Only the scripts of the request are loaded. A server reads 16 KB at a time and serves other clients in between, so
        somebody who flushes scripts in a loop could keep a longer request from ever running.

        A request whose caller has gone is not sent again, because the caller has taken it back. Nor is a request whose
        time is over.
        """
        faults = [r for r in (reply if type(reply) is list else [reply]) if type(r) is Fault]
        if not faults or collector.over or self.now() >= collector.until:
            return False
        if collector.waiter is not None and collector.waiter.over:
            return False
        if self.redirected is not None and self.redirected(collector, payload, faults[0]):
            return True
        scripts = scripts_in(payload)
        if not scripts or not any(fault.kind == "NOSCRIPT" for fault in faults):
            return False
        self.confirm()
        self._expect(Discard(len(scripts)))
        self._expect(collector)
        self.out += [load_scripts(scripts), payload]
        self.unchecked = self.unchecked or collector.checked
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
    """Subscribes the connection to a channel of its own.

    A server confirms a subscription by a push, which is not in the order of replies, and refuses it by a reply. So a TIME
    follows, which always has a reply. If the push came before that reply, the subscription is confirmed. Otherwise the
    first reply is the refusal, and TIME has another one. An error of TIME does not matter.
    """

    __slots__ = ("_connection", "_done", "_name")

    def __init__(self, connection: Connection, prefix: bytes, done: Callable[[int, Fault | None], Any]) -> None:
        super().__init__()
        self._connection = connection
        self._name = prefix + os.urandom(12).hex().encode()
        self._done = done
        """Called when the node has replied, with the fault if it refused."""

    @property
    def payload(self) -> bytes:
        return encode(b"SUBSCRIBE", self._name) + encode(b"TIME")

    def add(self, node: int, reply: Any) -> bool:
        connection = self._connection
        fault: Fault | None = None
        if connection.fault is not None:
            fault = connection.fault
        elif connection.subscribed_to == self._name:
            connection.channel = self._name
        elif type(reply) is Fault:
            fault = reply
            connection.pending.appendleft(DISCARD)  # for the reply to TIME
            connection.sent.appendleft(b"")
        else:
            fault = NOT_CONFIRMED
        self._done(node, fault)
        return False


class _CheckReplies(Discard):
    """The collector of one check."""

    __slots__ = ("_check", "_connection", "_sent")

    def __init__(self, connection: Connection, check: Check, width: int) -> None:
        super().__init__(width)
        self._connection = connection
        self._check = check
        self._sent = connection.now()

    def add(self, node: int, reply: Any) -> bool:
        connection = self._connection
        fault = reply if type(reply) is Fault else self._check.fault(node, reply, self._sent, connection.now())
        connection.end_check(fault)
        return False


class _Confirmation(Discard):
    """The collector of a confirmation."""

    __slots__ = ("_check", "_connection")

    def __init__(self, connection: Connection, check: Check) -> None:
        super().__init__()
        self._connection = connection
        self._check = check

    def add(self, node: int, reply: Any) -> bool:
        fault = reply if type(reply) is Fault else self._check.refuted(node, reply)
        if fault is not None:
            self._connection.fail(fault)
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
