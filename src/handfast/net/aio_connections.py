"""Asyncio connections: one to each node, shared by all tasks of a loop.

All that tasks send in one turn of the loop leaves in one write per node; replies come back in order. A task waits on one
future per exchange, whatever the number of nodes, completed by the reply that decides. Timeouts are kept by one sweep
over all waiting exchanges, not by a timer for each.
"""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.core.handshake import Steps
from handfast.core.io import CappedTimeout, Collector, Fault, Payloads, payload_for
from handfast.core.nodes import NodeGroup
from handfast.core.votes import Ballot
from handfast.net.address import Address
from handfast.net.aio_protocol import AioLink, NodeProtocol
from handfast.net.connection import DISCARD, Connection, Discard, Subscription
from handfast.net.faults import from_socket
from handfast.net.link import GRACE, NOT_CONNECTED
from handfast.net.push_router import PushRouter, TaskWakeup
from handfast.net.reply_future import ReplyFuture, reply_futures_of
from handfast.net.timeouts import RequestTimeouts
from handfast.protocol.resp import encode

__all__ = ["AioConnections"]

PING: Final = encode(b"PING")
CROWD: Final = 200
"""When so many have been resumed, what they sent leaves before the others come: the servers work meanwhile."""
LAST_ROUNDS: Final = 6
"""How often closing connections wait for those who are not through yet."""
IN_A_ROW: Final = 32
"""How often those are resumed whom the last ones have woken, before the loop is let go on."""


