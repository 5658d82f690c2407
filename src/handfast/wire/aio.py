"""A lane of asyncio connections: one to each node, shared by all tasks of a loop.

All that tasks send in one turn of the loop leaves in one write per node; replies come back in order. A task waits on one
future per exchange, whatever the number of nodes, completed by the reply that decides. Patience is kept by one sweep
over all waiting exchanges, not by a timer for each.
"""

from __future__ import annotations

import asyncio
import functools
import types
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from handfast.core.effects import CLOSED, SILENT, Brief, Fault, Payloads, Poll, payload_for
from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.core.quorum import Ballot, Rounds
from handfast.core.resp import encode
from handfast.wire.channel import DISCARD, Channel, Subscription
from handfast.wire.dial import Address, Place
from handfast.wire.ears import Ears, TaskBell
from handfast.wire.faults import from_socket
from handfast.wire.forward import ASKING, Forward
from handfast.wire.link import GRACE, NOT_CONNECTED, LinkState
from handfast.wire.waiter import Waiter, waiters_of

__all__ = ["AioLane"]

SWEEP_EVERY: Final = 0.02
"""Seconds between two looks at who has waited too long, unless somebody's patience ends sooner."""


QUEUE_PATIENCE: Final = 10
"""How many times its patience an exchange waits on for nodes that are busy answering others before it."""
PING: Final = encode(b"PING")
CROWD: Final = 200
"""When so many have been resumed, what they sent leaves before the others come: the servers work meanwhile."""


