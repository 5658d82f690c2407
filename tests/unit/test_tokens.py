"""Order and uniqueness of tokens, whatever clocks, pauses and delays do.

Clients run the real acquire over nodes in memory. A schedule decides who is heard next: which request arrives, which
reply, who runs out of patience, which key ends though its holder believes in it. Replies may never come, requests may
arrive long after everybody has given up. Mutants show that the same test can fail.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handfast.core import fencing, mutex
from handfast.core.commands import Request
from handfast.core.effects import Payloads, Poll
from handfast.core.hold import Hold
from handfast.core.quorum import Ballot, said_yes
from handfast.errors import NotAcquired
from tests.support.fake_node import ModelNode, lock_request

ROUNDS = 4
"""Acquisitions that each client tries."""


class Taken(NamedTuple):
    """An acquisition: when its client began, when it had it, and the token."""

    began: int
    ended: int
    token: int


class Wait:
    """What a client awaits: the scheduler resumes it."""

    def __init__(self, poll: Poll) -> None:
        self.poll = poll

    def __await__(self) -> Generator[Wait, None, None]:
        yield self


class Client:
    """One client: its coroutine, and its connections, on which order is kept."""

    settled = True

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.request: Request = lock_request(len(world.nodes))
        self.request.settings.owner_start = b"client-%d:" % number
        self.sent: list[deque[tuple[bytes, Poll | None]]] = [deque() for _ in world.nodes]
        self.replies: list[deque[tuple[Any, Poll | None]]] = [deque() for _ in world.nodes]
        self.waits: Wait | None = None
        self.attempts = 0
        self.life = self._life()
        self.alive = True
        self.resume()

    async def _life(self) -> None:
        for _ in range(ROUNDS):
            began = self.world.tick()
            try:
                hold = await mutex.acquire(self, self.request, self.request.settings.terms, 0, self)
            except NotAcquired:
                continue
            self.world.taken.append(Taken(began, self.world.tick(), hold.token))
            if self.world.choose(3):
                await mutex.release(self, hold, self)

    def resume(self) -> None:
        self.waits = None
        try:
            self.waits = self.life.send(None)
        except StopIteration:
            self.alive = False

    # -- effects and keeper

    def now(self) -> float:
        return 0.0

    def wall(self) -> int:
        return self.world.choose(12)

    def random(self) -> float:
        return 0.5

    def nonce(self) -> bytes:
        self.attempts += 1
        return b"%d" % self.attempts

    async def settle(self, need: int, within: float) -> None: ...

    async def sleep(self, until: float) -> None: ...

    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Awaitable[None]:
        self._send(payloads, poll)
        return Wait(poll)

    def post(self, payloads: Payloads) -> bool:
        self._send(payloads, None)
        return True

    def _send(self, payloads: Payloads, poll: Poll | None) -> None:
        for node, queue in enumerate(self.sent):
            payload = payloads if isinstance(payloads, bytes) else payloads[node]
            if payload is not None:
                queue.append((payload, poll))

    def ask(self, payload: Payloads, patience: float) -> Awaitable[Any]:
        raise AssertionError("one node asks nobody else")

    def _granted(self, hold: Hold) -> Hold:
        return hold

    def _ending(self, hold: Hold) -> None: ...

    def _unfinished(self, hold: Hold) -> None: ...


class World:
    """Nodes, clients, and a schedule that decides all that chance decides."""

    def __init__(self, nodes: int, clients: int, schedule: bytes) -> None:
        self.nodes = [ModelNode() for _ in range(nodes)]
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

    def _steps(self) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        for client in self.clients:
            for node in range(len(self.nodes)):
                if client.sent[node]:
                    steps += [self._arrives(client, node)] * 6
                if client.replies[node]:
                    steps += [self._answers(client, node)] * 6
            if client.waits is not None:
                steps.append(client.resume)
        steps += [self._expires(node) for node in self.nodes if b"handfast:{a}" in node.data]
        return steps or [lambda: None]

    def _arrives(self, client: Client, node: int) -> Callable[[], None]:
        def step() -> None:
            payload, poll = client.sent[node].popleft()
            replies = self.nodes[node].run(payload)
            client.replies[node].append((replies[0] if len(replies) == 1 else replies, poll))

        return step

    def _answers(self, client: Client, node: int) -> Callable[[], None]:
        def step() -> None:
            reply, poll = client.replies[node].popleft()
            if poll is not None and poll.add(node, reply) and client.waits is not None and client.waits.poll is poll:
                client.resume()

        return step

    def _expires(self, node: ModelNode) -> Callable[[], None]:
        return lambda: node.data.pop(b"handfast:{a}", None) and None


def out_of_order(taken: list[Taken]) -> list[tuple[Taken, Taken]]:
    return [(a, b) for a in taken for b in taken if a.ended < b.began and b.token <= a.token]


def duplicates(taken: list[Taken]) -> list[int]:
    tokens = [each.token for each in taken]
    return [token for token in set(tokens) if tokens.count(token) > 1]


def walk(seed: int, nodes: int, clients: int) -> list[Taken]:
    return World(nodes, clients, random.Random(seed).randbytes(260)).run()


@pytest.mark.parametrize("nodes", [3, 5])
@given(schedule=st.binary(min_size=60, max_size=400), clients=st.integers(2, 3))
@settings(max_examples=150, deadline=None)
def test_tokens_are_ordered_and_unique_under_any_interleaving(nodes: int, schedule: bytes, clients: int) -> None:
    taken = World(nodes, clients, schedule).run()
    assert out_of_order(taken) == []
    assert duplicates(taken) == []


@pytest.mark.parametrize(("nodes", "clients"), [(3, 2), (3, 3), (5, 3)])
def test_tokens_are_ordered_and_unique_on_random_walks(nodes: int, clients: int) -> None:
    granted = 0
    for seed in range(300):
        taken = walk(seed, nodes, clients)
        granted += len(taken)
        assert out_of_order(taken) == [], seed
        assert duplicates(taken) == [], seed
    assert granted > 300, "walks on which nobody gets the lock show nothing"


async def rth_largest(io: Any, request: Request, owner: bytes, ballot: Ballot, patience: float) -> int:
    """Mutant: M nodes have at least this much, and nothing is raised."""
    values = sorted((fencing.value(a) for a in ballot.answers if said_yes(a)), reverse=True)
    return values[request.group.need - 1]


async def no_raise(io: Any, request: Request, owner: bytes, ballot: Ballot, patience: float) -> int:
    """Mutant: the largest of the M smallest, without raising the others to it."""
    return sorted(fencing.value(a) for a in ballot.answers if said_yes(a))[request.group.need - 1]


def caught(mutant: Any, monkeypatch: pytest.MonkeyPatch, fault: Callable[[list[Taken]], list[Any]]) -> bool:
    """Some walk shows this fault."""
    monkeypatch.setattr(fencing, "agree", mutant)
    return any(fault(walk(seed, 3, 3)) for seed in range(4000))


@pytest.mark.parametrize(
    ("mutant", "fault"), [(rth_largest, duplicates), (no_raise, duplicates), (no_raise, out_of_order)]
)
def test_mutants_are_caught(mutant: Any, fault: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert caught(mutant, monkeypatch, fault)


def test_a_raise_that_does_not_check_the_owner_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_anyway(self: ModelNode, keys: list[bytes], args: list[bytes]) -> int:
        self._lift(keys[int(args[1]) :], args[2])
        return 1

    monkeypatch.setattr(ModelNode, "_raise", raise_anyway)
    assert caught(fencing.agree, monkeypatch, duplicates)


def test_a_counter_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = ModelNode._acquire

    def forgetful(self: ModelNode, keys: list[bytes], args: list[bytes]) -> Any:
        for key in keys[1:]:
            self.data.pop(key, None)
        return acquire(self, keys, args)

    monkeypatch.setattr(ModelNode, "_acquire", forgetful)
    assert caught(fencing.agree, monkeypatch, out_of_order)
