"""Order and uniqueness of tokens, whatever clocks, pauses and delays do.

Clients run the real acquisition over nodes in memory, which run the production Lua. A schedule decides which request
arrives next, which reply or push is read, whose wait times out, and which key ends though its holder believes in it.
Replies may never come, and requests may arrive long after their callers gave up. Mutants show that the tests can fail.
"""

from __future__ import annotations

import os
import random
from collections import deque
from collections.abc import Callable, Generator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from handfast.core import tokens
from handfast.core.acquire import acquire
from handfast.core.config import LockKeys
from handfast.core.io import Collector, Payloads, payload_for
from handfast.core.local_queue import Acquisition
from handfast.core.release import release
from handfast.errors import NotAcquired
from handfast.net.push_router import PushRouter
from handfast.net.threads import run
from handfast.protocol.commands import Identity
from handfast.protocol.scripts import TEXT
from tests.support.fake_io import FakeWakeup, fake_queues, lock_request
from tests.support.fake_node import EPOCH_US, FakeNode

ROUNDS = 4
"""Acquisitions that each client tries."""
KEY = b"handfast:{a}"


class Taken(NamedTuple):
    """An acquisition: when its client began, when it had the lock, and the token."""

    began: int
    ended: int
    token: int


class Pause:
    """What a client awaits: a collector, a wakeup, or a time."""

    def __init__(self, is_over: Callable[[], bool], until: float | None) -> None:
        self.is_over = is_over
        self.until = until

    def __await__(self) -> Generator[Pause, None, None]:
        yield self


class Client(PushRouter):
    """One client: its coroutine, its clock, and its connections, on which order is kept. IO and Access."""

    ready = True
    wakeup = FakeWakeup
    _serial = 0

    def __init__(self, world: World, number: int) -> None:
        super().__init__(len(world.nodes))
        self.world = world
        self.request = lock_request(len(world.nodes), ttl=10.0)
        self.request.config.owner_start = b"c:%d::" % number
        self.queues = fake_queues()
        self.time = 0.0
        self.sent: list[deque[tuple[bytes, Collector | None]]] = [deque() for _ in world.nodes]
        self.received: list[deque[Callable[[], Any]]] = [deque() for _ in world.nodes]
        """By node: replies and pushes that were not read."""
        for i, node in enumerate(world.nodes):
            self.channels[i] = b"wake:%d-%d" % (number, i)
            node.channels[self.channels[i]] = self._receiver(i)
        self.pause: Pause | None = None
        self.life = self._live()
        self.alive = True
        self.resume()

    def _receiver(self, i: int) -> Callable[[Any], None]:
        line: Any = SimpleNamespace(on_push=None)
        self.listen_to(line)
        return lambda push: self.received[i].append(lambda: line.on_push(i, push))

    async def _live(self) -> None:
        for _ in range(ROUNDS):
            began = self.world.tick()
            acquisition = Acquisition(self.request, self.request.config.timing, self.world.wait, self.now())
            try:
                hold = await acquire(self, self.queues, acquisition)
            except NotAcquired:
                continue
            self.world.taken.append(Taken(began, self.world.tick(), hold.token))
            if self.world.choose(3):
                await release(self, hold)

    def resume(self) -> None:
        """Go on. A pause that is not over times out: the client's clock goes forward."""
        if self.pause is not None and not self.pause.is_over() and self.pause.until is not None:
            self.time = max(self.time, self.pause.until)
        self.pause = None
        try:
            self.pause = self.life.send(None)
        except StopIteration:
            self.alive = False

    # -- IO and Access

    def now(self) -> float:
        return self.time

    def wall(self) -> int:
        return EPOCH_US + self.world.choose(12)

    def random(self) -> float:
        return 0.5

    def nonce(self) -> bytes:
        Client._serial += 1
        return b"%032x" % Client._serial

    def caller(self) -> str:
        return "me"

    def borrow(self) -> Client:
        return self

    def give_back(self, io: Client) -> None: ...

    async def connect(self, need: int, within: float) -> None: ...

    def reconnect(self) -> None: ...

    async def subscribe(self, timeout: float) -> None: ...

    async def sleep(self, until: float) -> None:
        await Pause(lambda: False, until)

    async def wait(self, wakeup: FakeWakeup, until: float | None) -> None:
        if not wakeup.is_set:
            await Pause(lambda: wakeup.is_set, until)
        wakeup.is_set = False

    async def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> None:
        self.send(payloads, collector)
        # The clock stands still in a broadcast: what is granted is valid, however late it is.
        await Pause(lambda: collector.decided, None)
        collector.over = True

    def send(self, payloads: Payloads, collector: Collector | None) -> None:
        for i, queue in enumerate(self.sent):
            payload = payload_for(payloads, i)
            if payload is not None:
                queue.append((payload, collector))

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        self.send(payloads, None)
        return True