class Pipe(asyncio.Protocol):
    """One connection. A link may have had others before it, whose end must not be taken for this one's."""

    def __init__(self, link: AioLink, channel: Channel) -> None:
        self.link = link
        self.channel = channel
        self.shaken: asyncio.Future[None] = link.lane.loop.create_future()
        """Done when the handshake has ended, one way or the other."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
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
        lane.reading = True
        try:
            channel.feed(data)
        finally:  # an interrupt must not leave everybody asleep
            lane.reading = False
        link.answered += before - len(pending)
        link.asked_at = lane.loop.time() if pending else 0.0
        if channel.fault is not None:
            lane.down(link, channel.fault)
        elif channel.out:
            lane.turn()
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


class AioLane(Ears):
    """One link to each node of a group, on one event loop."""

    bell = TaskBell

    def __init__(
        self,
        group: Group,
        addresses: Sequence[Address],
        shake: Callable[[int], Steps],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self.group = group
        self.shake = shake
        self.loop = loop
        self.links = [AioLink(i, address, self) for i, address in enumerate(addresses)]
        self.up = 0
        self.settled = False
        self.closed = False
        self._n = len(self.links)
        self._waiter = waiters_of(self)
        self.woken: list[Waiter] = []
        """Who has been answered and not resumed yet."""
        self.reading = False
        """Replies are being taken in; whoever is answered by them is resumed right afterwards."""
        self._call_soon = loop.call_soon
        self.turning = False
        """Only set while the loop runs: the flush of this turn is ordered."""
        self._voting = False
        """There are votes in this turn's write, to be sealed with the marker."""
        self._shared: list[bytes] = []
        self._polls: list[Any] = []
        """This turn's payloads that go to all nodes alike, and their polls."""
        self._fresh: list[Waiter] = []
        """Who began to wait in this turn, all with the same patience."""
        self._patience = 0.0
        self._batches: list[tuple[float, list[Waiter]]] = []
        """Those before them, with another patience."""
        self._waiting: dict[float, deque[tuple[float, list[Waiter], list[int]]]] = {}
        """By patience: who waits, turn by turn. Patience counts from the write, not from the wish to write."""
        self._sweeper: asyncio.TimerHandle | None = None
        self.sibling: Callable[[Place, int], AioLane] | None = None
        """Of a cluster's node: the lane to another."""

    # -- connecting ------------------------------------------------------------------------------------------------

    async def settle(self, need: int, within: float) -> None:
        """See Effects.settle."""
        end = self.loop.time() + within
        # Who could not be connected a moment ago is not tried again at once, however many ask for it.
        rest = min(within, max(link.rests(self.loop.time()) for link in self.links))
        if rest > 0:
            await asyncio.sleep(rest)
        self._start(force=True)
        grace = False
        while tasks := [link.connecting for link in self.links if link.connecting is not None]:
            left = end - self.loop.time()
            done, _ = await asyncio.wait(
                tasks, timeout=min(left, GRACE) if grace else left, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            grace = self.up >= need
        self.settled = self.up >= self.group.need

    def _start(self, *, force: bool = False) -> None:
        now = self.loop.time()
        for link in self.links:
            if link.channel is None and link.connecting is None and link.due(now, force=force):
                link.connecting = self.loop.create_task(self._connect(link), name="handfast-connect")

    async def _connect(self, link: AioLink) -> None:
        pipe: Pipe | None = None
        try:
            async with asyncio.timeout(link.connect_timeout):
                pipe = await self._dial(link)
            fault = pipe.channel.fault
        except Exception as error:  # whatever went wrong is this node's answer
            fault = from_socket(error)
        finally:
            link.connecting = None
        if fault is not None:
            fault = link.address_now.says(fault)
        backlog, link.backlog = link.backlog, []
        if pipe is None or fault is not None or self.closed:
            link.failed(fault or NOT_CONNECTED, self.loop.time())
            if pipe is not None and pipe.transport is not None:
                pipe.transport.abort()
            for _, poll in backlog:
                self._answer(poll, link)
            return
        link.pipe = pipe
        pipe.channel.heard = self.pushed
        link.connected(pipe.channel)
        self.up += 1
        for payload, poll in backlog:
            # Whoever gave up has undone its attempt elsewhere; sending it now would leave a lock behind.
            if poll.waiter is not None and not poll.waiter.over:
                pipe.channel.request(payload, poll)
                self._voting |= poll.guarded
                self.turn()

    async def _dial(self, link: AioLink) -> Pipe:
        """A connection whose handshake has ended."""
        address = link.address
        if address.prepare is not None or address.beacon is not None:
            address = link.address_now = await self.loop.run_in_executor(None, address.located)
        # Credentials may come from somewhere slow.
        steps = await self.loop.run_in_executor(None, self.shake, link.index) if address.credentials else None
        pipe = Pipe(link, Channel(link.index, self.group, steps or self.shake(link.index), self._waiter))
        if address.beacon is not None:
            pipe.channel.strayed = functools.partial(self._strayed, link, address)
            address.beacon.opened(pipe, address.place, Pipe.hang_up)
        try:
            if address.path:
                await self.loop.create_unix_connection(lambda: pipe, address.path)
            else:
                tls: dict[str, Any] = {}
                if address.tls is not None:
                    tls = {"ssl": address.tls(), "server_hostname": address.host}
                await self.loop.create_connection(lambda: pipe, address.host, address.port, **tls)
            await pipe.shaken
        except BaseException:
            if pipe.transport is not None:
                pipe.transport.abort()
            raise
        return pipe

    def down(self, link: AioLink, fault: Fault) -> None:
        """A link that was up has lost its connection, or gives it up."""
        pipe, link.pipe = link.pipe, None
        link.failed(fault, self.loop.time())
        self.up -= 1
        self.settled = self.up >= self.group.need
        if pipe is not None:
            if pipe.transport is not None:
                pipe.transport.abort()
            pipe.channel.fail(fault)
            self.deaf(link.index)

    # -- talking ---------------------------------------------------------------------------------------------------

    # Generators, each of which is the operation and what it awaits at once: a coroutine around a future would cost as
    # much again as all the rest.

    @types.coroutine
    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Generator[Waiter, None, None]:
        """See Effects.exchange. What goes to all nodes alike is only noted here, and joined once at the turn's end."""
        waiter = self._waiter()
        poll.waiter = waiter
        if type(payloads) is bytes and self.up == self._n:
            self._shared.append(payloads)
            self._polls.append(poll)
            if not self.turning:
                self.turning = True
                self._call_soon(self._flush)
        else:
            self._send_each(payloads, poll)
        if poll.guarded:
            self._voting = True
        if patience != self._patience:
            self._regroup(patience)
        self._fresh.append(waiter)
        if type(patience) is Brief:
            self.loop.call_later(patience.most, self._silence, waiter)
        if not waiter.over:
            yield waiter

    @types.coroutine
    def ask(self, payload: bytes, patience: float) -> Generator[Waiter, None, Any]:
        """See Effects.ask."""
        if not self.up:
            return self.links[0].fault or NOT_CONNECTED
        waiter = self._waiter()
        self._shared.append(payload)
        self._polls.append(waiter)
        if not self.turning:
            self.turning = True
            self._call_soon(self._flush)
        if patience != self._patience:
            self._regroup(patience)
        self._fresh.append(waiter)
        if type(patience) is Brief:
            self.loop.call_later(patience.most, self._silence, waiter)
        yield waiter
        return waiter.reply

    @types.coroutine
    def listen(self, bell: TaskBell, seconds: float | None) -> Generator[Waiter, None, None]:
        """See Effects.park."""
        if not bell.rung:
            waiter = bell.waiter = self._waiter()
            timer = None if seconds is None else self.loop.call_later(seconds, self._silence, waiter)
            try:
                yield waiter
            finally:
                bell.waiter = None
                if timer is not None:
                    timer.cancel()
        bell.rung = False

    async def subscribe(self, patience: float) -> bytes | Fault:
        """See Effects.subscribe."""
        link = self.links[0]
        if link.channel is None:
            return link.fault or NOT_CONNECTED
        poll = Subscription(link.channel)
        await self.exchange(poll.payload, poll, patience)
        self.channel = link.channel.name if link.channel is not None else b""
        return poll.reply

    def _send_each(self, payloads: Payloads, poll: Poll) -> None:
        """To each node its own, or to those that are connected."""
        self._spill()
        if self.up < self._n and not self.closed:
            self._start()
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.channel is not None:
                link.channel.request(payload, poll)
                self.turn()
            elif link.connecting is not None and not (poll.guarded and self.group.guard):
                link.backlog.append((payload, poll))
                self.turn()
            else:
                self._answer(poll, link)
        if poll.decided and not poll.waiter.over:
            poll.waiter.set_result(None)

    def post(self, payloads: Payloads) -> bool:
        """See Effects.post."""
        self._spill()
        all_up = True
        for link in self.links:
            payload = payload_for(payloads, link.index)
            if payload is None:
                continue
            if link.channel is not None:
                link.channel.request(payload, DISCARD)
            else:
                all_up = False
        self.turn()
        return all_up

    def _regroup(self, patience: float) -> None:
        """Who waits from now on has this patience."""
        if self._fresh:
            self._batches.append((self._patience, self._fresh))
            self._fresh = []
        self._patience = patience

    @staticmethod
    def _silence(waiter: Waiter) -> None:
        if not waiter.over:
            waiter.set_result(SILENT)

    def wake_soon(self) -> None:
        """See Waker."""
        if not self.reading:
            self._call_soon(self.wake)

    def wake(self) -> None:
        """Resume all who were answered. What they send is new business, and leaves at the end of the turn."""
        woken, self.woken = self.woken, []
        left = iter(woken)
        resumed = 0
        try:
            for waiter in left:
                if waiter.callback is not None:
                    waiter.context.run(waiter.callback, waiter)
                resumed += 1
                if resumed == CROWD:
                    resumed = 0
                    if self.turning:
                        self._flush()
        except BaseException:  # an interrupt or an exit, which a task lets through: the others go on all the same
            self.woken[:0] = left
            self._call_soon(self.wake)
            raise

    def turn(self) -> None:
        """Order the flush at the end of this turn of the loop."""
        if not self.turning:
            self.turning = True
            self._call_soon(self._flush)

    def _spill(self) -> None:
        """What was noted for all nodes goes into each one's queue, so that what follows stays behind it."""
        if self._shared:
            for link in self.links:
                if link.channel is not None:
                    link.channel.pending.extend(self._polls)
                    link.channel.sent.extend(self._shared)
                    link.channel.out += self._shared
            self._shared.clear()
            self._polls.clear()

    def _flush(self) -> None:
        self.turning = False
        now = self.loop.time()
        shared, polls = b"".join(self._shared), self._polls
        sealed = self._voting and self.group.guard
        self._voting = False
        for link in self.links:
            channel, pipe = link.channel, link.pipe
            if channel is None or pipe is None or pipe.transport is None:
                for poll in polls:
                    self._answer(poll, link)
                continue
            idle = not link.asked_at
            data = shared
            if channel.out:
                data = b"".join(channel.out) + shared
                channel.out.clear()
            channel.pending.extend(polls)
            channel.sent.extend(self._shared)
            if sealed:
                data += channel.seal(now)
            if data:
                pipe.transport.write(data)
                if idle:
                    link.asked_at = now
        self._shared.clear()
        polls.clear()
        if self._fresh:
            self._regroup(self._patience)
            marks = [link.answered + len(link.channel.pending) if link.channel else 0 for link in self.links]
            least = min(patience for patience, _ in self._batches)
            for patience, waiters in self._batches:
                self._waiting.setdefault(patience, deque()).append((now + patience, waiters, marks))
            self._batches.clear()
            if self._sweeper is None or self._sweeper.when() > now + least:
                self._sweep_at(now + min(SWEEP_EVERY, least))

    def _answer(self, poll: Any, link: AioLink) -> None:
        """What a node that is not connected says."""
        fault = link.fault or NOT_CONNECTED
        if type(poll) is self._waiter:
            if not poll.over:
                poll.set_result(fault)
        elif poll.add(link.index, fault) and not poll.waiter.over:
            poll.waiter.set_result(None)

    def _is_over(self, end: float, waiters: list[Waiter], marks: list[int], now: float, patience: float) -> bool:
        """All nodes have answered this turn's requests; or patience is over, and no answer is on its way.

        A node that works through a long queue answers all the time: it is slow, not silent, and is given longer.
        """
        behind = [link for link, mark in zip(self.links, marks, strict=True) if link.channel and link.answered < mark]
        if not behind:
            return all(waiter.over for waiter in waiters) or now >= end
        if now < end:
            return False
        return now >= end + QUEUE_PATIENCE * patience or all(now - link.asked_at > patience for link in behind)

    def _sweep(self) -> None:
        """Wake exchanges whose patience is over; give up connections whose node hangs."""
        now = self.loop.time()
        for patience, queue in list(self._waiting.items()):
            while queue and self._is_over(*queue[0], now, patience):
                for waiter in queue.popleft()[1]:
                    if not waiter.over:
                        waiter.set_result(SILENT)
            if not queue:
                del self._waiting[patience]
        for link in self.links:
            fault = link.hangs(now) if link.channel is not None else None
            if fault is not None:
                self.down(link, fault)
        self._sweeper = None
        if self._waiting or any(link.asked_at for link in self.links if link.channel is not None):
            ends = [queue[0][0] for queue in self._waiting.values() if queue[0][0] > now]
            self._sweep_at(min([now + SWEEP_EVERY, *ends]))

    def _sweep_at(self, when: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = self.loop.call_at(when, self._sweep)

    # -- going elsewhere -------------------------------------------------------------------------------------------

    def _strayed(self, link: AioLink, address: Address, poll: Any, payload: bytes, fault: Fault) -> bool:
        """See Channel.strayed. Others use this lane for other names, so it stays; the request goes on by another."""
        belongs = address.beacon.astray(address.place, fault) if address.beacon is not None else None
        if belongs is None or link.channel is None:
            return False
        slot, place, asking = belongs
        width = 1 if type(poll) is self._waiter else poll.width
        if self._n > 1 or self.sibling is None:
            if not asking:  # one vote less, this time
                shard: Any = address.beacon
                shard.slot, shard.wish = slot, place
                if link.pipe is not None:
                    link.pipe.hang_up()
            return False
        if type(poll) is Rounds and len(poll.ballots) > 1:
            return False  # of many names: each is asked for again where it belongs
        if asking and width > 1 and type(poll) is not Rounds:
            return False  # each of its commands would have to be asked for: sooner or later the move is over
        self.sibling(place, slot).carry(
            ASKING + payload if asking else payload, Forward(link.channel, poll, width, asking)
        )
        return True

    def carry(self, payload: bytes, poll: Forward) -> None:
        """Take over a request of another lane."""
        link = self.links[0]
        if link.channel is None and link.connecting is None:
            self._start(force=True)
        self._send_each(payload, poll)

    # -- ending ----------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """End the connections, after a moment for what was just posted."""
        self.closed = True
        tasks = [link.connecting for link in self.links if link.connecting is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self.up:
            await self.exchange(PING, Ballot(len(self.links), len(self.links)), 0.05)
        if self._sweeper is not None:
            self._sweeper.cancel()
        for link in self.links:
            if link.channel is not None:
                self.down(link, NOT_CONNECTED)
