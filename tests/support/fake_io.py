"""A driver over nodes in memory, and a client on it: for the algorithms of the core, in virtual time.

One operation runs straight through, as with the blocking driver. What others do meanwhile is planned beforehand
(`later`). Connections keep order. A node runs its commands when the operation next waits for something.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from handfast import _lease, _lifetime, sync
from handfast.core import guard, release
from handfast.core.config import LockConfig, LockRequest
from handfast.core.handshake import Login, handshake
from handfast.core.hold import Hold
from handfast.core.io import CLOSED, Collector, Fault, Payloads, PushListener, payload_for
from handfast.core.local_queue import Waiter, WaitQueues
from handfast.core.nodes import NodeGroup
from handfast.core.schedule import Schedule
from handfast.core.votes import ask_by_broadcast
from handfast.discovery.endpoints import locate
from handfast.net import clock
from handfast.net.link import CONNECT_TIMEOUT
from handfast.net.push_router import PushRouter
from handfast.net.thread_pool import BasePool
from handfast.net.threads import run
from handfast.options import policy
from handfast.protocol import commands
from handfast.protocol.claims import Yours, decode_push, decode_vote
from handfast.protocol.commands import Identity
from tests.support.fake_node import FakeNode, commands_in, name_of

__all__ = ["FakeClient", "FakeIO", "FakeWakeup", "Rival", "fake_queues", "lock_request"]

OWNER_START: Final = b"host:1::"
KEY: Final = b"handfast:{a}"


def lock_request(nodes: int, *names: str, owner: bytes | None = None, guard: bool = False, **options: Any) -> LockRequest:
    """The request of a lock, for a client of so many nodes."""
    chosen = policy({"ttl": 1.0, **options})
    group = NodeGroup([f"node-{i}" for i in range(nodes)], chosen, guard=guard)
    return LockRequest(LockConfig(group, chosen, OWNER_START), names or ("a",), owner)


class FakeWakeup:
    """Counts how often another thread has set it."""

    def __init__(self) -> None:
        self.is_set = False
        self.calls = 0

    def set(self) -> None:
        self.is_set = True
        self.calls += 1

    def set_here(self) -> None:
        self.is_set = True


def fake_queues(tell: Callable[[Waiter, float, str], None] = lambda waiter, seconds, outcome: None) -> WaitQueues:
    """The wait queues of a client without a watchdog: lists keep what the watchdog would get."""
    warnings: list[str] = []
    renewed: list[Hold] = []
    abandoned: list[Hold] = []
    queues = WaitQueues(
        nullcontext(),
        warn=warnings.append,
        tell=tell,
        renew=renewed.append,
        forget=lambda hold: renewed.remove(hold),
        abandon=abandoned.append,
    )
    queues.__dict__.update(warnings=warnings, renewed=renewed, abandoned=abandoned)
    return queues


class FakeIO(PushRouter):
    """IO and Access over nodes in memory.

    The k-th awaited operation is interrupted (k = 0: none): before anything was sent; with all sent and nothing
    answered; with half of the answers in; or with all of them. One that waits is interrupted before, or when what it
    waits for is there.
    """

    tick = 0.0001
    """Seconds from one look at the clock to the next."""
    latency = 0.0
    """Seconds for a round trip."""
    connect_takes = CONNECT_TIMEOUT
    """Seconds for connections that cannot be made; if it is set to less, for all."""
    most_operations = 5000
    _nonces = itertools.count(1)
    """Of all drivers: no two owners are the same."""
    wakeup = FakeWakeup

    def __init__(
        self,
        nodes: Sequence[FakeNode],
        group: NodeGroup,
        at: int = 0,
        when: str = "all",
        error: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        super().__init__(len(nodes))
        self.nodes = nodes
        self.group = group
        self.at, self.when, self.error = at, when, error
        self.count = 0
        """Operations that were awaited."""
        self.struck = False
        self.time = 0.0
        self.connected: set[int] = set()
        self.silent: set[int] = set()
        """Nodes that are connected and answer nothing."""
        self.down: set[int] = set()
        """Nodes that cannot be connected, and take their time to say so."""
        self.log: list[list[tuple[str, bytes, Any]]] = [[] for _ in nodes]
        """By node: what it has run, as (command, first argument, reply)."""
        self.sent: list[tuple[float, int, list[bytes]]] = []
        """What was sent: when, to which node, the words."""
        self._queue: list[list[tuple[bytes, Collector | None, int]]] = [[] for _ in nodes]
        """By node: payloads that it has not run."""
        self._answers: list[list[tuple[Collector | None, Any]]] = [[] for _ in nodes]
        """By node: replies, and pushes (without a collector), that nobody has read. They come in order."""
        self._events: list[tuple[float, int, Callable[[], Any]]] = []
        self._serial = itertools.count()
        self.trackers: list[PushListener] = []
        """Subscribers to changes."""
        self.on_use: list[Callable[[], Any]] = []
        """Called before an operation borrows connections."""
        self.answered: list[Callable[[], Any]] = []
        """Calls to make, one each time, after the nodes have run and before the replies are read."""
        self._lines: list[Any] = [SimpleNamespace(on_push=None) for _ in nodes]
        for line in self._lines:
            self.listen_to(line)

    # -- time

    def now(self) -> float:
        self.time += self.tick
        return self.time

    def wall(self) -> int:
        return self.nodes[0].now_us()

    def random(self) -> float:
        return 0.5

    def nonce(self) -> bytes:
        return b"%032d" % next(self._nonces)

    def later(self, at: float, what: Callable[[], Any]) -> None:
        """Call this at that time, or when time next passes after it."""
        heapq.heappush(self._events, (at, next(self._serial), what))

    def finish_events(self) -> None:
        """Make all planned calls now."""
        while self._events:
            self._next_event()

    def _next_event(self) -> None:
        at, _, what = heapq.heappop(self._events)
        self.time = max(self.time, at)
        what()

    def _pass_time(self, until: float | None, over: Callable[[], bool] = lambda: False) -> None:
        """Make the planned calls up to that time."""
        while not over():
            if self._events and (until is None or self._events[0][0] <= until):
                self._next_event()
                self._receive()
            elif until is None:
                raise AssertionError("it would sleep for ever")
            else:
                self.time = max(self.time, until)
                return

    def _strikes(self) -> bool:
        self.count += 1
        if self.count > self.most_operations:
            raise AssertionError("more operations than this test allows: a busy loop")
        self.struck = self.struck or self.count == self.at
        return self.count == self.at

    # -- connections

    @property
    def ready(self) -> bool:
        return len(self.connected) >= self.group.need

    async def connect(self, need: int, within: float) -> None:
        if self._strikes():
            raise self.error
        for i in range(self.group.n):
            if i in self.down:
                self.group.failed(i, Fault("closed", "not connected"))
            elif i not in self.connected:
                self._shake(i)
        if len(self.connected) < need or self.connect_takes < CONNECT_TIMEOUT:
            self._pass_time(self.time + min(within, self.connect_takes))

    def reconnect(self) -> None:
        for i in set(range(self.group.n)) - self.connected - self.down:
            self.later(self.time + self.latency, lambda i=i: i in self.connected or self._shake(i))

    def _shake(self, i: int) -> None:
        steps = handshake(self.group, self.group.nodes[i], Login("", "", 0, ""), self.now, lambda text: None)
        payload, _ = next(steps)
        try:
            while True:
                payload, _ = steps.send(self.nodes[i].run(payload))
        except StopIteration:
            self.connected.add(i)
            self.group.connected(i)

    def lose_connection(self, i: int, *, delivered: bool = True) -> None:
        """The connection to a node ends. Bytes under way arrive before that, or never."""
        if delivered:
            self._run(i)
        waiting = [collector for _, collector, _ in self._queue[i] if collector is not None]
        waiting += [collector for collector, _ in self._answers[i] if collector is not None]
        self._queue[i], self._answers[i] = [], []
        self.connected.discard(i)
        self.nodes[i].channels.pop(self.channels[i], None)
        self.group.failed(i, CLOSED)
        for collector in waiting:
            collector.add(i, CLOSED)
        self.connection_lost(i)

    # -- Access

    @staticmethod
    def caller() -> str:
        return "me"

    def borrow(self) -> FakeIO:
        for each in self.on_use:
            each()
        if self._strikes():
            raise self.error
        return self

    def give_back(self, io: FakeIO) -> None: ...

    # -- waiting

    async def sleep(self, until: float) -> None:
        strikes = self._strikes()
        if strikes and self.when in ("before", "sent"):
            raise self.error
        self._pass_time(until)
        if strikes:
            raise self.error

    async def wait(self, wakeup: Any, until: float | None) -> None:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        self._receive(self.when if strikes else "all")
        if strikes and self.when != "all":
            raise self.error
        self._pass_time(until, lambda: wakeup.is_set)
        if strikes:
            raise self.error
        wakeup.is_set = False

    async def subscribe(self, timeout: float) -> None:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        due = [i for i in self.connected if not self.channels[i] and self.group.nodes[i].no_push is None]
        for i in sorted(due):
            if i not in self.silent:
                self.channels[i] = b"wake:%d" % i
                self.nodes[i].channels[self.channels[i]] = self._pusher(i)
        if any(i in self.silent for i in due):
            self._pass_time(self.time + timeout)
        if strikes:
            raise self.error

    def _pusher(self, i: int) -> Callable[[list[Any]], None]:
        return lambda push: self._answers[i].append((None, push))

    # -- requests

    def ask(self, payload: bytes, timeout: float) -> Awaitable[Any]:
        return ask_by_broadcast(self, payload, timeout)

    async def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> None:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        self.send(payloads, collector)
        self._receive(self.when if strikes else "all")
        if strikes:
            raise self.error
        if collector.decided:
            self._pass_time(self.time + self.latency)
        else:
            self._pass_time(self.time + timeout, lambda: collector.decided)
        collector.over = True

    def send(self, payloads: Payloads, collector: Collector) -> None:
        for i in self._send(payloads, collector, collector.width):
            collector.add(i, self.group.nodes[i].fault or CLOSED)

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        return not self._send(payloads, None, width)

    def _send(self, payloads: Payloads, collector: Collector | None, width: int) -> list[int]:
        """Returns the nodes that are not connected."""
        missed = []
        for i in range(len(self.nodes)):
            payload = payload_for(payloads, i)
            if payload is None:
                continue
            if i not in self.connected:
                missed.append(i)
                continue
            self.sent += [(self.time, i, words) for words in commands_in(payload)]
            self._queue[i].append((payload, collector, width))
        return missed

    def _receive(self, when: str = "all") -> None:
        """Nodes run their commands, and the replies of no, half or all nodes are read."""
        busy = [i for i in range(len(self.nodes)) if self._queue[i] and i not in self.silent]
        for i in busy:
            self._run(i)
        if busy and self.answered:
            self.answered.pop(0)()
        heard = [i for i in range(len(self.nodes)) if self._answers[i]]
        for i in heard[: {"sent": 0, "half": len(heard) // 2, "all": len(heard)}[when]]:
            answers, self._answers[i] = self._answers[i], []
            for collector, reply in answers:
                if collector is None:
                    self._lines[i].on_push(i, reply)
                else:
                    collector.add(i, reply)

    def _run(self, i: int) -> None:
        """A node runs the commands that it has received."""
        queue, self._queue[i] = self._queue[i], []
        for payload, collector, width in queue:
            replies = self.nodes[i].run(payload, self._pusher(i))
            for words, reply in zip(commands_in(payload), replies, strict=True):
                argument = words[3 + int(words[2])] if words[0] == b"EVALSHA" else words[-1]
                self.log[i].append((name_of(words), argument, reply))
            assert len(replies) == width, "the collector expects another number of replies"
            if collector is not None:
                self._answers[i].append((collector, replies if width > 1 else replies[0]))

    def drain(self) -> None:
        """All requests arrive, and no reply is read."""
        for i in range(len(self.nodes)):
            self._run(i)

    def track(self, listener: PushListener) -> None:
        self.trackers.append(listener)
        super().track(listener)

    def untrack(self, listener: PushListener) -> None:
        self.trackers.remove(listener)
        super().untrack(listener)

    def times(self, name: str) -> list[float]:
        """The times at which a command was sent, to any number of nodes."""
        return sorted({at for at, _, words in self.sent if name_of(words) == name})

    def names_sent(self) -> set[str]:
        return {name_of(words) for _, _, words in self.sent}


class Rival:
    """An acquisition of another process: it sends bytes to the nodes."""

    def __init__(self, nodes: Sequence[FakeNode], request: LockRequest, number: int = 1, *, ttl: float = 10.0) -> None:
        self.nodes = nodes
        self.request = request
        owner = b"rival:%d::%032x" % (number, number)
        self.who = Identity(owner, owner)
        self.terms = request.config.timing_for(ttl).claim_terms
        self.channel = b"wake:rival-%d" % number
        self.pushes: list[tuple[int, Any]] = []
        """What was pushed to it, by node."""
        self.votes: list[Any] = [None] * len(nodes)
        """The last reply of each node."""

    @property
    def owner(self) -> bytes:
        return self.who.owner

    def listen(self) -> None:
        for i, node in enumerate(self.nodes):
            node.channels[self.channel] = lambda push, i=i: self.pushes.append((i, decode_push(push[2])))  # type: ignore[misc]

    def acquire(self, *only: int, ticket: bytes = b"", barge: bool = False) -> None:
        """Take the vote of these nodes (of all, if none is named) or, with a ticket, enter their queues.

        `barge`: take a free vote though others wait.
        """
        config = self.request.config
        channel = b""
        if ticket:
            self.listen()
            channel = self.channel
        for i in only or range(len(self.nodes)):
            payload = commands.claim(
                self.request.queue_keys, config.guard_keys, self.who, self.terms, ticket, channel,
                rules=commands.claim_rules(config.longest_ms, overtakes=barge),
            )  # fmt: skip
            self.votes[i] = decode_vote(self.nodes[i].run(payload)[0])

    def release(self, *only: int) -> None:
        config = self.request.config
        payload = commands.pass_on(self.request.queue_keys, config.guard_keys, self.who, b"0", config.retention_arg)
        for i in only or range(len(self.nodes)):
            self.nodes[i].run(payload)

    def hand_overs(self) -> list[tuple[int, Yours]]:
        """The votes that the nodes handed over to it."""
        return [(i, push) for i, push in self.pushes if type(push) is Yours]

    def renew(self) -> None:
        config = self.request.config
        payload = commands.extend(self.request.keys, self.who, b"10000", b"%d" % config.longest_ms)
        for node in self.nodes:
            node.run(payload)


class FakeWatchdog:
    """Keeps its orders. `finish_all` does the work of the watchdog's thread."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.schedule = Schedule(nullcontext(), lambda: None, now)
        self.to_finish: list[Hold] = []

    def finish(self, hold: Hold) -> None:
        self.to_finish.append(hold)

    def call_soon(self, what: Callable[..., Any], *args: Any) -> None:
        what(*args)

    def finish_all(self, nodes: Sequence[FakeNode]) -> None:
        """Release the holds that were left to it, on its own connections."""
        for hold in self.to_finish:
            self.schedule.remove(hold)
            io = FakeIO(nodes, hold.group)
            run(io.connect(hold.group.n, 1.0))
            assert not run(release.repeat(io, hold, set(range(hold.group.n))))
            hold.finish_release()
        self.to_finish.clear()

    def nudge(self, group: NodeGroup) -> None: ...

    def unregister(self, group: NodeGroup) -> Future[None]:
        done: Future[None] = Future()
        done.set_result(None)
        return done


