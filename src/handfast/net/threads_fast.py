"""The shortest way to one node: send, poll, receive, and the reply is in hand.

What is not as usual (a connection that is still being made, TLS, an error, an answer that comes in two parts or not in
time) is left to ThreadConnections. Not without the poll, though a receive can have a time limit of its own: each
signal would begin that anew, and a process with a timer would wait for ever.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import hiredis

from handfast.core.effects import CLOSED, Fault, Watch
from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.net.address import Address
from handfast.net.connection import NOTHING, Connection, garbled
from handfast.net.faults import from_socket, wants_more
from handfast.net.threads_connections import Answer, ThreadConnections, ThreadLink

__all__ = ["FastPath"]

SMALL: Final = 448
"""Bytes: more than the answers to single questions have, and little enough for the interpreter's own allocator."""
PLAIN: Final = frozenset({int, bytes, list, type(None)})
"""Answers that need no second look."""
LONGEST: Final = 1e6
"""Seconds; the system's own timers end at 24 days."""
LONGER: Final = 24
"""Bytes: any number is shorter, and any message, error or list is longer."""
_Push: Final = hiredis.PushNotification
_DONTWAIT: Final = socket.MSG_DONTWAIT
_SOCKET: Final = socket.SOL_SOCKET
_LOWAT: Final = getattr(socket, "SO_RCVLOWAT", 0)
_clock = time.monotonic


class FastPath(ThreadConnections):
    """The effects that are in every acquisition on one node."""

    def __init__(self, group: Group, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> None:
        super().__init__(group, addresses, shake)
        self.suspends = False

    def ask(self, payload: bytes, patience: float, watch: Watch | None = None, briefly: float = 0.0) -> Any:
        """See Effects.ask and Effects.hail. A number does not wake who has hailed: all else that may come is longer."""
        link, now = self.links[0], _clock()
        connection, sock = link.connection, link.sock
        if connection is None or sock is None or link.asked_at or self._connecting or not link.flags:
            return self._question(link, payload, patience)
        self.torn = True  # an interrupt may come between the bytes and us
        reader, data, reply, fault = connection.reader, None, NOTHING, None
        hails = watch is not None and link.waits_for_more
        try:
            if hails:
                watch.bell.wake_socket = self._wake_socket  # type: ignore[union-attr]
                sock.setsockopt(_SOCKET, _LOWAT, LONGER)
            if sock.send(payload) < len(payload):
                raise BrokenPipeError("a command was cut in two")
            self._poller.poll((briefly if hails and briefly < patience else patience) * 1e3)
            if hails:
                sock.setsockopt(_SOCKET, _LOWAT, 1)
                watch.bell.wake_socket = None  # type: ignore[union-attr]
            data = sock.recv(SMALL, _DONTWAIT)
            reader.feed(data)
            reply = reader.gets()
            if type(reply) is _Push and reply[0] == b"message" and not reply[2]:
                reply = reader.gets()  # said to us for the sake of another: see lua/hand_over.lua
            if type(reply) in PLAIN:
                if reader.has_data():  # something was pushed behind it
                    push = reader.gets() if hails else NOTHING
                    if type(push) is _Push and push[0] == b"message" and not reader.has_data():
                        words = push[2].split(b" ", 3)
                        if self.mail.get(words[-1]) is watch:
                            watch.message = words  # type: ignore[union-attr]
                            push = None
                    if push is not None:
                        connection.feed(b"", push)
                if connection.fault is None:
                    self.torn = False
                    return reply
        except OSError as error:
            fault = None if wants_more(error) else from_socket(error)
        except (hiredis.ProtocolError, TypeError) as error:
            fault = garbled(error)
        return self._late(link, payload, (now, patience), data, reply, fault)

    hail = ask

    def _late(
        self,
        link: ThreadLink,
        payload: bytes,
        asked: tuple[float, float],
        data: bytes | None,
        reply: Any,
        fault: Fault | None,
    ) -> Any:
        """The answer to a question, `asked` then and with so much patience, that was not answered as usual."""
        answer, connection = Answer(), link.connection
        assert connection is not None
        link.asked_at = asked[0]
        connection.pending.append(answer)
        connection.sent.append(payload)
        self._received(link, connection, data, reply, fault)
        return answer.reply if answer.over else self._wait_for(answer, asked[0] + asked[1])

    def _received(
        self, link: ThreadLink, connection: Connection, data: bytes | None, reply: Any, fault: Fault | None
    ) -> None:
        """What has come of a receive that was not as usual; `reply` was taken from the data already."""
        if fault is not None:
            self._down(link, fault)
        elif data is not None:
            connection.feed(b"", reply)
            self._after(link, connection, connection.fault if data else CLOSED)
        self.torn = False

    def hear(self, watch: Watch, until: float | None) -> None:
        """See Effects.hear."""
        link, bell, now = self.links[0], watch.bell, self.now
        bell.wake_socket = self._wake_socket
        while not bell.is_set:
            left = LONGEST if until is None else until - now()
            if left <= 0.0:
                break
            events = self._poller.poll(left * 1e3 if left < LONGEST else LONGEST * 1e3)
            sock, connection = link.sock, link.connection
            if len(events) != 1 or sock is None or connection is None or events[0][0] == self._woken_fd or not link.flags:
                self._handle(events)
                continue
            self.torn = True
            reader, data, push, fault = connection.reader, None, NOTHING, None
            try:
                data = sock.recv(SMALL, _DONTWAIT)
                reader.feed(data)
                push = reader.gets()
                if type(push) is _Push and push[0] == b"message" and not reader.has_data():
                    words = push[2].split(b" ", 3)
                    if self.mail.get(words[-1]) is watch:
                        watch.message = words
                        self.torn = False
                        break
            except OSError as error:
                fault = None if wants_more(error) else from_socket(error)
            except (hiredis.ProtocolError, TypeError) as error:
                fault = garbled(error)
            self._received(link, connection, data, push, fault)
        bell.wake_socket = None
        bell.is_set = False
