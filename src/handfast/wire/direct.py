"""A lane to one node without the poll, where nothing else can happen meanwhile: send, receive, and that is all.

What is not as usual (a connection that is still being made, TLS, an error, an answer that comes in two parts or not in
time) is left to the lane's general ways.
"""

from __future__ import annotations

import socket
import time
import types
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any, Final

import hiredis

from handfast.core.effects import CLOSED, Fault, Watch
from handfast.wire.blocking import Answer, Lane, Link
from handfast.wire.channel import NOTHING, Channel, garbled
from handfast.wire.faults import from_socket, wants_more
from handfast.wire.sockets import timeval

__all__ = ["DirectLane"]

COARSE: Final = 8 / 9
"""The kernel's socket timers end up to an eighth too late; the rest is waited for by poll, which is exact."""
SMALL: Final = 448
"""Bytes: more than the answers to single questions have, and little enough for the interpreter's own allocator."""
PLAIN: Final = frozenset({int, bytes, list, type(None)})
"""Answers that need no second look."""
_Push: Final = hiredis.PushNotification
_clock = time.monotonic


class DirectLane(Lane):
    """Generators that never yield: to await one costs a single frame, and these are in every acquisition on one node."""

    if TYPE_CHECKING:

        def park(self, bell: Any, until: float | None) -> Awaitable[None]:
            """The driver's; see Effects."""
            ...

    @types.coroutine
    def ask(self, payload: bytes, patience: float) -> Generator[Any, None, Any]:
        """See Effects.ask."""
        link = self.links[0]
        now = self.used_at = _clock()
        channel, sock = link.channel, link.sock
        if channel is None or sock is None or link.asked_at or self._connecting or not link.flags:
            return self._question(link, payload, patience)
        if patience != link.patience:
            link.patience = patience
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval(patience * COARSE))
        self.torn = True  # an interrupt may come between the bytes and us
        reader, data, reply, fault = channel.reader, None, NOTHING, None
        try:
            if sock.send(payload) < len(payload):
                raise BrokenPipeError("a command was cut in two")
            data = sock.recv(SMALL)
            reader.feed(data)
            reply = reader.gets()
            if type(reply) is _Push and reply[0] == b"message" and not reply[2]:
                reply = reader.gets()  # said to us for the sake of another: see lua/hand_over.lua
            if type(reply) in PLAIN:
                if reader.has_data():
                    channel.feed(b"")  # something was pushed behind it
                if channel.fault is None:
                    self.torn = False
                    return reply
        except OSError as error:
            fault = None if wants_more(error) else from_socket(error)
        except (hiredis.ProtocolError, TypeError) as error:
            fault = garbled(error)
        answer = Answer()
        link.asked_at = now
        channel.pending.append(answer)
        channel.sent.append(payload)
        self._received(link, channel, data, reply, fault)
        return answer.reply if answer.over else self._wait_for(answer, now + patience)
        yield

    def _received(self, link: Link, channel: Channel, data: bytes | None, reply: Any, fault: Fault | None) -> None:
        """What has come of a receive that was not as usual; `reply` was taken from the data already."""
        if fault is not None:
            self._down(link, fault)
        elif data is not None:
            channel.feed(b"", reply)
            self._after(link, channel, channel.fault if data else CLOSED)
        self.torn = False

    @types.coroutine
    def hear(self, watch: Watch, until: float | None) -> Generator[Any, None, None]:
        """See Effects.hear."""
        link, bell = self.links[0], watch.bell
        while not bell.rung:
            sock, channel, patience = link.sock, link.channel, link.patience
            if (
                sock is None or channel is None or not patience or link.asked_at or self._connecting or not link.flags
                or (until is not None and until - self.now() < patience)
            ):  # fmt: skip
                yield from self.park(bell, until)  # type: ignore[misc]
                return
            bell.line = sock
            if bell.rung:
                break
            self.torn = True
            reader, data, push, fault = channel.reader, None, NOTHING, None
            try:
                data = sock.recv(SMALL)
                if not data and bell.rung:
                    self.torn = False
                    break  # it was ended by whoever rang
                reader.feed(data)
                push = reader.gets()
                if type(push) is _Push and push[0] == b"message" and not reader.has_data():
                    text = push[2]
                    if self.mail.get(text.split(b" ", 3)[-1]) is watch:
                        watch.message = text
                        self.torn = False
                        break
            except OSError as error:
                fault = None if wants_more(error) else from_socket(error)
            except (hiredis.ProtocolError, TypeError) as error:
                fault = garbled(error)
            self._received(link, channel, data, push, fault)
        bell.line = None
        bell.rung = False
