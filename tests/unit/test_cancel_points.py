"""A cancel or Ctrl-C at every point at which it can strike: what was or may have been granted is taken back.

The operations run over nodes in memory. The k-th effect is interrupted, for every k: before anything was sent, with all
sent and nothing answered, with half of the answers in, or with all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator
from typing import Any, Final

import pytest
from tests.model import ModelNode, commands_in, lock_request

from handfast import lua
from handfast.core import commands, mutex
from handfast.core.commands import Request
from handfast.core.effects import Fault, Payloads, Poll
from handfast.core.hold import HELD, RELEASED, Hold
from handfast.drivers.threads import run
from handfast.errors import NotAcquired

KEY: Final = b"handfast:{a}"
FENCE: Final = b"handfast:{a}:f"
RIVAL: Final = b"a rival"
WHEN: Final = ("before", "sent", "half", "all")
ERRORS: Final = (asyncio.CancelledError, KeyboardInterrupt)
MOST_EFFECTS: Final = 40


class Lazily:
    """An awaitable that runs when it is awaited, as a coroutine would."""

    def __init__(self, what: Any) -> None:
        self.what = what

    def __await__(self) -> Generator[Any, None, Any]:
        return self.what()
        yield


class Interrupted:
    """Effects over nodes in memory, of which the k-th is interrupted. Connections keep order; nodes run when drained."""

    settled = False

    def __init__(self, nodes: list[ModelNode], at: int, when: str, error: type[BaseException]) -> None:
        self.nodes = nodes
        self.at, self.when, self.error = at, when, error
        self.count = 0
        self.struck = False
        self.time = 0.0
        self.nonces = 0
        self.queue: list[list[bytes]] = [[] for _ in nodes]
        self.log: list[list[tuple[str, bytes, Any]]] = [[] for _ in nodes]
        """By node: what it was sent, as (command, owner, its reply)."""

    def now(self) -> float:
        self.time += 0.0001
        return self.time

    def wall(self) -> int:
        return 1000

    def random(self) -> float:
        return 0.5

    def nonce(self) -> bytes:
        self.nonces += 1
        return b"%032d" % self.nonces

    def _strikes(self) -> bool:
        self.count += 1
        if self.count == self.at:
            self.struck = True
        return self.count == self.at

    async def settle(self, need: int, within: float) -> None:
        if self._strikes():
            raise self.error
        self.settled = True

    async def sleep(self, until: float) -> None:
        if self._strikes():
            raise self.error
        self.time = max(self.time, until)

    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Awaitable[None]:
        return Lazily(lambda: self._exchange(payloads, poll))

    def ask(self, payload: Payloads, patience: float) -> Awaitable[Any]:
        def question() -> Any:
            strikes = self._strikes()
            if strikes and self.when == "before":
                raise self.error
            self._send(payload)
            if strikes:
                raise self.error
            return self._drain(0)[-1]

        return Lazily(question)

    def _exchange(self, payloads: Payloads, poll: Poll) -> None:
        strikes = self._strikes()
        if strikes and self.when == "before":
            raise self.error
        asked = self._send(payloads)
        answering = {"before": 0, "sent": 0, "half": len(asked) // 2, "all": len(asked)}[self.when]
        for node in asked[:answering] if strikes else asked:
            replies = self._drain(node)[-poll.width :]
            poll.add(node, replies[0] if poll.width == 1 else replies)
        if strikes:
            raise self.error

    def post(self, payloads: Payloads) -> bool:
        self._send(payloads)
        return True

    def _send(self, payloads: Payloads) -> list[int]:
        asked = []
        for node, queue in enumerate(self.queue):
            payload = payloads if isinstance(payloads, bytes) else payloads[node]
            if payload is not None:
                queue.append(payload)
                asked.append(node)
        return asked

    def _drain(self, node: int) -> list[Any]:
        """The node works through what it was sent."""
        replies: list[Any] = []
        for payload in self.queue[node]:
            answers = self.nodes[node].run(payload)
            for words, answer in zip(commands_in(payload), answers, strict=True):
                self.log[node].append((*_what(words), answer))
            replies += answers
        self.queue[node].clear()
        return replies

    def drain(self) -> None:
        for node in range(len(self.nodes)):
            self._drain(node)


def _what(words: list[bytes]) -> tuple[str, bytes]:
    """Name and owner of a command."""
    if words[0] == b"EVALSHA":
        name = next(each for each, sha in lua.SHA.items() if sha == words[1])
        return name, words[3 + int(words[2])]
    return ("acquire" if words[0] == b"SET" else words[0].decode().lower()), words[2] if len(words) > 2 else b""


class Keeper:
    """Keeps what it is given; may be struck itself."""

    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.error = error
        self.left: list[Hold] = []

    def _granted(self, hold: Hold) -> Hold:
        if self.error is not None:
            raise self.error
        return hold

    def _ending(self, hold: Hold) -> None: ...

    def _unfinished(self, hold: Hold) -> None:
        self.left.append(hold)


def nodes_of(count: int, scene: str) -> list[ModelNode]:
    """free; split: counters differ, so that a token must be agreed on; minority, majority: held by a rival there."""
    nodes = [ModelNode() for _ in range(count)]
    held = {"minority": count // 2, "majority": count // 2 + 1}.get(scene, 0)
    for i, node in enumerate(nodes):
        if scene == "split":
            node.data[FENCE] = b"%d" % (2000 + 10 * i)
        if i < held:
            node.data[KEY] = RIVAL
    return nodes


def owners_left(nodes: list[ModelNode]) -> list[bytes]:
    return [node.data[KEY] for node in nodes if KEY in node.data]


def check_log(io: Interrupted) -> None:
    """Whatever was granted, or was not heard of, is released behind its acquire; a refusal is not touched again."""
    for node, log in enumerate(io.log):
        for owner in {owner for name, owner, _ in log if name == "acquire"}:
            said = [(name, answer) for name, each, answer in log if each == owner]
            names = [name for name, _ in said]
            assert names[0] == "acquire", (node, said)
            granted = said[0][1] is not None and not (isinstance(said[0][1], list) and len(said[0][1]) == 2)
            if granted:
                assert names[-1] == "release", (node, said)
            assert names.count("release") <= 1, (node, said)
            assert set(names) <= {"acquire", "raise", "release"}, (node, said)


def interrupted_acquire(request: Request, scene: str, at: int, when: str, error: type[BaseException]) -> Interrupted:
    nodes = nodes_of(request.group.n, scene)
    before = owners_left(nodes)
    io = Interrupted(nodes, at, when, error)
    try:
        run(mutex.acquire(io, request, request.settings.terms, 0.05, Keeper()))
    except NotAcquired:
        pass
    except error:
        io.drain()
        assert owners_left(nodes) == before
        check_log(io)
        return io
    io.drain()
    return io


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("scene", ["free", "split", "minority", "majority"])
def test_an_acquire_interrupted_anywhere_leaves_no_key(
    count: int, fence: bool, when: str, error: type[BaseException], scene: str
) -> None:
    points = 0
    for at in range(1, MOST_EFFECTS):
        io = interrupted_acquire(lock_request(count, fence=fence), scene, at, when, error)
        if not io.struck:
            break
        points += 1
    else:
        raise AssertionError("more effects than this test has patience for")
    assert points >= 2


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.parametrize("count", [1, 5])
def test_an_interrupt_while_the_lease_is_handed_over_leaves_no_key(
    count: int, fence: bool, error: type[BaseException]
) -> None:
    request = lock_request(count, fence=fence)
    nodes = nodes_of(count, "free")
    io = Interrupted(nodes, 0, "all", error)
    with pytest.raises(error):
        run(mutex.acquire(io, request, request.settings.terms, 0, Keeper(error)))
    io.drain()
    assert owners_left(nodes) == []
    check_log(io)


@pytest.mark.parametrize("count", [1, 5])
def test_an_interrupted_attempt_of_an_explicit_owner_keeps_what_others_hold_under_that_name(count: int) -> None:
    for when in WHEN:
        request = lock_request(count, owner=b"job-42")
        nodes = nodes_of(count, "free")
        for node in nodes:
            node.data[KEY], node.data[FENCE] = b"job-42", b"7"
        io = Interrupted(nodes, 2, when, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(mutex.acquire(io, request, request.settings.terms, 0, Keeper()))
        io.drain()
        assert owners_left(nodes) == [b"job-42"] * count


def held(count: int, fence: bool, scene: str = "free") -> tuple[list[ModelNode], Hold]:
    request = lock_request(count, fence=fence)
    nodes = nodes_of(count, scene)
    hold = run(
        mutex.acquire(Interrupted(nodes, 0, "all", KeyboardInterrupt), request, request.settings.terms, 0, Keeper())
    )
    return nodes, hold


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.parametrize("count", [1, 5])
def test_a_release_interrupted_anywhere_is_final_and_left_to_be_finished(
    count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    for at in range(1, MOST_EFFECTS):
        nodes, hold = held(count, fence)
        io, keeper = Interrupted(nodes, at, when, error), Keeper()
        try:
            assert run(mutex.release(io, hold, keeper))
        except error:
            assert keeper.left == [hold]
        # Who finishes it makes the last move; nobody can hold or lose it any more.
        assert hold.state == RELEASED
        assert not run(mutex.release(io, hold, keeper)), "the second release sends nothing"
        io.drain()
        assert {name for log in io.log for name, _, _ in log} <= {"release"}
        for left in keeper.left:
            # As the watchdog does it, over connections of its own.
            again = Interrupted(nodes, 0, "all", error)
            again.post(commands.release(left, left.owner, left.token))
            again.drain()
        assert owners_left(nodes) == []
        if not io.struck:
            return
    raise AssertionError("more effects than this test has patience for")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.parametrize("count", [1, 5])
def test_an_extend_interrupted_anywhere_leaves_the_lease_as_it_was(
    count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    for at in range(1, MOST_EFFECTS):
        nodes, hold = held(count, fence)
        deadline, owners = hold.deadline, owners_left(nodes)
        io = Interrupted(nodes, at, when, error)
        try:
            run(mutex.extend(io, hold, 1.0))
        except error:
            assert hold.deadline == deadline
        assert hold.state == HELD
        io.drain()
        assert owners_left(nodes) == owners == [hold.owner] * count
        assert {name for log in io.log for name, _, _ in log} <= {"extend"}
        assert run(mutex.release(Interrupted(nodes, 0, "all", error), hold, Keeper()))
        if not io.struck:
            return
    raise AssertionError("more effects than this test has patience for")


@pytest.mark.parametrize("when", ["before", "sent"])
def test_a_shorter_extend_that_is_interrupted_shortens_the_promise_or_was_never_sent(when: str) -> None:
    """Once sent it may be carried out, and the key then ends with it."""
    nodes, hold = held(1, True)
    io = Interrupted(nodes, 2, when, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(mutex.extend(io, hold, 0.1))
    io.drain()
    if io.log[0]:
        assert hold.deadline <= io.time + 0.1


def test_the_effects_of_this_test_answer_faults_too() -> None:
    """A node that is down is asked for nothing and refuses nothing: the undo reaches the others."""
    request = lock_request(3)
    nodes = nodes_of(3, "free")

    class OneDown(Interrupted):
        def _exchange(self, payloads: Payloads, poll: Poll) -> None:
            poll.add(0, Fault("closed", "not connected"))
            each: list[bytes | None] = [payloads] * 3 if isinstance(payloads, bytes) else list(payloads)
            super()._exchange([None, *each[1:]], poll)

    io = OneDown(nodes, 2, "sent", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(mutex.acquire(io, request, request.settings.terms, 0, Keeper()))
    io.drain()
    assert owners_left(nodes) == []
