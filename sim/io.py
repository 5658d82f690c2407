"""The core's IO over the simulated network: a driver, as handfast.net has them.

Production code implements a connection (net.connection), its retries (net.link), the routing of pushes
(net.push_router) and the handshake. This module simulates only the transport of bytes and the passing of time. All tasks
of one actor share one SimIO, as asyncio's tasks share their connections. Every request is a separate write.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from random import Random
from typing import Any, Final

from handfast.core.handshake import Steps
from handfast.core.io import CLOSED, SILENT, Collector, Fault, Payloads, payload_for
from handfast.core.nodes import NOT_CONNECTED, NodeGroup
from handfast.core.votes import ask_by_broadcast
from handfast.net.address import Address
from handfast.net.connection import DISCARD, Connection, Discard, Subscription
from handfast.net.link import CONNECT_TIMEOUT, GRACE, HUNG, NodeLink
from handfast.net.push_router import PushRouter, TaskWakeup
from sim.net import Net, TcpConnection
from sim.node import Node
from sim.world import Actor, Clock, Task, Timer, Waiter

__all__ = ["SimIO"]

REFUSED: Final = Fault("refused", "refused the connection")
EPOCH: Final = 1_800_000_000
"""Seconds: the date at which all simulations begin."""


class SimLink(NodeLink):
    """The link to one node, and the user's end of its TCP connection."""

    def __init__(self, io: SimIO, index: int, server: Node) -> None:
        super().__init__(index, Address(f"n{index}"), io.group)
        self.io = io
        self.server = server
        self.tcp: TcpConnection | None = None
        """The connection in use, or being made."""
        self.trying: Timer | None = None
        """While it is being made: the timer that ends the try."""
        self.young: Connection | None = None
        """Its connection during the handshake."""
        self.hanging: Timer | None = None
        self.backlog: list[tuple[bytes, Collector]] = []
        """Requests to send once the node is connected, if their callers still wait."""

    def dial(self) -> None:
        io = self.io
        self.tcp = io.net.dial(io.where, io.actor, self, self.server)
        self.trying = io.later(CONNECT_TIMEOUT, self._ended, Fault("timeout", "did not answer the connection in time"))

    def accepted(self, tcp: TcpConnection) -> None:
        if tcp is self.tcp:
            io = self.io
            self.young = Connection(self.index, io.shake(self.index), io.now, io.group.check)
            self._shake()

    def refused(self, tcp: TcpConnection) -> None:
        if tcp is self.tcp:
            self._ended(REFUSED)

    def broken(self, tcp: TcpConnection) -> None:
        if tcp is not self.tcp:
            return
        if self.connection is None:
            self._ended(CLOSED)
        else:
            self.down(CLOSED)

    def received(self, tcp: TcpConnection, data: bytes) -> None:
        if tcp is not self.tcp:
            return
        io, connection = self.io, self.connection
        if connection is None:
            if self.young is not None:
                self.young.feed(data)
                self._shake()
            return
        connection.feed(data)
        self.asked_at = io.now() if connection.pending else 0.0
        if connection.fault is not None:
            self.down(connection.fault)
        elif connection.out:
            self.write(again=True)

    def _shake(self) -> None:
        young = self.young
        assert young is not None
        if young.fault is not None:
            self._ended(young.fault)
        elif young.ready:
            self._ended(None)
        else:
            self._send(young)

    def _send(self, connection: Connection, *, again: bool = False) -> None:
        data = connection.take()
        if data and self.tcp is not None:
            self.io.on_write(self.tcp, self.index, data, again)
            self.tcp.send(data)

    def _ended(self, fault: Fault | None) -> None:
        """The try to connect has ended."""
        io, young, self.young = self.io, self.young, None
        if self.trying is not None:
            self.trying.cancel()
            self.trying = None
        backlog, self.backlog = self.backlog, []
        if young is None or fault is not None:
            self._give_up()
            self.failed(fault or NOT_CONNECTED, io.now())
            for _, collector in backlog:
                self.answer(collector)
        else:
            io.listen_to(young)
            self.connected(young)
            io.up += 1
            for payload, collector in backlog:
                # A caller that gave up has taken its attempt back elsewhere; sending it now would leave a lock behind.
                if io.now() >= collector.until or collector.waiter.over:
                    self.answer(collector)
                else:
                    young.request(payload, collector)
                    self.write(again=True)
        io.tried()

    def down(self, fault: Fault) -> None:
        """The link was up, and loses its connection or gives it up."""
        io, connection = self.io, self.connection
        assert connection is not None
        self._give_up()
        self.failed(fault, io.now())
        io.up -= 1
        io.ready = io.up >= io.group.need
        connection.fail(fault)
        io.connection_lost(self.index)

    def _give_up(self) -> None:
        if self.tcp is not None:
            self.tcp.give_up()
            self.tcp = None

    def answer(self, collector: Any) -> None:
        """Answers for a node that is not connected."""
        decided = collector.add(self.index, self.fault or NOT_CONNECTED)
        if decided and collector.waiter is not None and not collector.waiter.over:
            collector.waiter.set_result(None)

    def request(self, payload: bytes, collector: Any) -> None:
        assert self.connection is not None
        self.connection.request(payload, collector)
        self.write()

    def write(self, *, again: bool = False) -> None:
        """`again`: this write belongs to a request that began before."""
        connection, now = self.connection, self.io.now()
        assert connection is not None
        if not self.asked_at:
            self.asked_at = now
        if self.hanging is None:
            self.hanging = self.io.later(HUNG, self._hangs)
        self._send(connection, again=again)

    def _hangs(self) -> None:
        self.hanging = None
        fault = self.hangs(self.io.now()) if self.connection is not None else None
        if fault is not None:
            self.down(fault)
        elif self.connection is not None and self.asked_at:
            self.hanging = self.io.later(max(0.01, self.asked_at + HUNG - self.io.now()), self._hangs)


