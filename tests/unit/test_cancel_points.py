"""A cancel or Ctrl-C at every point at which it can strike: what was or may have been granted is taken back.

The operations run over nodes in memory. The k-th effect is interrupted, for every k: before anything was sent, with all
sent and nothing answered, with half of the answers in, or with all of them; one that waits, before what it waits for, or
at the very moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from handfast.core import commands, mutex
from handfast.core.commands import Request
from handfast.core.hold import HELD, RELEASED, Hold
from handfast.core.line import Place
from handfast.errors import NotAcquired
from handfast.net.threads import run
from tests.support.fake_node import ModelBell, ModelDriver, ModelKeeper, ModelNode, lock_request

KEY: Final = b"handfast:{a}"
FENCE: Final = b"handfast:{a}:f"
QUEUE: Final = b"handfast:{a}:q"
RIVAL: Final = b"a rival"
STRANGER: Final = b"one of another process"
WHEN: Final = ("before", "sent", "half", "all")
ERRORS: Final = (asyncio.CancelledError, KeyboardInterrupt)
MOST_EFFECTS: Final = 40


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


def check_log(io: ModelDriver) -> None:
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


def interrupted_acquire(request: Request, scene: str, at: int, when: str, error: type[BaseException]) -> ModelDriver:
    nodes = nodes_of(request.group.n, scene)
    before = owners_left(nodes)
    io = ModelDriver(nodes, at, when, error)
    keeper = ModelKeeper(io)
    try:
        run(mutex.acquire(io, request, request.settings.terms, 0.05, keeper))
    except NotAcquired:
        pass
    except error:
        io.drain()
        assert owners_left(nodes) == before
        check_log(io)
    io.drain()
    assert keeper.lines.by_keys == {}
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
    io = ModelDriver(nodes)
    with pytest.raises(error):
        run(mutex.acquire(io, request, request.settings.terms, 0, ModelKeeper(error=error)))
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
        io = ModelDriver(nodes, 2, when, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            run(mutex.acquire(io, request, request.settings.terms, 0, ModelKeeper()))
        io.drain()
        assert owners_left(nodes) == [b"job-42"] * count


def held(count: int, fence: bool, scene: str = "free") -> tuple[list[ModelNode], Hold]:
    request = lock_request(count, fence=fence)
    nodes = nodes_of(count, scene)
    hold = run(mutex.acquire(ModelDriver(nodes), request, request.settings.terms, 0, ModelKeeper()))
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
        io, keeper = ModelDriver(nodes, at, when, error), ModelKeeper()
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
            again = ModelDriver(nodes)
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
        io = ModelDriver(nodes, at, when, error)
        io.time = 0.01
        try:
            run(mutex.extend(io, hold, 1.0))
        except error:
            assert hold.deadline == deadline
        assert hold.state == HELD
        io.drain()
        assert owners_left(nodes) == owners == [hold.owner] * count
        assert {name for log in io.log for name, _, _ in log} <= {"extend"}
        assert run(mutex.release(ModelDriver(nodes), hold, ModelKeeper()))
        if not io.struck:
            return
    raise AssertionError("more effects than this test has patience for")


@pytest.mark.parametrize("when", ["before", "sent"])
def test_a_shorter_extend_that_is_interrupted_shortens_the_promise_or_was_never_sent(when: str) -> None:
    """Once sent it may be carried out, and the key then ends with it."""
    nodes, hold = held(1, True)
    io = ModelDriver(nodes, 2, when, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        run(mutex.extend(io, hold, 0.1))
    io.drain()
    if io.log[0]:
        assert hold.deadline <= io.time + 0.1


def test_the_effects_of_this_test_answer_faults_too() -> None:
    """A node that is down is asked for nothing and refuses nothing: the undo reaches the others."""
    request = lock_request(3)
    nodes = nodes_of(3, "free")
    io, keeper = ModelDriver(nodes, 2, "sent", KeyboardInterrupt), ModelKeeper()
    io.down = {0}
    with pytest.raises(KeyboardInterrupt):
        run(mutex.acquire(io, request, request.settings.terms, 0, keeper))
    io.drain()
    assert owners_left(nodes) == []
    assert len(keeper.left) == 1, "and is released there later, if it comes back with what it was sent"


# -- while waiting -----------------------------------------------------------------------------------------------------


class Waiting:
    """An acquisition that has to wait, interrupted at its k-th effect; others of its process wait behind it."""

    def __init__(
        self,
        request: Request,
        nodes: list[ModelNode],
        at: int,
        when: str = "all",
        error: type[BaseException] = KeyboardInterrupt,
    ) -> None:
        self.request = request
        self.terms = request.settings.terms
        self.nodes = nodes
        self.io = ModelDriver(nodes, at, when, error)
        self.keeper = ModelKeeper(self.io)
        self.lines = self.keeper.lines
        self.error = error
        self.behind: Place | None = None
        self.io.visitors.append(self.follow)

    def follow(self) -> None:
        self.behind = self.lines.join(self.request, self.terms, ModelBell(), self.io.time, None, "behind")

    def run(self, wait: float | None = 5.0) -> Hold | None:
        """What it got; None if it was interrupted."""
        io, terms = self.io, self.terms
        work: Awaitable[Any] = (
            self.keeper._line_up(self.request, terms, wait, io.now())
            if self.request.settings.fair
            else mutex.acquire(io, self.request, terms, wait, self.keeper)
        )
        try:
            return run(work)  # type: ignore[arg-type]
        except self.error:
            return None

    def ours(self) -> list[bytes]:
        """What the servers know of this process: locks it holds, claims in queues."""
        start = self.request.settings.owner_start
        keys = [node.data[KEY] for node in self.nodes if node.data.get(KEY, b"").startswith(start)]
        return keys + [claim for node in self.nodes for claim in node.queues.get(QUEUE, []) if start in claim]

    def finish(self) -> None:
        """What the watchdog does with all that was left to it."""
        for hold in self.keeper.left:
            hold.leave()
            again = ModelDriver(self.nodes)
            again.post(commands.release(hold, hold.owner, hold.floor, hold.claim))
            again.drain()
            hold.end()
        self.keeper.left.clear()

    def check_nothing_is_left(self) -> None:
        self.io.drain()
        self.finish()
        assert self.ours() == []
        assert [hold.state for hold in self.keeper.watched if hold.state == HELD] == [], "nobody has it"
        assert not self.io.mail, "nobody reads it"
        assert not self.io._watches, "nobody wants to know"
        self.check_the_line_goes_on()

    def check_the_line_goes_on(self) -> None:
        if self.behind is not None:
            assert self.behind.line.head is self.behind
            assert self.behind.bell.is_set  # type: ignore[attr-defined]
            given = self.lines.leave(self.behind)
            assert given is None
        assert self.lines.by_keys == {}


def every_point(play: Callable[[int], bool], least: int) -> None:
    """Interrupt the first effect, the second, and so on until there is none left to interrupt."""
    for at in range(1, MOST_EFFECTS):
        if not play(at):
            assert at > least, "fewer effects than this scene has"
            return
    raise AssertionError("more effects than this test has patience for")


def release_rival(nodes: list[ModelNode]) -> None:
    for node in nodes:
        if node.data.get(KEY) == RIVAL:
            node.drop(KEY)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_wait_interrupted_anywhere_leaves_no_key_and_wakes_the_next(
    count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    """A rival holds a majority, and releases it half way."""

    def play(at: int) -> bool:
        nodes = nodes_of(count, "majority")
        waiting = Waiting(lock_request(count, fence=fence), nodes, at, when, error)
        waiting.io.later(0.3, lambda: release_rival(nodes))
        hold = waiting.run()
        if hold is None:
            waiting.check_nothing_is_left()
            check_log(waiting.io)
            return True
        waiting.io.drain()
        assert [owner for owner in owners_left(nodes) if owner != hold.owner] == []
        waiting.check_the_line_goes_on()
        return False

    every_point(play, least=6)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("fair", [True, False], ids=["fair", "plain"])
def test_one_that_is_interrupted_in_the_middle_of_the_line_disturbs_nobody(
    fair: bool, when: str, error: type[BaseException]
) -> None:
    def play(at: int) -> bool:
        nodes = nodes_of(1, "majority")
        waiting = Waiting(lock_request(1, fair=fair), nodes, at, when, error)
        lines, io = waiting.lines, waiting.io
        before = lines.join(waiting.request, waiting.terms, ModelBell(), 0.0, None, "before")
        io.later(0.2, lambda: lines.leave(before))
        io.later(0.3, lambda: nodes[0].run(commands.release(waiting.request, RIVAL, 0)))
        hold = waiting.run()
        if hold is not None:
            assert nodes[0].data[KEY] == hold.owner
            waiting.check_the_line_goes_on()
            return False
        if before in before.line.places:
            assert before.line.head is before
            assert before.bell.rings == 0  # type: ignore[attr-defined]
            lines.leave(before)
        waiting.check_nothing_is_left()
        return True

    every_point(play, least=5)


# -- while waiting in a fair lock's queue ------------------------------------------------------------------------------


class Queueing(Waiting):
    """The same in the queue of a fair lock: a rival holds it, and one of another process comes to stand behind us."""

    def __init__(self, at: int, when: str, error: type[BaseException], **options: Any) -> None:
        super().__init__(lock_request(1, fair=True, **options), nodes_of(1, "majority"), at, when, error)
        self.node = self.nodes[0]
        self.inbox: list[Any] = []
        self.node.channels[b"stranger"] = self.inbox.append
        self.io.later(0.2, self.stranger_comes)
        self.io.later(0.3, self.rival_goes)

    def stranger_comes(self) -> None:
        self.node.run(commands.claim(self.request, STRANGER, self.terms, b"stranger", b""))

    def rival_goes(self) -> None:
        self.node.run(commands.pass_on(self.request, RIVAL, b""))


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
@pytest.mark.parametrize("after", ["undone", "handed over"])
def test_a_wait_in_the_queue_interrupted_anywhere_leaves_no_claim_and_the_lock_goes_to_the_next(
    after: str, fence: bool, when: str, error: type[BaseException]
) -> None:
    """The lock is handed over to us by a push just before the interrupt (at the last effects), between the interrupt and
    the arrival of what undoes it, or would have been after that."""

    def play(at: int) -> bool:
        queueing = Queueing(at, when, error, fence=fence)
        io, node = queueing.io, queueing.node
        hold = queueing.run()
        if hold is not None:
            assert node.data[KEY] == hold.owner
            assert run(mutex.release(ModelDriver([node]), hold, queueing.keeper))
        elif after == "undone":
            io.drain()
            queueing.finish()
            assert queueing.ours() == []
        io.all_happens()
        io.drain()
        assert node.data[KEY] == STRANGER
        assert len(queueing.inbox) == 1
        assert node.queues[QUEUE] == []
        if hold is not None:
            return False
        queueing.check_nothing_is_left()
        return True

    every_point(play, least=4)


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_wait_whose_connection_is_gone_leaves_its_claim_to_be_finished(error: type[BaseException]) -> None:
    queueing = Queueing(5, "before", error)
    queueing.io.visitors.append(lambda: queueing.io.answered.append(lambda: queueing.io.down.add(0)))
    assert queueing.run() is None
    assert [hold.state for hold in queueing.keeper.left] == [RELEASED]
    assert len(queueing.ours()) == 1
    queueing.io.down.clear()
    queueing.check_nothing_is_left()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_an_interrupt_while_a_fair_lease_is_made_hands_the_lock_on(fence: bool, error: type[BaseException]) -> None:
    queueing = Queueing(0, "all", error, fence=fence)
    queueing.keeper.error = error
    assert queueing.run() is None
    queueing.io.drain()
    assert queueing.node.data[KEY] == STRANGER
    queueing.check_nothing_is_left()


# -- while a sibling passes the lock on --------------------------------------------------------------------------------


class Passing(Waiting):
    """The same behind a sibling of our cohort, which passes the lock on to us at some time."""

    def __init__(
        self, count: int, fair: bool, known: bool, at: int, when: str, error: type[BaseException], passing: float = 0.3
    ) -> None:
        request = lock_request(count, cohort=3, fair=fair)
        nodes = nodes_of(count, "free")
        super().__init__(request, nodes, at, when, error)
        first = ModelDriver(nodes)
        keeper = ModelKeeper(first)
        begin = (
            keeper._line_up(request, self.terms, 0.1, 0.0)
            if fair
            else mutex.acquire(first, request, self.terms, 0, keeper)
        )
        self.sibling: Hold = run(begin)  # type: ignore[arg-type]
        self.lines.took(self.sibling)
        if known:
            self.io.visitors.append(self.introduce)
        self.io.later(passing, self.pass_on)

    def introduce(self) -> None:
        """It got the lock from this very line."""
        assert self.behind is not None
        self.behind.line.holder = self.sibling

    def pass_on(self) -> None:
        assert self.lines.pass_on(self.sibling, self.io.time) is not None


SIBLINGS = pytest.mark.parametrize(
    ("count", "fair", "known"),
    [(1, False, True), (1, False, False), (3, False, True), (3, False, False), (1, True, True), (1, True, False)],
    ids=["one node, known", "one node", "three nodes, known", "three nodes", "fair, known", "fair"],
)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("passing", [0.002, 0.3], ids=["at once", "later"])
@SIBLINGS
def test_a_wait_for_a_sibling_interrupted_anywhere_keeps_nothing_of_what_it_was_given(
    count: int, fair: bool, known: bool, passing: float, when: str, error: type[BaseException]
) -> None:
    def play(at: int) -> bool:
        scene = Passing(count, fair, known, at, when, error, passing)
        hold = scene.run()
        if hold is not None:
            assert (hold.owner, hold.token) == (scene.sibling.owner, scene.sibling.token + 1)
            scene.io.drain()
            assert len(scene.ours()) == count, "the lock, and no claim"
            scene.check_the_line_goes_on()
            return False
        if scene.sibling.state == HELD:  # interrupted before it was given anything
            scene.io.drain()
            assert len(scene.ours()) == count
            assert run(mutex.release(ModelDriver(scene.nodes), scene.sibling, ModelKeeper()))
        scene.check_nothing_is_left()
        return True

    every_point(play, least=2)


@pytest.mark.parametrize("error", ERRORS)
@SIBLINGS
def test_an_interrupt_while_a_lease_is_made_of_a_siblings_lock_leaves_no_key(
    count: int, fair: bool, known: bool, error: type[BaseException]
) -> None:
    scene = Passing(count, fair, known, 0, "all", error)
    scene.keeper.error = error
    assert scene.run() is None
    scene.check_nothing_is_left()


def test_one_that_is_interrupted_while_it_wakes_the_next_wakes_it_all_the_same() -> None:
    """Ctrl-C may strike anywhere: whoever leaves a line does it again if it has not come to its end."""

    class Struck(ModelBell):
        def set(self) -> None:
            if not self.struck:
                self.struck = True
                raise KeyboardInterrupt
            super().set()

        struck = False

    nodes = nodes_of(1, "majority")
    waiting = Waiting(lock_request(1), nodes, 0)
    bell = Struck()
    waiting.io.visitors[:] = [
        lambda: waiting.lines.join(waiting.request, waiting.terms, bell, 0.0, None, "behind"),
    ]
    waiting.io.later(0.3, lambda: release_rival(nodes))
    with pytest.raises(KeyboardInterrupt):
        run(mutex.acquire(waiting.io, waiting.request, waiting.terms, 5.0, waiting.keeper))
    assert bell.struck
    assert bell.rings == 1, "or it would sleep for ever"