class FakePool(BasePool):
    """The connections of a FakeClient: all operations use the same ones."""

    def __init__(self, io: FakeIO) -> None:
        self.io = io
        self.closed = False

    def access(self, key: bytes) -> Any:
        return self.io

    def use(self, key: bytes, operation: Callable[..., Any], *args: Any) -> Any:
        return run(operation(self.io, *args))

    def close(self) -> None: ...


class FakeClient(sync.Client):
    """The blocking client, on nodes in memory: everything but connections, clock and watchdog is the real one."""

    def __init__(
        self,
        nodes: Sequence[FakeNode],
        at: int = 0,
        when: str = "all",
        error: type[BaseException] = KeyboardInterrupt,
        **options: Any,
    ) -> None:
        urls = [f"redis://node-{i}" for i in range(len(nodes))]
        super().__init__(locate(urls), {"guard": False, "ttl": 1.0, **options})  # type: ignore[typeddict-item]
        _lifetime.clients.discard(self)  # no process ends it
        self.nodes = nodes
        self.io = FakeIO(nodes, self._group, at, when, error)
        self._pool = FakePool(self.io)
        self._now = self.io.now
        self.watchdog = FakeWatchdog(self.io.now)
        self._attach = lambda group, addresses, shake: self.watchdog  # type: ignore[assignment,return-value]

    @contextmanager
    def virtual_time(self) -> Iterator[None]:
        """The facade uses the driver's clock."""
        with patch.object(clock, "now", self.io.now), patch.object(_lease, "now", self.io.now):
            yield

    @property
    def queues(self) -> WaitQueues:
        return self._queues

    @property
    def group(self) -> NodeGroup:
        return self._group

    def bootstrap(self) -> dict[str, str]:
        return run(guard.bootstrap(self.io, self._group))

    def watched(self) -> set[Hold]:
        """The holds that would be renewed."""
        return {hold for hold in self.watchdog.schedule.everything() if hold.state == "held"}
