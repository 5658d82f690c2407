"""Blocking connections: one socket to each node, for one thread at a time.

A broadcast writes to all sockets and then polls them, as the Redlock text recommends. There is no thread per node.
Short-lived threads make the connections, because name look-ups and TLS handshakes block, and a node that hangs must not
delay the others. Such a thread reports through a wake-up socket, which is polled along with the others.

An exception (Ctrl-C) may strike between any two steps. `inconsistent` is set around each place where bytes and
bookkeeping must agree. Connections that an exception has left inconsistent are not used again.
"""

from __future__ import annotations

import _thread
import functools
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.core.handshake import Steps
from handfast.core.io import CLOSED, Collector, Fault, Payloads, payload_for
from handfast.core.nodes import NodeGroup
from handfast.net.address import Address, dial
from handfast.net.connection import DISCARD, Connection, Discard, Subscription
from handfast.net.faults import from_socket, wants_more
from handfast.net.link import CONNECT_TIMEOUT, GRACE, NOT_CONNECTED, NodeLink
from handfast.net.push_router import PushRouter
from handfast.net.sockets import converse, hang_up
from handfast.net.spinning import Spinner
from handfast.net.step_aside import StepAside
from handfast.net.wakeup import wake_up

__all__ = ["ThreadConnections", "ThreadLink"]

IDLE_CHECK: Final = 0.05
"""Seconds. After a longer rest the next operation first checks whether a server has closed its connection."""
READS_AT_ONCE: Final = 4
"""How often such a check reads from the connections at most."""

_READ: Final = select.POLLIN | select.POLLERR | select.POLLHUP
_WRITE: Final = select.POLLOUT
_NOBODY: Final[tuple[Payloads, Collector | None]] = ((), None)
_clock = time.monotonic


class ThreadLink(NodeLink):
    """The link to one node."""

    __slots__ = ("flags", "sock")

    def __init__(self, index: int, address: Address, group: NodeGroup) -> None:
        super().__init__(index, address, group)
        self.sock: socket.socket | None = None
        self.flags = 0 if address.tls is not None else socket.MSG_DONTWAIT
        """Flags for send() and recv() that must not block. TLS takes no flags, so TLS sockets are non-blocking."""


