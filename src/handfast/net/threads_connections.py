"""One socket to each node, for one thread at a time.

An exchange writes to all sockets and then polls them, as the Redlock text recommends; there is no thread per node.
Connections are made by short-lived threads of their own, because name look-ups and TLS handshakes block: a node that
hangs there holds up nobody. They report through a wake-up socket, which is polled along with the sockets.

An exception may strike between any two steps (Ctrl-C). Around each place where bytes and bookkeeping must agree `torn` is
set; connections that are found torn afterwards are not used again.
"""

from __future__ import annotations

import _thread
import functools
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.core.effects import CLOSED, SILENT, Fault, Payloads, Poll, payload_for
from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.core.quorum import Ballot
from handfast.net.address import Address, dial
from handfast.net.connection import DISCARD, Connection, Question, Subscription
from handfast.net.faults import from_socket, wants_more
from handfast.net.link import CONNECT_TIMEOUT, GRACE, NOT_CONNECTED, NodeLink
from handfast.net.push_router import PushRouter
from handfast.net.sockets import converse, hang_up
from handfast.net.wakeup import wake_up

__all__ = ["Answer", "ThreadConnections", "ThreadLink"]

IDLE_CHECK: Final = 0.05
"""Seconds: connections that rested longer are checked, because the server may have closed them."""

_READ = select.POLLIN | select.POLLERR | select.POLLHUP
_NOBODY: Final[tuple[Payloads, Poll | None]] = ((), None)
_clock = time.monotonic


class ThreadLink(NodeLink):
    """The link to one node."""

    __slots__ = ("flags", "sock", "waits_for_more")

    def __init__(self, index: int, address: Address, group: Group) -> None:
        super().__init__(index, address, group)
        self.sock: socket.socket | None = None
        self.flags = 0 if address.tls is not None else socket.MSG_DONTWAIT
        """For what must not block. Not with TLS, whose sockets do not block."""
        self.waits_for_more = False
        """Its socket can be told to wake nobody for a few bytes."""


class Answer:
    """The future of a question: it has no need to wake anybody, who asked looks at it."""

    __slots__ = ("over", "reply")

    def __init__(self) -> None:
        self.reply: Any = SILENT
        self.over = False

    wakes = False

    def set_result(self, reply: Any) -> None:
        self.reply = reply
        self.over = True

    def wake(self) -> None:
        """Nobody sleeps."""


