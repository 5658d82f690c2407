"""Effects over the simulated network: a driver for the core, as handfast.net has them.

What a connection is (net.connection), when it is tried again or given up (net.link) and who hears what a node pushes
(net.push_router) is production's own code, and so is the handshake; only the moving of bytes and of time is simulated
here. It is shared by all tasks of one actor, like asyncio's connections. Every exchange is a write of its own.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Callable, Generator, Sequence
from random import Random
from typing import Any, Final

from handfast.core.effects import CLOSED, SILENT, Fault, Payloads, Poll, payload_for
from handfast.core.group import NOT_CONNECTED, Group
from handfast.core.handshake import Steps
from handfast.net.address import Address
from handfast.net.connection import DISCARD, Connection, Subscription
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
        """While it is being made: the end of that."""
        self.young: Connection | None = None
        """Its connection during the handshake."""
        self.hanging: Timer | None = None
        self.backlog: list[tuple[bytes, Poll]] = []
        """What to send once connected, for those who then still wait."""

    def dial(self) -> None:
        io = self.io
        self.tcp = io.net.dial(io.where, io.actor, self, self.server)
        self.trying = io.later(CONNECT_TIMEOUT, self._ended, Fault("timeout", "did not answer the connection in time"))

    def accepted(self, tcp: TcpConnection) -> None:
        if tcp is self.tcp:
            io = self.io
            self.young = Connection(self.index, io.group, io.shake(self.index), Waiter, io.now)
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

    def _send(self, connection: Connection, more: bytes = b"", *, again: bool = False) -> None:
        data = b"".join(connection.out) + more
        connection.out.clear()
        if data and self.tcp is not None:
            self.io.told(self.tcp, self.index, data, again)
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
            for _, poll in backlog:
                self.answer(poll)
        else:
            young.heard = io.pushed
            self.connected(young)
            io.up += 1
            for payload, poll in backlog:
                # Whoever gave up has undone its attempt elsewhere; sending it now would leave a lock behind.
                if io.now() >= poll.until:
                    self.answer(poll)
                elif not poll.waiter.over:
                    young.request(payload, poll)
                    self.write(again=True)
        io.tried()

    def down(self, fault: Fault) -> None:
        """It was up, and has lost its connection or gives it up."""
        io, connection = self.io, self.connection
        assert connection is not None
        self._give_up()
        self.failed(fault, io.now())
        io.up -= 1
        io.settled = io.up >= io.group.need
        connection.fail(fault)
        io.connection_lost(self.index)

    def _give_up(self) -> None:
        if self.tcp is not None:
            self.tcp.give_up()
            self.tcp = None

    def answer(self, poll: Any) -> None:
        """What a node that is not connected says."""
        if poll.add(self.index, self.fault or NOT_CONNECTED) and not poll.waiter.over:
            poll.waiter.set_result(None)

    def request(self, payload: bytes, poll: Any, *, votes: bool = False) -> None:
        assert self.connection is not None
        self.connection.request(payload, poll)
        self.write(votes=votes)

    def write(self, *, votes: bool = False, again: bool = False) -> None:
        """`again`: nobody has decided on this just now; it is part of an exchange that is under way."""
        connection, now = self.connection, self.io.now()
        assert connection is not None
        if not self.asked_at:
            self.asked_at = now
        if self.hanging is None:
            self.hanging = self.io.later(HUNG, self._hangs)
        self._send(connection, connection.seal() if votes else b"", again=again)

    def _hangs(self) -> None:
        self.hanging = None
        fault = self.hangs(self.io.now()) if self.connection is not None else None
        if fault is not None:
            self.down(fault)
        elif self.connection is not None and self.asked_at:
            self.hanging = self.io.later(max(0.01, self.asked_at + HUNG - self.io.now()), self._hangs)


class SimIO(PushRouter):
    """One link to each node of a group, for all tasks of one actor: Effects and Lobby in one."""

    bell = TaskWakeup

    def __init__(
        self,
        actor: Actor,
        clock: Clock,
        where: int,
        group: Group,
        net: Net,
        nodes: Sequence[Node],
        shake: Callable[[int], Steps],
        told: Callable[[TcpConnection, int, bytes, bool], None],
    ) -> None:
        super().__init__()
        self.actor = actor
        self.clock = clock
        self.where = where
        self.group = group
        self.net = net
        self.shake = shake
        self.told = told
        """Told of each write: on which connection, to whom, what, and whether its exchange was under way before."""
        self.wall_ahead = 0.0
        """Seconds by which this machine's wall clock is wrong."""
        self.up = 0
        self.settled = False
        self.links = [SimLink(self, i, node) for i, node in enumerate(nodes)]
        self._rng: Random = actor.world.rng
        self._trying: list[Waiter] = []

    # -- time and chance -------------------------------------------------------------------------------------------

    def now(self) -> float:
        return self.clock.now()

    def wall(self) -> int:
        return int((EPOCH + self.wall_ahead + self.actor.world.now) * 1e6)

    def random(self) -> float:
        return self._rng.random()

    def nonce(self) -> bytes:
        return b"%032x" % self._rng.getrandbits(128)

    def later(self, seconds: float, call: Callable[..., Any], *args: Any) -> Timer:
        return self.actor.at(self.clock.when(self.clock.now() + seconds), call, *args)

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

    async def settle(self, need: int, within: float) -> None:
        end = self.now() + within
        rest = min(within, max(link.rests(self.now()) for link in self.links))
        if rest > 0:
            await self.sleep(self.now() + rest)
        self._start(force=True)
        grace = False
        while any(link.trying is not None for link in self.links):
            left = end - self.now()
            waiter = Waiter()
            self._trying.append(waiter)
            await self._wait(waiter, min(left, GRACE) if grace else left)
            if waiter.reply is SILENT:
                break
            grace = self.up >= need
        self.settled = self.up >= self.group.need

    def _start(self, *, force: bool = False) -> None:
        now = self.now()
        for link in self.links:
            if link.connection is None and link.trying is None and link.due(now, force=force):
                link.dial()

    def tried(self) -> None:
        """A try to connect has ended."""
        waiters, self._trying = self._trying, []
        for waiter in waiters:
            if not waiter.over:
                waiter.set_result(None)

    # -- talking ---------------------------------------------------------------------------------------------------

    async def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> None:
        waiter = poll.waiter = Waiter()
        if self.up < len(self.links):
            self._start()
        votes = poll.guarded and self.group.guard
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.request(payload, poll, votes=votes)
            elif link.trying is not None and not votes:
                link.backlog.append((payload, poll))
            else:
                link.answer(poll)
        if poll.decided or waiter.over:
            waiter.over = True
        else:
            await self._wait(waiter, patience)

    async def ask(self, payload: bytes, patience: float) -> Any:
        link = self.links[0]
        if link.connection is None:
            return link.fault or NOT_CONNECTED
        waiter = Waiter()
        link.request(payload, waiter)
        await self._wait(waiter, patience)
        return waiter.reply

    def post(self, payloads: Payloads) -> bool:
        all_up = True
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.connection is not None:
                link.request(payload, DISCARD)
            else:
                all_up = False
        return all_up

    # -- waiting ---------------------------------------------------------------------------------------------------

    def who(self) -> Task | None:
        return self.actor.world.task

    def visit(self, operation: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        awaited: Awaitable[Any] = operation(self, *args)
        return awaited

    async def park(self, bell: TaskWakeup, until: float | None) -> None:
        if not bell.is_set:
            bell.future = Waiter()
            try:
                await self._wait(bell.future, None if until is None else until - self.now())
            finally:
                bell.future = None
        bell.is_set = False

    async def subscribe(self, patience: float) -> bytes | Fault:
        link = self.links[0]
        if link.connection is None:
            return link.fault or NOT_CONNECTED
        poll = Subscription(link.connection)
        poll.name = b"handfast:hand:%024x" % self._rng.getrandbits(96)
        await self.exchange(poll.payload, poll, patience)
        self.channel = link.connection.name if link.connection is not None else b""
        return poll.reply
