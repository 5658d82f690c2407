"""Asyncio connections: one to each node, shared by all tasks of a loop.

All requests of one turn of the loop leave in one write per node, and replies come back in order. A task awaits one future
per broadcast, whatever the number of nodes. The reply that decides completes it. One sweep checks the timeouts of all
waiting tasks (timeouts.py). aio_connecting.py makes the connections.
"""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from handfast.core.handshake import Steps
from handfast.core.io import Collector, Fault, Payloads, payload_for
from handfast.core.nodes import NodeGroup
from handfast.core.votes import Ballot
from handfast.net.address import Address
from handfast.net.aio_connecting import AioConnecting
from handfast.net.aio_protocol import AioLink
from handfast.net.connection import DISCARD, Discard, Subscription
from handfast.net.link import NOT_CONNECTED
from handfast.net.push_router import TaskWakeup
from handfast.net.reply_future import ReplyFuture
from handfast.net.timeouts import RequestTimeouts
from handfast.protocol.resp import encode

__all__ = ["AioConnections"]

PING: Final = encode(b"PING")
RESUMED_PER_WRITE: Final = 200
"""How many tasks to resume before their requests are written, so that the servers work while other tasks run."""
LAST_ROUNDS: Final = 6
"""How often `close` waits for tasks that are not done yet."""
WAKE_ROUNDS: Final = 32
"""How many rounds of tasks that wake each other to resume in one turn of the loop."""


class AioConnections(AioConnecting, RequestTimeouts):
    """One link to each node of a group, on one event loop."""

    wakeup = TaskWakeup
    links: Sequence[AioLink]

    def __init__(
        self,
        group: NodeGroup,
        addresses: Sequence[Address],
        shake: Callable[[int], Steps],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        AioConnecting.__init__(self, group, shake, loop)
        RequestTimeouts.__init__(self)
        self.links = [AioLink(i, address, self) for i, address in enumerate(addresses)]
        self._n = len(self.links)
        self.woken: list[ReplyFuture] = []
        """Futures that have a reply and whose tasks are not resumed yet."""
        self.waking = False
        """`wake` is running or about to: it will resume every task that gets a reply now."""
        self._call_soon = loop.call_soon
        self.turning = False
        """The flush at the end of this turn is ordered. Only set while the loop runs."""
        self._subscribing: asyncio.Future[None] | None = None
        """Done when the nodes have answered the subscriptions under way."""
        self._shared: list[bytes] = []
        self._collectors: list[Any] = []
        """The payloads of this turn that go to all nodes, and their collectors."""
        self._unchecked = False
        """One of these collectors must be checked."""

    # -- talking ---------------------------------------------------------------------------------------------------

    # These operations are generators that yield the future themselves. A coroutine around a future would double the cost
    # of a broadcast.

    @types.coroutine
    def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> Generator[ReplyFuture, None, None]:
        """See IO.broadcast. A payload for all nodes is only noted here. The flush at the turn's end joins them once."""
        future = ReplyFuture(self)
        collector.waiter = future
        if type(payloads) is bytes and self.up == self._n:
            self._shared.append(payloads)
            self._collectors.append(collector)
            if collector.checked:
                self._unchecked = True
            if not self.turning:
                self.turning = True
                self._call_soon(self._flush)
        else:
            self._send_each(payloads, collector)
        if timeout is not self._timeout:
            self._use_timeout(timeout, future)
        self._fresh.append(future)
        if not future.over:
            yield future
            if not hasattr(future, "reply"):
                raise asyncio.CancelledError  # see ReplyFuture.cancel

    @types.coroutine
    def ask(self, payload: bytes, timeout: float) -> Generator[ReplyFuture, None, Any]:
        """See IO.ask. The future that the task awaits is the collector as well."""
        future = ReplyFuture(self)
        if self.up:
            self._shared.append(payload)
            self._collectors.append(future)
            if not self.turning:
                self.turning = True
                self._call_soon(self._flush)
        else:
            collector: Any = future
            self._send_each(payload, collector)
        if timeout is not self._timeout:
            self._use_timeout(timeout, future)
        self._fresh.append(future)
        if not future.over:
            yield future
        try:
            return future.reply
        except AttributeError:
            raise asyncio.CancelledError from None  # see ReplyFuture.cancel

    @types.coroutine
    def wait_for(self, wakeup: TaskWakeup, seconds: float | None) -> Generator[ReplyFuture, None, None]:
        """See IO.wait."""
        if not wakeup.is_set:
            future = wakeup.future = ReplyFuture(self)
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
        self._send_each(payloads, collector, queue=False)

    def _send_each(self, payloads: Payloads, collector: Collector, *, queue: bool = True) -> None:
        """Send each node its own payload. `queue`: a node that is being connected gets it as soon as it is connected."""
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
            elif queue and link.connecting is not None:
                link.backlog.append((payload, collector))
                self.turn()
            else:
                self._answer(collector, link)
        if collector.decided and collector.waiter is not None and not collector.waiter.over:
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
        """Resume all tasks that have a reply, and for WAKE_ROUNDS rounds the tasks that these wake.

        A task that hands a lock over wakes another one, and a turn of the loop for each would take longer. The requests
        of resumed tasks leave at the end of the turn.
        """
        woken: list[ReplyFuture] = []
        self.waking = True
        try:
            resumed = 0
            for _ in range(WAKE_ROUNDS):
                woken, self.woken = self.woken, woken
                woken.reverse()
                while woken:
                    future = woken.pop()  # drop the reference: many live futures would start the garbage collector
                    if future.callback is not None:
                        future.context.run(future.callback, future)
                    resumed += 1
                    if resumed == RESUMED_PER_WRITE:
                        resumed = 0
                        if self.turning:
                            self._flush()
                if not self.woken:
                    break
        except BaseException:  # an interrupt or an exit passes through a task; the other tasks must go on
            self.woken[:0] = reversed(woken)
            raise
        finally:
            self.waking = False
            if self.woken:
                self._call_soon(self.wake)

    def turn(self) -> None:
        if not self.turning:
            self.turning = True
            self._call_soon(self._flush)

    def _spill(self) -> None:
        """Move the payloads for all nodes to each node's queue, so that later payloads follow them."""
        if self._shared:
            for link in self.links:
                if link.connection is not None:
                    link.connection.confirm()
                    link.connection.pending.extend(self._collectors)
                    link.connection.sent.extend(self._shared)
                    link.connection.out += self._shared
                    link.connection.unchecked = link.connection.unchecked or self._unchecked
            self._shared.clear()
            self._collectors.clear()
            self._unchecked = False

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
            if collectors:
                connection.confirm()
            connection.pending.extend(collectors)
            connection.sent.extend(self._shared)
            if connection.out or self._unchecked:
                connection.out.append(shared)
                connection.unchecked = connection.unchecked or self._unchecked
                data = connection.take()
            if data:
                protocol.transport.write(data)
                if idle:
                    link.asked_at = now
        self._shared.clear()
        self._unchecked = False
        collectors.clear()
        if self._fresh:
            self._plan_sweep(now)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the connections, after a moment for requests that were just sent."""
        self.closed = True
        tasks = [link.connecting for link in self.links if link.connecting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # A task that gets a reply meanwhile may send another request, and may have to take that back.
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