class World:
    """Nodes, clients, and a schedule that decides all that chance decides."""

    def __init__(
        self, nodes: int, clients: int, schedule: bytes, patches: Mapping[str, bytes] | None = None, wait: float = 0
    ) -> None:
        self.nodes = [FakeNode() for _ in range(nodes)]
        for node in self.nodes:
            node.patches.update(patches or {})
        self.wait = wait
        self.schedule = iter(schedule)
        self.over = False
        self.time = 0
        self.taken: list[Taken] = []
        self.clients: list[Client] = []
        for number in range(clients):
            self.clients.append(Client(self, number))

    def tick(self) -> int:
        self.time += 1
        return self.time

    def choose(self, among: int) -> int:
        choice = next(self.schedule, None)
        if choice is None:
            self.over = True
            return 0
        return choice % among

    def run(self) -> list[Taken]:
        while not self.over and any(client.alive for client in self.clients):
            steps = self._steps()
            steps[self.choose(len(steps))]()
        for client in self.clients:
            client.life.close()
        return self.taken

    def _steps(self) -> list[Callable[[], Any]]:
        steps: list[Callable[[], Any]] = []
        for client in self.clients:
            for i in range(len(self.nodes)):
                if client.sent[i]:
                    steps += [self._arrival(client, i)] * 6
                if client.received[i]:
                    steps += [self._reading(client, i)] * 6
            if client.pause is not None:
                steps.append(client.resume)
        steps += [self._expiry(node) for node in self.nodes if KEY in node.data]
        return steps or [lambda: None]

    def _arrival(self, client: Client, i: int) -> Callable[[], None]:
        def step() -> None:
            payload, collector = client.sent[i].popleft()
            replies = self.nodes[i].run(payload)
            reply = replies[0] if len(replies) == 1 else replies
            if collector is not None:
                client.received[i].append(lambda: collector.add(i, reply))

        return step

    def _reading(self, client: Client, i: int) -> Callable[[], None]:
        def step() -> None:
            client.received[i].popleft()()
            if client.pause is not None and client.pause.is_over():
                client.resume()

        return step

    def _expiry(self, node: FakeNode) -> Callable[[], None]:
        return lambda: node.forget(KEY)


def out_of_order(taken: list[Taken]) -> list[tuple[Taken, Taken]]:
    return [(a, b) for a in taken for b in taken if a.ended < b.began and b.token <= a.token]


def duplicates(taken: list[Taken]) -> list[int]:
    values = [each.token for each in taken]
    return [token for token in set(values) if values.count(token) > 1]


def walk(seed: int, nodes: int, clients: int, patches: Mapping[str, bytes] | None = None, wait: float = 0) -> list[Taken]:
    return World(nodes, clients, random.Random(seed).randbytes(260), patches, wait).run()


LOST_AND_GIVEN_AGAIN = bytes.fromhex(
    "01003878008d000006061f27343a8bac4d39131313131919060dca00a200396c73d1919800000012"
    "13131c35946800000006004bed970001061387c1"
)
"""A waiter loses its vote on a node, another client gets a token there, and the waiter gets the vote again. The first
answer, which it reads late, lets it agree on the token of the other."""
WALKS = 1000 if os.environ.get("HANDFAST_LONG") else 50
QUEUED = pytest.mark.parametrize("wait", [0, 60.0], ids=["attempts", "queued"])