class _Subscribing:
    """Subscriptions under way: the nodes that have not replied, and the tasks that wait for them."""

    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.waiters: list[Waiter] = []


class SimIO(PushRouter):
    """One link to each node of a group, for all tasks of one actor: IO and Access in one."""

    wakeup = TaskWakeup

    def __init__(
        self,
        actor: Actor,
        clock: Clock,
        where: int,
        group: NodeGroup,
        net: Net,
        nodes: Sequence[Node],
        shake: Callable[[int], Steps],
        on_write: Callable[[TcpConnection, int, bytes, bool], None],
    ) -> None:
        super().__init__(len(nodes))
        self.actor = actor
        self.clock = clock
        self.now = clock.now
        self.where = where
        self.group = group
        self.net = net
        self.shake = shake
        self.on_write = on_write
        """Called for each write with the connection, the node, the bytes, and whether its request began before."""
        self.wall_ahead = 0.0
        """Seconds by which this machine's wall clock is wrong."""
        self.threads = False
        """One thread uses it at a time."""
        self.up = 0
        self.ready = False
        self.closed = False
        self.links = [SimLink(self, i, node) for i, node in enumerate(nodes)]
        self._rng: Random = actor.world.rng
        self._trying: list[Waiter] = []
        self._subscribing: _Subscribing | None = None

    # -- time and chance -------------------------------------------------------------------------------------------

    def wall(self) -> int:
        return int((EPOCH + self.wall_ahead + self.actor.world.now) * 1e6)

    def random(self) -> float:
        return self._rng.random()

    def nonce(self) -> bytes:
        return b"%032x" % self._rng.getrandbits(128)

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> Timer:
        clock = self.clock
        return self.actor.at(clock.when(clock.now() + seconds), call, *args)

    @types.coroutine
    def _wait(self, waiter: Waiter, seconds: float | None) -> Generator[Waiter, None, None]:
        timer = None if seconds is None else self.later(max(0.0, seconds), waiter.enough)
        try:
            yield waiter
        finally:
            waiter.over = True
            if timer is not None:
                timer.cancel()

    async def sleep(self, until: float) -> None:
        await self._wait(Waiter(), until - self.now())

    # -- connecting ------------------------------------------------------------------------------------------------

    async def connect(self, need: int, within: float) -> None:
        end = self.now() + within
        rest = min(within, max(link.rests(self.now()) for link in self.links))
        if rest > 0:
            await self.sleep(self.now() + rest)
        self._start(force=True)
        while any(link.trying is not None for link in self.links):
            waiter = Waiter()
            self._trying.append(waiter)
            await self._wait(waiter, min(end - self.now(), GRACE if self.up >= need else within))
            if waiter.reply is SILENT:
                break
        self.ready = self.up >= self.group.need

    def reconnect(self) -> None:
        self._start()

    def _start(self, *, force: bool = False) -> None:
        now = self.now()
        for link in self.links:
            if link.connection is None and link.trying is None and link.due(now, force=force):
                link.dial()

    def tried(self) -> None:
        """A try to connect has ended."""
        waiters, self._trying = self._trying, []
        self._wake(waiters)

    @staticmethod
    def _wake(waiters: list[Waiter]) -> None:
        for waiter in waiters:
            if not waiter.over:
                waiter.set_result(None)

    # -- requests --------------------------------------------------------------------------------------------------

    def ask(self, payload: bytes, timeout: float) -> Awaitable[Any]:
        return ask_by_broadcast(self, payload, timeout)

    async def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> None:
        waiter = collector.waiter = Waiter()
        self._request_each(payloads, collector, keep=True)
        if collector.decided or waiter.over:
            waiter.over = True
        else:
            await self._wait(waiter, timeout)
        if self.threads and collector.decided:
            self._answer_unsent(collector)

    def _answer_unsent(self, collector: Collector) -> None:
        """Answers at once, as ThreadConnections does. With asyncio the connection that is being made answers later."""
        for link in self.links:
            kept = [each for each in link.backlog if each[1] is not collector]
            if len(kept) < len(link.backlog):
                link.backlog = kept
                link.answer(collector)

    def send(self, payloads: Payloads, collector: Collector) -> None:
        self._request_each(payloads, collector, keep=False)

    def _request_each(self, payloads: Payloads, collector: Collector, *, keep: bool) -> None:
        """Send each node its payload. `keep`: for nodes that are being connected, keep it until they are."""
        if self.up < len(self.links):
            self._start()
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.request(payload, collector)
            elif keep and link.trying is not None:
                link.backlog.append((payload, collector))
            else:
                link.answer(collector)

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        all_up, discard = True, DISCARD if width == 1 else Discard(width)
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.request(payload, discard)
            else:
                all_up = False
        return all_up

    # -- waiting ---------------------------------------------------------------------------------------------------

    def caller(self) -> Task | None:
        return self.actor.world.task

    def borrow(self) -> SimIO:
        return self

    def give_back(self, io: SimIO) -> None: ...

    async def wait(self, wakeup: TaskWakeup, until: float | None) -> None:
        if not wakeup.is_set:
            wakeup.future = Waiter()
            try:
                await self._wait(wakeup.future, None if until is None else until - self.now())
            finally:
                wakeup.future = None
        wakeup.is_set = False

    async def subscribe(self, timeout: float) -> None:
        """All tasks share one subscription for each connection."""
        under_way = self._subscribing
        if under_way is None:
            under_way = self._subscribing = _Subscribing()
            self.later(timeout, self._end_subscribing, under_way)
            self._subscribe_each(under_way)
        if self._subscribing is under_way:
            waiter = Waiter()
            under_way.waiters.append(waiter)
            await self._wait(waiter, None)

    def _subscribe_each(self, under_way: _Subscribing) -> None:
        def answered(node: int, fault: Fault | None) -> None:
            under_way.nodes.discard(node)
            self.subscribed(self.group.nodes[node], self.links[node].connection, fault)
            if not under_way.nodes:
                self._end_subscribing(under_way)

        for link in self.links:
            connection = link.connection
            if connection is not None and not connection.channel and self.group.nodes[link.index].no_push is None:
                under_way.nodes.add(link.index)
                subscription = Subscription(connection, self.group.channel_prefix, answered)
                subscription._name = self.group.channel_prefix + b"%024x" % self._rng.getrandbits(96)
                link.request(subscription.payload, subscription)
        if not under_way.nodes:
            self._end_subscribing(under_way)

    def _end_subscribing(self, under_way: _Subscribing) -> None:
        if self._subscribing is under_way:
            self._subscribing = None
            self._wake(under_way.waiters)