class ThreadConnections(PushRouter):
    """One link to each node of a group."""

    if TYPE_CHECKING:

        @staticmethod
        def now() -> float:
            """The driver's; see Effects."""
            ...

    def __init__(self, group: Group, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> None:
        super().__init__()
        self.group = group
        self.shake = shake
        self.links = [ThreadLink(i, address, group) for i, address in enumerate(addresses)]
        self.up = 0
        self.settled = False
        self.used_at = _clock()
        self.closed = False
        self._connecting: set[int] = set()
        self._arrived: deque[tuple[int, socket.socket | None, Connection | None, Fault | None]] = deque()
        self._by_fd: dict[int, ThreadLink] = {}
        self._poller = select.poll()
        # Sockets rather than a pipe: a thread that comes late finds a closed object, not a number that is in use again.
        self._woken_socket, self._wake_socket = socket.socketpair()
        self._woken_socket.setblocking(False)
        self._wake_socket.setblocking(False)
        self._woken_fd = self._woken_socket.fileno()
        self._poller.register(self._woken_fd, select.POLLIN)
        self.torn = False
        self._current: tuple[Payloads, Poll | None] = _NOBODY
        """The exchange under way, for nodes whose connection comes about during it."""

    # -- connecting ------------------------------------------------------------------------------------------------

    def connect(self, need: int, within: float) -> None:
        """See Effects.settle."""
        end = _clock() + min(within, max(link.connect_timeout for link in self.links) + GRACE)
        # Who could not be connected a moment ago is not tried again at once, however many ask for it.
        time.sleep(max(0.0, min(within, max(link.rests(_clock()) for link in self.links))))
        self.torn = True
        self._start(force=True)
        self.torn = False
        while self._connecting and (left := end - _clock()) > 0:
            if self.up >= need:
                need = self.group.n + 1
                end = min(end, _clock() + GRACE)
                left = min(left, GRACE)
            self._wait(left)
        self.settled = self.up >= self.group.need

    def _start(self, *, force: bool = False) -> None:
        """Begin to connect every link that is down and due; with `force` all that are down."""
        now = _clock()
        for link in self.links:
            if link.connection is None and link.index not in self._connecting and link.due(now, force=force):
                self._connecting.add(link.index)
                # Not threading.Thread: its start() waits for the thread, and an interrupt there leaves a broken lock.
                _thread.start_new_thread(self._dial, (link.index, link.address))

    def _dial(self, index: int, address: Address) -> None:
        """In a thread of its own: connect, shake hands, hand over."""
        sock: socket.socket | None = None
        connection: Connection | None = None
        fault: Fault | None = None
        try:
            address = address.located()
            sock = dial(address, CONNECT_TIMEOUT)
            if address.resolver is not None:
                address.resolver.opened(sock, address.host_port, hang_up)
            connection = Connection(index, self.group, self.shake(index), Answer, self.now)
            if address.resolver is not None:
                connection.redirected = functools.partial(self._redirected, index, address)
            converse(sock, connection, blocking=address.tls is None)
            fault = connection.fault
        except Exception as error:  # whatever went wrong is this node's answer
            fault = from_socket(error)
        if fault is not None:
            fault = address.says(fault)
        if fault is not None and sock is not None:
            sock.close()
        self._arrived.append((index, sock, connection, fault))
        wake_up(self._wake_socket)
        if self.closed:
            self._turn_away()

    def _turn_away(self) -> None:
        while self._arrived:
            sock = self._arrived.popleft()[1]
            if sock is not None:
                sock.close()

    def _admit(self) -> None:
        """Take over what the connecting threads have made; a failure is an answer to whoever waits for that node."""
        try:
            self._woken_socket.recv(4096)
        except BlockingIOError:
            pass  # woken for something that was admitted already
        payloads, poll = self._current
        while self._arrived:
            index, sock, connection, fault = self._arrived.popleft()
            link = self.links[index]
            self._connecting.discard(index)
            payload: bytes | None = None
            # A vote was made for the node as it was known before; what it may have forgotten since is not in it.
            if poll is not None and not (poll.guarded and self.group.guard) and self.now() < poll.until:
                payload = payload_for(payloads, index)
            if fault is not None or sock is None or connection is None:
                link.failed(fault or NOT_CONNECTED, _clock())
                if payload is not None and poll is not None:
                    poll.add(index, link.fault)
                continue
            link.sock = sock
            link.waits_for_more = _can_wait_for_more(sock)
            connection.heard = self.pushed
            link.connected(connection)
            self._by_fd[sock.fileno()] = link
            self._poller.register(sock.fileno(), _READ)
            self.up += 1
            if payload is not None and poll is not None:
                self._send(link, payload, poll)

    def _down(self, link: ThreadLink, fault: Fault) -> None:
        sock, connection = link.sock, link.connection
        link.sock = None
        link.failed(fault, _clock())
        if sock is not None and connection is not None:
            self.up -= 1
            self.settled = self.up >= self.group.need
            self._poller.unregister(sock.fileno())
            del self._by_fd[sock.fileno()]
            sock.close()
            connection.fail(fault)
            self.connection_lost(link.index)

    # -- talking ---------------------------------------------------------------------------------------------------

    def round_trip(self, payloads: Payloads, poll: Poll, patience: float) -> None:
        """See Effects.exchange."""
        now = _clock()
        self._inspect(now)
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                self._send(link, payload, poll)
            elif link.index not in self._connecting or (poll.guarded and self.group.guard):
                poll.add(link.index, link.fault or NOT_CONNECTED)
        self._current = (payloads, poll)
        try:
            end = now + patience
            while not poll.decided and (left := end - _clock()) > 0:
                self._wait(left)
        finally:
            self._current = _NOBODY
            poll.over = True

    def _question(self, link: ThreadLink, payload: bytes, patience: float) -> Any:
        """See Effects.ask: by polling."""
        now = _clock()
        self._inspect(now)
        if link.connection is None:
            return link.fault or NOT_CONNECTED
        answer = Answer()
        self._send(link, payload, answer)
        return self._wait_for(answer, now + patience)

    def _wait_for(self, answer: Answer, end: float) -> Any:
        try:
            while not answer.over and (left := end - _clock()) > 0:
                self._wait(left)
        finally:
            answer.over = True
        return answer.reply

    def post(self, payloads: Payloads) -> bool:
        """See Effects.post."""
        if self.torn:
            return False
        all_up = True
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                self._send(link, payload, DISCARD)
            else:
                all_up = False
        return all_up

    def wake(self) -> None:
        """Before an operation after a rest: notice what was closed meanwhile."""
        self._wait(0)

    def subscribe_own_channel(self, patience: float) -> bytes | Fault:
        """See Effects.subscribe."""
        link = self.links[0]
        if link.connection is None:
            return link.fault or NOT_CONNECTED
        poll = Subscription(link.connection)
        self.round_trip(poll.payload, poll, patience)
        self.channel = link.connection.name if link.connection is not None else b""
        return poll.reply

    def _inspect(self, now: float) -> None:
        """Before use: drop what hangs, and see to what is down."""
        self.used_at = now
        self.torn = True
        for link in self.links:
            if link.asked_at and link.connection is not None and (fault := link.hangs(now)) is not None:
                self._down(link, fault)
        if self.up < len(self.links):
            self._start()
        self.torn = False

    def _send(self, link: ThreadLink, payload: bytes, poll: Poll | Question) -> None:
        connection = link.connection
        assert connection is not None
        torn, self.torn = self.torn, True
        if not connection.pending:
            link.asked_at = _clock()
        connection.request(payload, poll)
        if self.group.guard and isinstance(poll, Ballot) and poll.guarded:
            connection.out.append(connection.seal())
        self._flush(link, connection)
        self.torn = torn

    def _flush(self, link: ThreadLink, connection: Connection) -> None:
        sock = link.sock
        assert sock is not None
        data = connection.out[0] if len(connection.out) == 1 else b"".join(connection.out)
        connection.out.clear()
        try:
            sent = sock.send(data, link.flags)
        except OSError as error:
            if not wants_more(error):
                self._down(link, from_socket(error))
                return
            sent = 0
        if sent < len(data):
            connection.out.append(data[sent:])
            self._poller.modify(sock.fileno(), _READ | select.POLLOUT)

    def _wait(self, seconds: float | None) -> None:
        """Poll once and handle what came; None: however long it takes."""
        self._handle(self._poller.poll(None if seconds is None else seconds * 1000))

    def _handle(self, events: Sequence[tuple[int, int]]) -> None:
        self.torn = True
        for fd, event in events:
            if fd == self._woken_fd:
                self._admit()
                continue
            link = self._by_fd.get(fd)
            if link is None or link.connection is None:
                continue  # an earlier event of this turn has closed it
            connection = link.connection
            if event & select.POLLOUT:
                self._poller.modify(fd, _READ)
                self._flush(link, connection)
            if event & _READ and link.sock is not None:
                self._receive(link, connection, link.sock)
        self.torn = False

    def _receive(self, link: ThreadLink, connection: Connection, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536, link.flags)
            # TLS may have decrypted more than was asked for; poll() knows nothing of it.
            while data and link.address.tls is not None and sock.pending():  # type: ignore[attr-defined]
                data += sock.recv(65536)
        except OSError as error:
            if not wants_more(error):
                self._down(link, from_socket(error))
            return
        if data:
            connection.feed(data)
        self._after(link, connection, CLOSED if not data else connection.fault)

    def _after(self, link: ThreadLink, connection: Connection, fault: Fault | None) -> None:
        """Something was received, or the end of it."""
        if fault is not None:
            self._down(link, fault)
            return
        link.asked_at = _clock() if connection.pending else 0.0
        if connection.out:
            self._flush(link, connection)

    def _redirected(self, index: int, address: Address, poll: Any, payload: bytes, fault: Fault) -> bool:
        """See Connection.redirected."""
        if address.resolver is not None:
            address.resolver.on_redirect(address.host_port, fault)
        return False

    # -- ending ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connections. Replies that are due are awaited for a moment: closing on unread data resets a
        connection, and a release that was just posted could be lost with it."""
        if self.closed:
            return
        end = _clock() + 0.05
        while any(link.connection and link.connection.pending for link in self.links) and (left := end - _clock()) > 0:
            self._wait(left)
        self.abandon()

    def abandon(self) -> None:
        """Close without a word: after a fork the connections are the parent's."""
        self.closed = True
        for link in self.links:
            if link.sock is not None:
                # detach: an SSLSocket must not say goodbye on a connection that is still in use elsewhere.
                os.close(link.sock.detach())
            link.sock = link.connection = None
        self._turn_away()
        self._woken_socket.close()
        self._wake_socket.close()


def _can_wait_for_more(sock: socket.socket) -> bool:
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    except (OSError, AttributeError):
        return False
    return True