@QUEUED
@pytest.mark.parametrize("nodes", [3, 5])
@given(schedule=st.binary(min_size=60, max_size=400), clients=st.integers(2, 3))
@example(schedule=LOST_AND_GIVEN_AGAIN, clients=2)
@settings(max_examples=100, deadline=None)
def test_tokens_are_ordered_and_unique_under_any_interleaving(
    wait: float, nodes: int, schedule: bytes, clients: int
) -> None:
    taken = World(nodes, clients, schedule, wait=wait).run()
    assert out_of_order(taken) == []
    assert duplicates(taken) == []


@QUEUED
@pytest.mark.parametrize(("nodes", "clients"), [(3, 3), (5, 3)])
def test_tokens_are_ordered_and_unique_on_random_walks(nodes: int, clients: int, wait: float) -> None:
    granted = 0
    for seed in range(WALKS):
        taken = walk(seed, nodes, clients, wait=wait)
        granted += len(taken)
        assert out_of_order(taken) == [], seed
        assert duplicates(taken) == [], seed
    assert granted > 0.75 * WALKS, "walks on which nobody gets the lock show nothing"


# -- mutants -----------------------------------------------------------------------------------------------------------


async def largest_of_a_majority(
    io: Any, target: LockKeys, who: Identity, counters: Mapping[int, int], timeout: float
) -> tuple[int, set[int]]:
    """Mutant: M nodes have at least this much, and nothing is raised."""
    return sorted(counters.values(), reverse=True)[target.group.need - 1], set(counters)


async def nothing_raised(
    io: Any, target: LockKeys, who: Identity, counters: Mapping[int, int], timeout: float
) -> tuple[int, set[int]]:
    """Mutant: the largest of the M smallest, and the others are not raised to it."""
    return sorted(counters.values())[target.group.need - 1], set(counters)


def caught(fault: Callable[[list[Taken]], list[Any]], patches: Mapping[str, bytes] | None = None) -> bool:
    """Some walk shows this fault."""
    return any(fault(walk(seed, 3, 3, patches)) for seed in range(4000))


def patched(name: str, text: bytes, by: bytes) -> dict[str, bytes]:
    assert text in TEXT[name]
    return {name: TEXT[name].replace(text, by)}


@pytest.mark.parametrize(
    ("mutant", "fault"),
    [(largest_of_a_majority, duplicates), (nothing_raised, duplicates), (nothing_raised, out_of_order)],
)
def test_wrong_agreement_on_a_token_is_caught(mutant: Any, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "agree", mutant)
    assert caught(fault)


def test_raise_that_does_not_check_the_owner_is_caught() -> None:
    assert caught(duplicates, patched("raise_token", b"~= ARGV[1] then return 0 end", b"~= ARGV[1] then end"))


def test_counter_that_is_not_kept_is_caught() -> None:
    forgetful = patched("claim", b"count = call('GET', KEYS[4])\n  if KEYS[6]", b"count = nil\n  if KEYS[6]")
    assert caught(out_of_order, forgetful)


def test_node_that_could_not_be_raised_does_not_have_the_token() -> None:
    """It says no, or nothing: in both cases too few nodes have the token."""

    async def refused(payloads: Payloads, collector: Collector, timeout: float) -> None:
        collector.add(0, 0)

    async def silent(payloads: Payloads, collector: Collector, timeout: float) -> None:
        assert payload_for(payloads, 0) is not None

    who = Identity(b"host:1::a", b"host:1::a")
    for broadcast in (refused, silent):
        io: Any = SimpleNamespace(broadcast=broadcast)
        assert run(tokens.agree(io, lock_request(3), who, {0: 5, 1: 7}, 1.0)) == (None, {1})
