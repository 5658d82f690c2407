"""One asyncio connection, and the link to a node that uses it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from handfast.core.io import CLOSED, Collector
from handfast.net.address import Address
from handfast.net.connection import Connection
from handfast.net.faults import from_socket
from handfast.net.link import NodeLink

if TYPE_CHECKING:
    from handfast.net.aio_connections import AioConnections

__all__ = ["AioLink", "NodeProtocol"]


class NodeProtocol(asyncio.Protocol):
    """One connection. Its link may have had others before, and must not mistake the end of an old one for this one's."""

    def __init__(self, link: AioLink, connection: Connection) -> None:
        self.link = link
        self.connection = connection
        self.shaken: asyncio.Future[None] = link.connections.loop.create_future()
        """Done when the handshake has ended, well or not."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transports are no subclass of it
        self._write()

    def _write(self) -> None:
        if self.connection.out and self.transport is not None:
            self.transport.write(self.connection.take())

    def data_received(self, data: bytes) -> None:
        link, connection = self.link, self.connection
        if link.protocol is not self:
            self._shake(data)
            return
        connections, pending = link.connections, connection.pending
        before = len(pending)
        connections.waking = True
        try:
            connection.feed(data)
        finally:  # also after an interrupt: otherwise no task would be resumed
            connections.waking = False
        link.answered += before - len(pending)
        link.asked_at = connections.loop.time() if pending else 0.0
        if connection.fault is not None:
            connections.down(link, connection.fault)
        elif connection.out:
            connections.turn()
        connections.relieve()
        connections.wake()

    def _shake(self, data: bytes) -> None:
        self.connection.feed(data)
        self._write()
        if (self.connection.ready or self.connection.fault is not None) and not self.shaken.done():
            self.shaken.set_result(None)

    def hang_up(self) -> None:
        """End the connection, from any thread, as if the server had closed it."""
        try:
            self.link.connections.loop.call_soon_threadsafe(self._abort)
        except RuntimeError:
            pass  # the loop is closed, and with it the connection

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        fault = CLOSED if exc is None else from_socket(exc)
        if self.link.protocol is self:
            self.link.connections.down(self.link, fault)
        elif not self.shaken.done():
            self.connection.fail(fault)
            self.shaken.set_result(None)


class AioLink(NodeLink):
    """The link to one node."""

    def __init__(self, index: int, address: Address, connections: AioConnections) -> None:
        super().__init__(index, address, connections.group)
        self.connections = connections
        self.protocol: NodeProtocol | None = None
        self.address_now = address
        """The address of the latest try."""
        self.connecting: asyncio.Task[None] | None = None
        self.answered = 0
        """How many requests the node has answered so far."""
        self.backlog: list[tuple[bytes, Collector]] = []
        """Requests to send once connected, if their callers still wait."""

    def tried(self, task: asyncio.Task[None]) -> None:
        """Called when the connecting task has ended: a task that was cancelled before its first step clears nothing."""
        if self.connecting is task:
            self.connecting = None
