"""How asyncio connections come up and go down: the part of `AioConnections` that makes them.

A task for each node connects and shakes hands, so a node that hangs does not delay the others. Requests for a node that
is being connected wait in its link's backlog. When the try ends, they are sent, or get the fault as their reply.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from handfast.core.handshake import Steps
from handfast.core.io import Fault
from handfast.core.nodes import NodeGroup
from handfast.net.address import Address
from handfast.net.aio_protocol import AioLink, NodeProtocol
from handfast.net.connection import Connection
from handfast.net.faults import from_socket
from handfast.net.link import GRACE, NOT_CONNECTED
from handfast.net.push_router import PushRouter

__all__ = ["AioConnecting"]


class AioConnecting(PushRouter):
    """The links to the nodes of a group, without the requests on them."""

    links: Sequence[AioLink]
    if TYPE_CHECKING:

        @staticmethod
        def now() -> float:
            """The driver's; see IO."""
            ...

    def __init__(self, group: NodeGroup, shake: Callable[[int], Steps], loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(group.n)
        self.group = group
        self.shake = shake
        self.loop = loop
        self.up = 0
        self.ready = False
        self.closed = False

    def turn(self) -> None:
        """Order the flush at the end of this turn of the loop."""
        raise NotImplementedError

    async def connect(self, need: int, within: float) -> None:
        """See IO.connect."""
        end = self.loop.time() + within
        # After a failed try the next one waits, however many callers ask for it.
        rest = min(within, max(link.rests(self.loop.time()) for link in self.links))
        if rest > 0:
            await asyncio.sleep(rest)
        self._start(force=True)
        while tasks := [link.connecting for link in self.links if link.connecting is not None]:
            # Compute this in each round, also in the first: other callers may have connected enough nodes.
            left = min(end - self.loop.time(), GRACE if self.up >= need else within)
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
        self.ready = self.up >= self.group.need

    def reconnect(self) -> None:
        """See IO.reconnect."""
        self._start()

    def _start(self, *, force: bool = False) -> None:
        """Begin to connect every link that is down and due. `force`: see NodeLink.due."""
        if self.closed:
            return
        now = self.loop.time()
        for link in self.links:
            if link.connection is None and link.connecting is None and link.due(now, force=force):
                link.connecting = self.loop.create_task(self._connect(link), name="handfast-connect")
                link.connecting.add_done_callback(link.tried)

    async def _connect(self, link: AioLink) -> None:
        """Connect a link, and send the requests that wait for it. A failure is the node's reply to them."""
        protocol: NodeProtocol | None = None
        try:
            async with asyncio.timeout(link.connect_timeout):
                protocol = await self._dial(link)
            fault = protocol.connection.fault
        except Exception as error:  # any error is this node's reply
            fault = from_socket(error)
        finally:
            link.connecting = None
        if fault is not None:
            fault = link.address_now.says(fault)
        backlog, link.backlog = link.backlog, []
        if protocol is None or fault is not None or self.closed:
            link.failed(fault or NOT_CONNECTED, self.loop.time())
            if protocol is not None and protocol.transport is not None:
                protocol.transport.abort()
            for _, collector in backlog:
                self._answer(collector, link)
            return
        link.protocol = protocol
        self.listen_to(protocol.connection)
        link.connected(protocol.connection)
        self.up += 1
        for payload, collector in backlog:
            # A caller that gave up has undone its attempt on the other nodes: sending it now would leave a lock behind. A
            # request that is not sent gets a fault as its reply: the watchdog must repeat a release that failed here.
            if self.now() >= collector.until or collector.waiter is None or collector.waiter.over:
                self._answer(collector, link)
            else:
                protocol.connection.request(payload, collector)
                self.turn()

    async def _dial(self, link: AioLink) -> NodeProtocol:
        """Return a connection whose handshake has ended."""
        address = link.address
        if address.prepare is not None or address.resolver is not None:
            address = link.address_now = await self.loop.run_in_executor(None, address.located)
        # `credentials` may block.
        steps = await self.loop.run_in_executor(None, self.shake, link.index) if address.credentials else None
        connection = Connection(link.index, steps or self.shake(link.index), self.now, self.group.check)
        protocol = NodeProtocol(link, connection)
        if address.resolver is not None:
            protocol.connection.redirected = functools.partial(self._redirected, link, address)
            address.resolver.opened(protocol, address.host_port, NodeProtocol.hang_up)
        try:
            if address.path:
                await self.loop.create_unix_connection(lambda: protocol, address.path)
            else:
                tls: dict[str, Any] = {}
                if address.tls is not None:
                    tls = {"ssl": address.tls(), "server_hostname": address.host}
                await self.loop.create_connection(lambda: protocol, address.host, address.port, **tls)
            await protocol.shaken
        except BaseException:
            if protocol.transport is not None:
                protocol.transport.abort()
            raise
        return protocol

    def down(self, link: AioLink, fault: Fault) -> None:
        """End the connection of a link that was up."""
        protocol, link.protocol = link.protocol, None
        link.failed(fault, self.loop.time())
        self.up -= 1
        self.ready = self.up >= self.group.need
        if protocol is not None:
            if protocol.transport is not None:
                protocol.transport.abort()
            protocol.connection.fail(fault)
            self.connection_lost(link.index)

    def _answer(self, collector: Any, link: AioLink) -> None:
        """Give the collector a fault as the reply of a node that is not connected."""
        if (
            collector.add(link.index, link.fault or NOT_CONNECTED)
            and collector.waiter is not None
            and not collector.waiter.over
        ):
            collector.waiter.set_result(None)

    def _redirected(self, link: AioLink, address: Address, collector: Any, payload: bytes, fault: Fault) -> bool:
        """See Connection.redirected."""
        if address.resolver is not None:
            address.resolver.on_redirect(address.host_port, fault)
        return False