class AioConnections(PushRouter, RequestTimeouts):
    """One link to each node of a group, on one event loop."""

    wakeup = TaskWakeup
    if TYPE_CHECKING:

        @staticmethod
        def now() -> float:
            """The driver's; see IO."""
            ...

    def __init__(
        self,
        group: NodeGroup,
        addresses: Sequence[Address],
        shake: Callable[[int], Steps],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        PushRouter.__init__(self, len(addresses))
        RequestTimeouts.__init__(self)
        self.group = group
        self.shake = shake
        self.loop = loop
        self.links = [AioLink(i, address, self) for i, address in enumerate(addresses)]
        self.up = 0
        self.ready = False
        self.closed = False
        self._n = len(self.links)
        self._future = reply_futures_of(self)
        self.woken: list[ReplyFuture] = []
        """Who has been answered and not resumed yet."""
        self.waking = False
        """Whoever is answered now is resumed right afterwards."""
        self._call_soon = loop.call_soon
        self.turning = False
        """Only set while the loop runs: the flush of this turn is ordered."""
        self._subscribing: asyncio.Future[None] | None = None
        """Done when the subscriptions under way have been answered."""
        self._shared: list[bytes] = []
        self._collectors: list[Any] = []
        """This turn's payloads that go to all nodes alike, and their collectors."""

    # -- connecting ------------------------------------------------------------------------------------------------

    async def connect(self, need: int, within: float) -> None:
        """See IO.connect."""
        end = self.loop.time() + within
        # Who could not be connected a moment ago is not tried again at once, however many ask for it.
        rest = min(within, max(link.rests(self.loop.time()) for link in self.links))
        if rest > 0:
            await asyncio.sleep(rest)
        self._start(force=True)
        while tasks := [link.connecting for link in self.links if link.connecting is not None]:
            # Asked anew each time, also the first: other callers may have connected enough of them.
            left = min(end - self.loop.time(), GRACE if self.up >= need else within)
            done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
        self.ready = self.up >= self.group.need

    def _start(self, *, force: bool = False) -> None:
        if self.closed:
            return
        now = self.loop.time()
        for link in self.links:
            if link.connection is None and link.connecting is None and link.due(now, force=force):
                link.connecting = self.loop.create_task(self._connect(link), name="handfast-connect")
                link.connecting.add_done_callback(link.tried)

    async def _connect(self, link: AioLink) -> None:
        protocol: NodeProtocol | None = None
        try:
            async with asyncio.timeout(link.connect_timeout):
                protocol = await self._dial(link)
            fault = protocol.connection.fault
        except Exception as error:  # whatever went wrong is this node's answer
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
            # A caller that gave up has undone its attempt elsewhere; sending it now would leave a lock behind. What is
            # not sent is answered: the watchdog must repeat a release that this node did not get.
            if self.now() >= collector.until or collector.waiter is None or collector.waiter.over:
                self._answer(collector, link)
            else:
                protocol.connection.request(payload, collector)
                self.turn()

    async def _dial(self, link: AioLink) -> NodeProtocol:
        """A connection whose handshake has ended."""
        address = link.address
        if address.prepare is not None or address.resolver is not None:
            address = link.address_now = await self.loop.run_in_executor(None, address.located)
        # Credentials may come from somewhere slow.
        steps = await self.loop.run_in_executor(None, self.shake, link.index) if address.credentials else None
        protocol = NodeProtocol(link, Connection(link.index, steps or self.shake(link.index), self.now))
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
        """A link that was up has lost its connection, or gives it up."""
        protocol, link.protocol = link.protocol, None
        link.failed(fault, self.loop.time())
        self.up -= 1
        self.ready = self.up >= self.group.need
        if protocol is not None:
            if protocol.transport is not None:
                protocol.transport.abort()
            protocol.connection.fail(fault)
            self.connection_lost(link.index)

    # -- talking ---------------------------------------------------------------------------------------------------

    # Generators, each of which is the operation and what it awaits at once: a coroutine around a future would cost as
    # much again as all the rest.

    @types.coroutine
    def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> Generator[ReplyFuture, None, None]:
        """See IO.broadcast. What goes to all nodes alike is only noted here, and joined once at the turn's end."""
        future = self._future()
        collector.waiter = future
        if type(payloads) is bytes and self.up == self._n:
            self._shared.append(payloads)
            self._collectors.append(collector)
            if not self.turning:
                self.turning = True
                self._call_soon(self._flush)
        else:
            self._send_each(payloads, collector)
        if timeout != self._timeout:
            self._regroup(timeout)
        self._fresh.append(future)
        if type(timeout) is CappedTimeout:
            self.loop.call_later(timeout.most, self._silence, future)
        if not future.over:
            yield future
            if not hasattr(future, "reply"):
                raise asyncio.CancelledError  # see ReplyFuture.cancel

    @types.coroutine
    def wait_for(self, wakeup: TaskWakeup, seconds: float | None) -> Generator[ReplyFuture, None, None]:
        """See IO.wait."""
        if not wakeup.is_set:
            future = wakeup.future = self._future()
            timer = None if seconds is None else self.loop.call_later(seconds, self._silence, future)
            try:
                yield future
            finally:
                wakeup.future = None
                if timer is not None:
                    timer.cancel()
        wakeup.is_set = False

    async def subscribe(self, timeout: float) -> None:
        """See IO.subscribe. All tasks share one subscription for each connection."""
        if self._subscribing is None:
            self._subscribing = self.loop.create_future()
            timer = self.loop.call_later(timeout, self._end_subscribing, self._subscribing)
            self._subscribing.add_done_callback(lambda _: timer.cancel())
            self._subscribe_each(self._subscribing)
        if self._subscribing is not None:
            await asyncio.shield(self._subscribing)

    def _subscribe_each(self, done: asyncio.Future[None]) -> None:
        waiting: set[int] = set()

        def answered(node: int, fault: Fault | None) -> None:
            waiting.discard(node)
            self.subscribed(self.group.nodes[node], self.links[node].connection, fault)
            if not waiting:
                self._end_subscribing(done)

        self._spill()
        for link in self.links:
            connection = link.connection
            if connection is not None and not connection.channel and self.group.nodes[link.index].no_push is None:
                waiting.add(link.index)
                subscription = Subscription(connection, self.group.channel_prefix, answered)
                connection.request(subscription.payload, subscription)
        if waiting:
            self.turn()
        else:
            self._end_subscribing(done)

    def _end_subscribing(self, done: asyncio.Future[None]) -> None:
        if not done.done():
            done.set_result(None)
        if self._subscribing is done:
            self._subscribing = None

    def send(self, payloads: Payloads, collector: Collector) -> None:
        """See IO.send."""
        self._spill()
        if self.up < self._n:
            self._start()
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.connection.request(payload, collector)
                self.turn()
            else:
                self._answer(collector, link)

    def _send_each(self, payloads: Payloads, collector: Collector) -> None:
        """To each node its own, or to those that are connected."""
        self._spill()
        if self.up < self._n:
            self._start()
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.connection.request(payload, collector)
                self.turn()
            elif link.connecting is not None:
                link.backlog.append((payload, collector))
                self.turn()
            else:
                self._answer(collector, link)
        if collector.decided and not collector.waiter.over:
            collector.waiter.set_result(None)

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        """See IO.send_and_forget."""
        self._spill()
        all_up, discard = True, DISCARD if width == 1 else Discard(width)
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.connection.request(payload, discard)
            else:
                all_up = False
        self.turn()
        return all_up

    def wake_soon(self) -> None:
        """See Waker."""
        if not self.waking:
            self._call_soon(self.wake)

    def wake(self) -> None:
        """Resume all who were answered, and for a while those whom they wake in turn, as one who passes a lock on does: a
        turn of the loop for each would take longer. What they send is new business, and leaves at the end of the turn."""
        woken: list[ReplyFuture] = []
        self.waking = True
        try:
            resumed = 0
            for _ in range(IN_A_ROW):
                woken, self.woken = self.woken, woken
                woken.reverse()
                while woken:
                    future = woken.pop()  # kept by nobody once its task goes on: many would call the garbage collector
                    if future.callback is not None:
                        future.context.run(future.callback, future)
                    resumed += 1
                    if resumed == CROWD:
                        resumed = 0
                        if self.turning:
                            self._flush()
                if not self.woken:
                    break
        except BaseException:  # an interrupt or an exit, which a task lets through: the others go on all the same
            self.woken[:0] = reversed(woken)
            raise
        finally:
            self.waking = False
            if self.woken:
                self._call_soon(self.wake)

    def turn(self) -> None:
        """Order the flush at the end of this turn of the loop."""
        if not self.turning:
            self.turning = True
            self._call_soon(self._flush)

    def _spill(self) -> None:
        """What was noted for all nodes goes into each one's queue, so that what follows stays behind it."""
        if self._shared:
            for link in self.links:
                if link.connection is not None:
                    link.connection.pending.extend(self._collectors)
                    link.connection.sent.extend(self._shared)
                    link.connection.out += self._shared
            self._shared.clear()
            self._collectors.clear()

    def _flush(self) -> None:
        self.turning = False
        now = self.loop.time()
        shared, collectors = b"".join(self._shared), self._collectors
        for link in self.links:
            connection, protocol = link.connection, link.protocol
            if connection is None or protocol is None or protocol.transport is None:
                for collector in collectors:
                    self._answer(collector, link)
                continue
            idle = not link.asked_at
            data = shared
            if connection.out:
                data = b"".join(connection.out) + shared
                connection.out.clear()
            connection.pending.extend(collectors)
            connection.sent.extend(self._shared)
            if data:
                protocol.transport.write(data)
                if idle:
                    link.asked_at = now
        self._shared.clear()
        collectors.clear()
        if self._fresh:
            self._plan_sweep(now)

    def _answer(self, collector: Any, link: AioLink) -> None:
        """What a node that is not connected says."""
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

    # -- ending ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the connections, after a moment for what was just posted."""
        self.closed = True
        tasks = [link.connecting for link in self.links if link.connecting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Who is answered meanwhile may have something more to ask, and then to undo.
        for _ in range(LAST_ROUNDS):
            if self.up:
                await self.broadcast(PING, Ballot(len(self.links), len(self.links)), 0.05)
            await asyncio.sleep(0)
            if not self.turning and not any(link.connection and link.connection.pending for link in self.links):
                break
        for link in self.links:
            if link.connection is not None:
                self.down(link, NOT_CONNECTED)
        self._end_timeouts()
