"""One asyncio connection, and a node's place in a lane of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from handfast.core.effects import CLOSED, Poll
from handfast.wire.channel import Channel
from handfast.wire.dial import Address
from handfast.wire.faults import from_socket
from handfast.wire.link import LinkState

if TYPE_CHECKING:
    from handfast.wire.aio import AioLane

__all__ = ["AioLink", "Pipe"]


class Pipe(asyncio.Protocol):
    """One connection. A link may have had others before it, whose end must not be taken for this one's."""

    def __init__(self, link: AioLink, channel: Channel) -> None:
        self.link = link
        self.channel = channel
        self.shaken: asyncio.Future[None] = link.lane.loop.create_future()
        """Done when the handshake has ended, one way or the other."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # not so by descent: uvloop has its own
        self._write()

    def _write(self) -> None:
        if self.channel.out and self.transport is not None:
            self.transport.write(b"".join(self.channel.out))
            self.channel.out.clear()

    def data_received(self, data: bytes) -> None:
        link, channel = self.link, self.channel
        if link.pipe is not self:
            self._shake(data)
            return
        lane, pending = link.lane, channel.pending
        before = len(pending)
        lane.waking = True
        try:
            channel.feed(data)
        finally:  # an interrupt must not leave everybody asleep
            lane.waking = False
        link.answered += before - len(pending)
        link.asked_at = lane.loop.time() if pending else 0.0
        if channel.fault is not None:
            lane.down(link, channel.fault)
        elif channel.out:
            lane.turn()
        lane.relieve()
        lane.wake()

    def _shake(self, data: bytes) -> None:
        self.channel.feed(data)
        self._write()
        if (self.channel.ready or self.channel.fault is not None) and not self.shaken.done():
            self.shaken.set_result(None)

    def hang_up(self) -> None:
        """From any thread: end it, as if the server had done so."""
        try:
            self.link.lane.loop.call_soon_threadsafe(self._abort)
        except RuntimeError:
            pass  # the loop is closed, and with it the connection

    def _abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        fault = CLOSED if exc is None else from_socket(exc)
        if self.link.pipe is self:
            self.link.lane.down(self.link, fault)
        elif not self.shaken.done():
            self.channel.fail(fault)
            self.shaken.set_result(None)


class AioLink(LinkState):
    """A node's place in the lane."""

    def __init__(self, index: int, address: Address, lane: AioLane) -> None:
        super().__init__(index, address, lane.group)
        self.lane = lane
        self.pipe: Pipe | None = None
        self.address_now = address
        """Where it was last looked for."""
        self.connecting: asyncio.Task[None] | None = None
        self.answered = 0
        """Requests answered so far."""
        self.backlog: list[tuple[bytes, Poll]] = []
        """What to send once connected, for those who then still wait."""

    def tried(self, task: asyncio.Task[None]) -> None:
        """Its task has ended. Mostly it has said so itself, but not one that was cancelled before its first step."""
        if self.connecting is task:
            self.connecting = None