class ThreadConnections(PushRouter):
    """One link to each node of a group."""

    if TYPE_CHECKING:

        @staticmethod
        def now() -> float:
            """The driver's; see IO."""
            ...

    def __init__(self, group: NodeGroup, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> None:
        super().__init__(len(addresses))
        self.group = group
        self.shake = shake
        self.links = [ThreadLink(i, address, group) for i, address in enumerate(addresses)]
        self.up = 0
        self.ready = False
        self.used_at = _clock()
        self.closed = False
        self._connecting: set[int] = set()
        self._arrived: deque[tuple[int, socket.socket | None, Connection | None, Fault | None]] = deque()
        self._by_fd: dict[int, ThreadLink] = {}
        self._poller = select.poll()
        self._spinner = Spinner()
        self._step_aside = StepAside()
        # Sockets rather than a pipe: a late thread finds a closed object, not a file descriptor that is in use again.
        self._woken_socket, self._wake_socket = socket.socketpair()
        self._woken_socket.setblocking(False)
        self._wake_socket.setblocking(False)
        self._woken_fd = self._woken_socket.fileno()
        self._poller.register(self._woken_fd, select.POLLIN)
        self.inconsistent = False
        self._current: tuple[Payloads, Collector | None] = _NOBODY
        """The broadcast under way. A node that gets connected during it is sent its part."""

    # -- connecting ------------------------------------------------------------------------------------------------

    def connect_now(self, need: int, within: float) -> None:
        """See IO.connect."""
        end = _clock() + min(within, max(link.connect_timeout for link in self.links) + GRACE)
        # After a failed try the next one waits, however many callers ask for it.
        time.sleep(max(0.0, min(within, max(link.rests(_clock()) for link in self.links))))
        self.inconsistent = True
        self._start(force=True)
        self.inconsistent = False
        while self._connecting and (left := end - _clock()) > 0:
            if self.up >= need:
                need = self.group.n + 1
                end = min(end, _clock() + GRACE)
                left = min(left, GRACE)
            self._wait(left)
        self.ready = self.up >= self.group.need

    def reconnect(self) -> None:
        """See IO.reconnect."""
        self.inconsistent = True
        self._start()
        self.inconsistent = False

    def _start(self, *, force: bool = False) -> None:
        """Begin to connect every link that is down and due. `force`: see NodeLink.due."""
        now = _clock()
        for link in self.links:
            if link.connection is None and link.index not in self._connecting and link.due(now, force=force):
                self._connecting.add(link.index)
                # threading.Thread.start() waits for the thread, and an interrupt there leaves a broken lock.
                _thread.start_new_thread(self._dial, (link.index, link.address))

    def _dial(self, index: int, address: Address) -> None:
        """Connect and shake hands, in a thread of its own, and hand the connection over."""
        sock: socket.socket | None = None
        connection: Connection | None = None
        fault: Fault | None = None
        try:
            address = address.located()
            sock = dial(address, CONNECT_TIMEOUT)
            if address.resolver is not None:
                address.resolver.opened(sock, address.host_port, hang_up)
            connection = Connection(index, self.shake(index), self.now, self.group.check)
            if address.resolver is not None:
                connection.redirected = functools.partial(self._redirected, index, address)
            converse(sock, connection, blocking=address.tls is None)
            fault = connection.fault
        except Exception as error:  # any error is this node's reply
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
        """Take over the connections of the connecting threads. A failure is the node's reply to the present broadcast."""
        try:
            self._woken_socket.recv(4096)
        except BlockingIOError:
            pass  # an earlier wake-up has admitted this connection already
        payloads, collector = self._current
        while self._arrived:
            index, sock, connection, fault = self._arrived.popleft()
            link = self.links[index]
            self._connecting.discard(index)
            payload: bytes | None = None
            if collector is not None and self.now() < collector.until:
                payload = payload_for(payloads, index)
            if fault is not None or sock is None or connection is None:
                link.failed(fault or NOT_CONNECTED, _clock())
                if payload is not None and collector is not None:
                    collector.add(index, link.fault)
                continue
            link.sock = sock
            self.listen_to(connection)
            link.connected(connection)
            self._by_fd[sock.fileno()] = link
            self._poller.register(sock.fileno(), _READ)
            self.up += 1
            if payload is not None and collector is not None:
                self._send(link, connection, payload, collector)

    def _down(self, link: ThreadLink, fault: Fault) -> None:
        sock, connection = link.sock, link.connection
        link.sock = None
        link.failed(fault, _clock())
        if sock is not None and connection is not None:
            self.up -= 1
            self.ready = self.up >= self.group.need
            self._poller.unregister(sock.fileno())
            del self._by_fd[sock.fileno()]
            sock.close()
            connection.fail(fault)
            self.connection_lost(link.index)

    # -- talking ---------------------------------------------------------------------------------------------------

    def round_trip(self, payloads: Payloads, collector: Collector, timeout: float) -> None:
        """See IO.broadcast."""
        now = _clock()
        self._send_each(payloads, collector, now, self._connecting)
        self._current = (payloads, collector)
        try:
            end = now + timeout
            while not collector.decided and (left := end - _clock()) > 0:
                self._wait(left, spin=True)
        finally:
            self._current = _NOBODY
            collector.over = True
        if self._connecting and collector.decided:
            self._answer_unsent(payloads, collector)

    def _answer_unsent(self, payloads: Payloads, collector: Collector) -> None:
        """Answer for nodes that are still being connected: they get no request, so the watchdog repeats a release."""
        for link in self.links:
            if (
                link.index in self._connecting
                and link.connection is None
                and payload_for(payloads, link.index) is not None
            ):
                collector.add(link.index, NOT_CONNECTED)

    def send(self, payloads: Payloads, collector: Collector) -> None:
        """See IO.send."""
        self._send_each(payloads, collector, _clock(), ())

    def _send_each(self, payloads: Payloads, collector: Collector, now: float, later: Collection[int]) -> None:
        """Send each node its payload. First close connections that hang, and begin to reconnect links that are down.
        `later`: nodes whose payload is sent when they are connected."""
        self.used_at = now
        self.inconsistent = True
        for link in self.links:
            if link.asked_at and (fault := link.hangs(now)) is not None:
                self._down(link, fault)
        if self.up < len(self.links):
            self._start()
        self.inconsistent = False
        same = payloads if type(payloads) is bytes else None
        for link in self.links:
            payload = same or payload_for(payloads, link.index)
            if payload is None:
                continue
            if (connection := link.connection) is not None:
                self._send(link, connection, payload, collector)
            elif link.index not in later:
                collector.add(link.index, link.fault or NOT_CONNECTED)

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        """See IO.send_and_forget."""
        if self.inconsistent:
            return False
        all_up, discard = True, DISCARD if width == 1 else Discard(width)
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                self._send(link, link.connection, payload, discard)
            else:
                all_up = False
        return all_up

    def wake(self) -> None:
        """Notice connections that were closed during a rest. Called before an operation."""
        for _ in range(READS_AT_ONCE):  # a late reply may come before the end of a connection
            if not self._wait(0.0):
                break

    def subscribe_now(self, timeout: float) -> None:
        """See IO.subscribe."""
        waiting: set[int] = set()

        def done(node: int, fault: Fault | None) -> None:
            waiting.discard(node)
            self.subscribed(self.group.nodes[node], self.links[node].connection, fault)

        for link in self.links:
            connection = link.connection
            if connection is not None and not connection.channel and self.group.nodes[link.index].no_push is None:
                waiting.add(link.index)
                subscription = Subscription(connection, self.group.channel_prefix, done)
                self._send(link, connection, subscription.payload, subscription)
        end = _clock() + timeout
        while waiting and (left := end - _clock()) > 0:
            self._wait(left)

    def _send(self, link: ThreadLink, connection: Connection, payload: bytes, collector: Collector) -> None:
        before, self.inconsistent = self.inconsistent, True
        if not connection.pending:
            link.asked_at = _clock()
        self._write(link, connection, connection.request_now(payload, collector))
        self.inconsistent = before

    def _write(self, link: ThreadLink, connection: Connection, data: bytes) -> None:
        sock = link.sock
        assert sock is not None
        try:
            sent = sock.send(data, link.flags)
        except OSError as error:
            if not wants_more(error):
                self._down(link, from_socket(error))
                return
            sent = 0
        if sent < len(data):
            connection.out.append(data[sent:])
            self._poller.modify(sock.fileno(), _READ | _WRITE)

    def _wait(self, seconds: float | None, *, spin: bool = False) -> bool:
        """Poll once and handle the events. False if there was none. `seconds`: None for no timeout. `spin`: a reply is
        expected soon."""
        if spin and seconds is not None:
            events = self._spinner.poll(self._poller, seconds)
        else:
            events = self._poller.poll(None if seconds is None else seconds * 1000)
        self.inconsistent = True
        for fd, event in events:
            link = self._by_fd.get(fd)
            if link is None:
                if fd == self._woken_fd:
                    self._admit()
                continue  # otherwise an earlier event of this turn has closed it
            if event & _WRITE and link.connection is not None:
                self._poller.modify(fd, _READ)
                self._write(link, link.connection, link.connection.take())
            if event & _READ:
                self._receive(link)
        self.inconsistent = False
        return bool(events)

    def _receive(self, link: ThreadLink) -> None:
        sock, connection = link.sock, link.connection
        if sock is None or connection is None:
            return  # writing has closed it
        try:
            data = sock.recv(65536, link.flags)
            # TLS may have decrypted more than recv() returned, and poll() does not report that.
            while not link.flags and data and sock.pending():  # type: ignore[attr-defined]
                data += sock.recv(65536)
        except OSError as error:
            if not wants_more(error):
                self._down(link, from_socket(error))
            return
        if data:
            connection.feed(data)
        if not data or connection.fault is not None:
            self._down(link, connection.fault or CLOSED)
            return
        link.asked_at = _clock() if connection.pending else 0.0
        if connection.out:
            self._write(link, connection, connection.take())

    def _redirected(self, index: int, address: Address, collector: Any, payload: bytes, fault: Fault) -> bool:
        """See Connection.redirected."""
        if address.resolver is not None:
            address.resolver.on_redirect(address.host_port, fault)
        return False

    # -- ending ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the connections, after a moment for replies that are due: closing with unread data resets a connection,
        and a release that was just sent could be lost with it."""
        if self.closed:
            return
        end = _clock() + 0.05
        while any(link.connection and link.connection.pending for link in self.links) and (left := end - _clock()) > 0:
            self._wait(left)
        self.abandon()

    def abandon(self) -> None:
        """Close the sockets without sending anything: after a fork the connections belong to the parent."""
        self.closed = True
        for link in self.links:
            if link.sock is not None:
                # Detach first: an SSLSocket must not send its closing message on a connection that the parent uses.
                os.close(link.sock.detach())
            link.sock = link.connection = None
        self._turn_away()
        self._woken_socket.close()
        self._wake_socket.close()
