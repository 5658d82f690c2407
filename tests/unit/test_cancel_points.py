"""A cancellation or Ctrl-C at every possible point: every vote that was or may have been granted is taken back.

The blocking client runs over nodes in memory. The k-th awaited operation is interrupted, for every k: before anything
was sent, with all sent and nothing answered, with half of the answers in, or with all of them. A waiting
operation is interrupted before its wake-up, or at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from handfast import Lease
from handfast.core.hold import RELEASED
from handfast.core.local_queue import Acquisition, Waiter
from handfast.errors import NotAcquired
from sim.store import is_generation
from tests.support.fake_io import FakeClient, FakeWakeup, Rival
from tests.support.fake_node import FakeNode

KEY: Final = b"handfast:{a}"
WHEN: Final = ("before", "sent", "half", "all")
ERRORS: Final = (asyncio.CancelledError, KeyboardInterrupt)
MOST_OPERATIONS: Final = 60

anywhere = pytest.mark.parametrize("when", WHEN)
by_any_interrupt = pytest.mark.parametrize("error", ERRORS)
fenced_or_not = pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])


class Scene:
    """A client that is interrupted at its k-th awaited operation, on nodes that other clients use too."""

    def __init__(
        self,
        count: int,
        at: int = 0,
        when: str = "all",
        error: type[BaseException] = KeyboardInterrupt,
        *,
        names: tuple[str, ...] = ("a",),
        owner: str | None = None,
        **options: Any,
    ) -> None:
        self.nodes = [FakeNode(lambda: self.client.io.time) for _ in range(count)]
        self.client = FakeClient(self.nodes, at, when, error, **options)
        self.io, self.error = self.client.io, error
        self.lock = self.client.lock(list(names) if len(names) > 1 else names[0], owner=owner)
        self.rival = Rival(self.nodes, self.client.lock(names[-1]))
        self.behind: Waiter | None = None

    def acquire(self, wait: float | None = 5.0) -> Lease | None:
        """The lease; None if it was interrupted."""
        try:
            with self.client.virtual_time():
                return self.lock.acquire(wait=wait)
        except self.error:
            return None
        finally:
            self.io.at = 0

    def enter(self, caller: str) -> Waiter:
        """Another thread of the process waits for the lock."""
        acquisition = Acquisition(self.lock, self.lock.config.timing, None, self.io.time)
        return self.client.queues.enter(acquisition, FakeWakeup(), caller)

    def follow(self) -> None:
        self.behind = self.enter("behind")

    def keys_of_owner(self) -> list[Any]:
        """The traces of this process on the nodes: votes, claims, entries in queues."""
        start = self.lock.config.owner_start
        found = []
        for node in self.nodes:
            for key, value in node.data.items():
                words = [value] if isinstance(value, bytes) else list(value)
                if type(value) is dict:  # a hash: its values too
                    words += value.values()
                found += [(key, word) for word in words if start in word]
        return found

    def check_nothing_is_left(self) -> None:
        self.io.drain()
        self.client.watchdog.finish_all(self.nodes)
        assert self.keys_of_owner() == []
        assert self.client.watched() == set(), "nothing is renewed"
        assert self.io.mailbox == {}, "nobody expects a push"
        assert self.io.trackers == [], "nobody expects to hear of a change"
        self.check_queue_goes_on()

    def check_queue_goes_on(self) -> None:
        if self.behind is not None:
            assert self.behind.queue.head is self.behind
            assert self.behind.wakeup.calls == 1
            assert self.client.queues.leave(self.behind) is None
        assert self.client.queues.by_key == {}

    def check_order_of_release(self) -> None:
        """Each granted or queued claim is released behind it. Nothing is sent after a refusal."""
        for log in self.io.log:
            for who in {who for name, who, _ in log if name == "claim"}:
                said = [(name, reply) for name, each, reply in log if each == who]
                names = [name for name, _ in said]
                assert names[0] == "claim", said
                if any(name == "claim" and _granted(reply) for name, reply in said):
                    assert names[-1] == "pass", said
                assert set(names) <= {"claim", "raise_token", "yield", "pass"}, said


def _granted(reply: Any) -> bool:
    return type(reply) is int or (type(reply) is list and reply[0] == 1)


def every_point(play: Callable[[int], bool], least: int) -> None:
    """Interrupt the first operation, the second, and so on until there is none left to interrupt."""
    for at in range(1, MOST_OPERATIONS):
        if not play(at):
            assert at > least, "fewer operations than this scene has"
            return
    raise AssertionError("more operations than this test allows")


# -- one attempt -------------------------------------------------------------------------------------------------------


def prepare(scene: Scene, state: str) -> None:
    """free; split: counters differ, so that a token must be agreed on; minority, majority: a rival holds it there."""
    count = len(scene.nodes)
    if state == "split":
        for i, node in enumerate(scene.nodes):
            node.put(KEY + b":f", b"%d" % (node.now_us() + 2000 + 10 * i))
    held = {"minority": count // 2, "majority": count // 2 + 1}.get(state, 0)
    if held:
        scene.rival.acquire(*range(held))


def votes_of_rival(scene: Scene) -> list[bytes | None]:
    return [node.holder(KEY) for node in scene.nodes]


@by_any_interrupt
@anywhere
@fenced_or_not
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("state", ["free", "split", "minority", "majority"])
@pytest.mark.parametrize("wait", [0, 0.05])
def test_interrupted_acquire_leaves_nothing(
    wait: float, count: int, fence: bool, when: str, error: type[BaseException], state: str
) -> None:
    def play(at: int) -> bool:
        scene = Scene(count, at, when, error, fence=fence)
        prepare(scene, state)
        before = votes_of_rival(scene)
        try:
            lease = scene.acquire(wait)
        except NotAcquired:
            lease = None
        if lease is None:
            scene.check_nothing_is_left()
            scene.check_order_of_release()
            assert votes_of_rival(scene) == before
        assert scene.client.queues.by_key == {}
        return scene.io.struck

    every_point(play, least=2)


@by_any_interrupt
@anywhere
@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_acquire_on_guarded_nodes_leaves_nothing(count: int, when: str, error: type[BaseException]) -> None:
    def play(at: int) -> bool:
        scene = Scene(count, at, when, error, guard=True)
        opener = FakeClient(scene.nodes, guard=True)
        assert set(opener.bootstrap().values()) == {"opened"}
        scene.rival.acquire()
        scene.io.later(0.1, scene.follow)
        scene.io.later(0.3, scene.rival.release)
        lease = scene.acquire()
        if lease is None:
            scene.check_nothing_is_left()
            scene.check_order_of_release()
        else:
            scene.check_queue_goes_on()
        return lease is None

    every_point(play, least=4)


@by_any_interrupt
@fenced_or_not
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("state", ["free", "majority"])
def test_interrupt_while_the_lease_is_made_leaves_nothing(
    state: str, count: int, fence: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Struck(Lease):
        def __init__(self, *args: Any) -> None:
            raise error

    monkeypatch.setattr(FakeClient, "_lease_type", Struck)
    scene = Scene(count, error=error, fence=fence)
    prepare(scene, state)
    scene.io.later(0.1, scene.follow)
    scene.io.later(0.3, scene.rival.release)
    assert scene.acquire() is None
    scene.check_nothing_is_left()


def generations(node: FakeNode) -> set[bytes]:
    return set(filter(is_generation, node.data.get(KEY + b":g", {})))


@anywhere
@pytest.mark.parametrize("count", [1, 5])
def test_interrupted_attempt_of_an_explicit_owner_keeps_what_others_hold_under_it(count: int, when: str) -> None:
    def play(at: int) -> bool:
        scene = Scene(count, at, when, owner="job-42")
        other = FakeClient(scene.nodes)
        with other.virtual_time():
            held = other.lock("a", owner="job-42").acquire(wait=0)
        before = [generations(node) for node in scene.nodes]
        assert all(len(each) == 1 for each in before)
        lease = scene.acquire(0)
        if lease is None:
            scene.io.drain()
            scene.client.watchdog.finish_all(scene.nodes)
            assert [generations(node) for node in scene.nodes] == before
        assert votes_of_rival(scene) == [b"job-42"] * count
        with other.virtual_time():
            assert held.release()
        return lease is None

    every_point(play, least=2)


def test_undo_reaches_the_connected_nodes_and_the_watchdog_does_the_rest() -> None:
    scene = Scene(3, 3, "sent")
    scene.io.down = {0}
    assert scene.acquire(0) is None
    scene.io.drain()
    assert scene.keys_of_owner() == []
    assert len(scene.client.watchdog.to_finish) == 1, "node 0 may come back with what it was sent"


# -- a release and an extension ----------------------------------------------------------------------------------------


def held(scene: Scene, at: int) -> Lease:
    """A lease. The k-th operation from now on is interrupted."""
    with scene.client.virtual_time():
        lease = scene.lock.acquire(wait=0)
    scene.io.at = at and scene.io.count + at
    scene.io.sent.clear()
    return lease


@by_any_interrupt
@anywhere
@fenced_or_not
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("names", [("a",), ("a", "b")], ids=["one name", "two names"])
def test_interrupted_release_is_final_and_the_watchdog_finishes_it(
    names: tuple[str, ...], count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    def play(at: int) -> bool:
        scene = Scene(count, 0, when, error, names=names, fence=fence)
        lease = held(scene, at)
        stranger = Rival(scene.nodes, scene.client.lock(names[0]), 2)
        stranger.acquire(ticket=b"7")
        with scene.client.virtual_time():
            try:
                assert lease.release()
            except error:
                assert len(scene.client.watchdog.to_finish) == 1
            assert not lease.release(), "the second release sends nothing"
        scene.io.drain()
        assert scene.io.names_sent() <= {"pass"}
        scene.check_nothing_is_left()
        assert {node.holder(KEY) for node in scene.nodes} == {stranger.owner}
        assert len(stranger.hand_overs()) == count, "the next waiter hears once of each vote"
        return scene.io.struck

    every_point(play, least=1)


@by_any_interrupt
@anywhere
@fenced_or_not
@pytest.mark.parametrize("count", [1, 5])
def test_interrupted_extend_leaves_the_lease_as_it_was(
    count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    def play(at: int) -> bool:
        scene = Scene(count, 0, when, error, fence=fence)
        lease = held(scene, at)
        with scene.client.virtual_time():
            left, before = lease.remaining(), scene.io.time
            try:
                lease.extend(1.0)
            except error:
                assert lease.remaining() == pytest.approx(left - (scene.io.time - before), abs=1e-3)
            struck, scene.io.at = scene.io.struck, 0
            scene.io.drain()
            assert lease.valid
            assert {node.holder(KEY) for node in scene.nodes} == {lease.owner.encode()}
            assert scene.io.names_sent() <= {"extend"}
            assert lease.release()
        return struck

    every_point(play, least=1)


@pytest.mark.parametrize("when", ["before", "sent"])
def test_interrupted_shorter_extend_shortens_the_promise_unless_it_was_never_sent(when: str) -> None:
    """Once sent it may be carried out, and the key then ends with it."""
    scene = Scene(1, 0, when)
    lease = held(scene, 1)
    with scene.client.virtual_time():
        with pytest.raises(KeyboardInterrupt):
            lease.extend(0.1)
        scene.io.drain()
        if scene.io.sent:
            assert lease.remaining() <= 0.1


# -- while waiting -----------------------------------------------------------------------------------------------------


WAYS: Final[dict[str, dict[str, Any]]] = {
    "queue": {},
    "barging": {"fair": False},
    "tries": {"tries": 9},
    "keys shared with other programs": {"prefix": "", "fence": False},
}


@by_any_interrupt
@anywhere
@fenced_or_not
@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("way", ["queue", "barging", "tries"])
def test_interrupted_wait_leaves_nothing_and_wakes_the_next(
    way: str, count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    """A rival holds a majority, and releases it half way."""

    def play(at: int) -> bool:
        scene = Scene(count, at, when, error, fence=fence, **WAYS[way])
        prepare(scene, "majority")
        scene.io.later(0.02, scene.follow)
        scene.io.later(0.3, scene.rival.release)
        lease = scene.acquire()
        if lease is None:
            scene.check_nothing_is_left()
            scene.check_order_of_release()
            return True
        scene.io.drain()
        assert {node.holder(KEY) for node in scene.nodes} <= {lease.owner.encode(), None}
        scene.check_queue_goes_on()
        return False

    every_point(play, least=5)


@by_any_interrupt
@anywhere
@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_wait_without_pushes_leaves_nothing(count: int, when: str, error: type[BaseException]) -> None:
    """A server that speaks RESP2 only: attempts are repeated."""

    def play(at: int) -> bool:
        scene = Scene(count, at, when, error)
        for node in scene.nodes:
            node.refuses_hello = True
        prepare(scene, "majority")
        scene.io.later(0.02, scene.follow)
        scene.io.later(0.3, scene.rival.release)
        lease = scene.acquire()
        if lease is None:
            scene.check_nothing_is_left()
            scene.check_order_of_release()
        return lease is None

    every_point(play, least=5)


def drop_all(nodes: list[FakeNode], key: bytes) -> None:
    for node in nodes:
        node.drop(key)


@by_any_interrupt
@anywhere
@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_wait_for_another_programs_key_leaves_nothing(
    count: int, when: str, error: type[BaseException]
) -> None:
    """The published protocol: a plain SET, and a plain DEL half way."""

    def play(at: int) -> bool:
        scene = Scene(count, at, when, error, **WAYS["keys shared with other programs"])
        for node in scene.nodes:
            node.put(b"a", b"another program")
        scene.io.later(0.02, scene.follow)
        scene.io.later(0.3, lambda: drop_all(scene.nodes, b"a"))
        lease = scene.acquire()
        if lease is None:
            scene.check_nothing_is_left()
            return True
        assert {node.holder(b"a") for node in scene.nodes} == {lease.owner.encode()}
        scene.check_queue_goes_on()
        return False

    every_point(play, least=5)


@by_any_interrupt
@anywhere
def test_interrupted_waiter_in_middle_of_local_queue_does_not_affect_others(
    when: str, error: type[BaseException]
) -> None:
    def play(at: int) -> bool:
        scene = Scene(1, at, when, error)
        prepare(scene, "majority")
        before = scene.enter("before")
        scene.io.later(0.1, scene.follow)
        scene.io.later(0.2, lambda: scene.client.queues.leave(before))
        scene.io.later(0.3, scene.rival.release)
        lease = scene.acquire()
        if lease is not None:
            assert scene.nodes[0].holder(KEY) == lease.owner.encode()
            scene.check_queue_goes_on()
            return False
        if before in before.queue.waiters:
            assert before.queue.head is before
            assert before.wakeup.calls == 0
            if scene.behind is not None:
                assert scene.behind.wakeup.calls == 0
            scene.client.queues.leave(before)
        scene.check_nothing_is_left()
        return True

    every_point(play, least=4)


# -- in the queues of the nodes ----------------------------------------------------------------------------------------


class Queueing(Scene):
    """A rival holds the lock, and an acquisition of another process waits behind this one."""

    def __init__(self, count: int, at: int, when: str, error: type[BaseException], **options: Any) -> None:
        super().__init__(count, at, when, error, **options)
        self.rival.acquire()
        self.stranger = Rival(self.nodes, self.client.lock("a"), 2)
        self.io.later(0.2, self.stranger_comes)
        self.io.later(0.3, self.rival.release)

    def stranger_comes(self) -> None:
        self.stranger.acquire(ticket=b"%d" % self.nodes[0].now_us())


@by_any_interrupt
@anywhere
@fenced_or_not
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("owner", [None, "job-42"])
@pytest.mark.parametrize("undone", ["before the hand-over", "after the hand-over"])
def test_interrupted_wait_in_the_queue_passes_the_lock_on(
    undone: str, owner: str | None, count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    """The rival hands over just before the interrupt (at the last operations), between the interrupt and the arrival
    of what undoes the claim, or after that."""

    def play(at: int) -> bool:
        scene = Queueing(count, at, when, error, fence=fence, owner=owner)
        lease = scene.acquire()
        if lease is not None:
            assert {node.holder(KEY) for node in scene.nodes} == {lease.owner.encode()}
            with scene.client.virtual_time():
                assert lease.release()
        elif undone == "before the hand-over":
            scene.io.drain()
            scene.client.watchdog.finish_all(scene.nodes)
            assert scene.keys_of_owner() == []
        scene.io.finish_events()
        scene.io.drain()
        scene.client.watchdog.finish_all(scene.nodes)
        assert {node.holder(KEY) for node in scene.nodes} == {scene.stranger.owner}
        assert len(scene.stranger.hand_overs()) == count, "the stranger hears once of each vote"
        assert [node.queued(KEY) for node in scene.nodes] == [[]] * count
        scene.check_nothing_is_left()
        return lease is None

    every_point(play, least=4)


@by_any_interrupt
@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_wait_whose_connections_are_gone_leaves_its_claims_to_the_watchdog(
    count: int, error: type[BaseException]
) -> None:
    def cut() -> None:
        for i in range(count):
            scene.io.lose_connection(i)
            scene.io.down.add(i)
        scene.io.at = scene.io.count + 1

    scene = Queueing(count, 0, "before", error)
    scene.io.later(0.25, cut)
    assert scene.acquire() is None
    assert [hold.state for hold in scene.client.watchdog.to_finish] == [RELEASED]
    assert [len(node.queued(KEY)) for node in scene.nodes] == [2] * count
    scene.check_nothing_is_left()


class Yielding(Scene):
    """A rival holds two of three nodes. This waiter has the third vote when a lower ticket asks for it."""

    def __init__(self, at: int, when: str, error: type[BaseException]) -> None:
        super().__init__(3, at, when, error)
        self.lower = Rival(self.nodes, self.client.lock("a"), 2)
        self.rival.acquire(0, 1)
        self.io.later(0.2, lambda: self.lower.acquire(2, ticket=b"5"))
        self.io.later(0.3, lambda: self.rival.release(0))
        self.io.later(0.4, lambda: self.lower.release(2))
        self.io.later(0.6, self.rival.release)


@by_any_interrupt
@anywhere
def test_interrupted_yield_leaves_nothing(when: str, error: type[BaseException]) -> None:
    def play(at: int) -> bool:
        scene = Yielding(at, when, error)
        lease = scene.acquire()
        scene.io.finish_events()
        if lease is None:
            scene.check_nothing_is_left()
            assert [node.holder(KEY) for node in scene.nodes] == [None] * 3
        else:
            assert "yield" in scene.io.names_sent(), "or this test is about something else"
        return lease is None

    every_point(play, least=6)


# -- several names -----------------------------------------------------------------------------------------------------


@by_any_interrupt
@anywhere
@fenced_or_not
@pytest.mark.parametrize("count", [1, 3])
def test_interrupted_wait_for_several_names_leaves_nothing(
    count: int, fence: bool, when: str, error: type[BaseException]
) -> None:
    """A rival holds the last of three names, and releases it half way."""

    def play(at: int) -> bool:
        scene = Scene(count, at, when, error, names=("a", "b", "c"), fence=fence)
        scene.rival.acquire()
        scene.io.later(0.1, scene.follow)
        scene.io.later(0.3, scene.rival.release)
        lease = scene.acquire()
        if lease is None:
            scene.check_nothing_is_left()
            return True
        scene.io.drain()
        for name in (b"a", b"b", b"c"):
            assert {node.holder(b"handfast:{%b}" % name) for node in scene.nodes} == {lease.owner.encode()}
        assert len(scene.client.watched()) == 1, "the parts are renewed no more"
        with scene.client.virtual_time():
            assert lease.release()
        scene.check_nothing_is_left()
        return False

    every_point(play, least=7)


# -- while a sibling hands the lock over -------------------------------------------------------------------------------


class HandingOver(Scene):
    """A sibling of the cohort holds the lock, and hands it over at some time."""

    def __init__(
        self, count: int, known: bool, at: int, when: str, error: type[BaseException], after: float = 0.3
    ) -> None:
        super().__init__(count, 0, when, error, cohort=3)
        with self.client.virtual_time():
            self.sibling = self.lock.acquire(wait=0)
        self.io.at = at and self.io.count + at
        self.first: Waiter | None = None
        if known:
            # The waiter comes to the head of a queue whose last head is the holder.
            self.first = self.enter("first")
            self.first.queue.holder = next(iter(self.client.watched()))
            self.io.later(self.io.time + 0.002, self.first_leaves)
        self.io.later(self.io.time + 0.003, self.follow)
        self.io.later(self.io.time + after, self.hand_over)

    def first_leaves(self) -> None:
        if self.first is not None:
            self.client.queues.leave(self.first)
            self.first = None

    def hand_over(self) -> None:
        assert self.sibling.release()


HAND_OVERS = pytest.mark.parametrize("known", [True, False], ids=["known holder", "unknown holder"])


@by_any_interrupt
@anywhere
@pytest.mark.parametrize("after", [0.005, 0.3], ids=["at once", "later"])
@pytest.mark.parametrize("count", [1, 3])
@HAND_OVERS
def test_interrupted_wait_for_a_sibling_keeps_nothing_of_what_was_handed_over(
    count: int, known: bool, after: float, when: str, error: type[BaseException]
) -> None:
    def play(at: int) -> bool:
        scene = HandingOver(count, known, at, when, error, after)
        lease = scene.acquire()
        if lease is not None:
            assert lease.owner == scene.sibling.owner
            assert lease.token == (scene.sibling.token or 0) + 1
            scene.io.drain()
            assert [node.queued(KEY) for node in scene.nodes] == [[]] * count
            assert {node.holder(KEY) for node in scene.nodes} == {lease.owner.encode()}
            scene.check_queue_goes_on()
            return False
        scene.first_leaves()
        with scene.client.virtual_time():
            if scene.sibling.valid:  # interrupted before it was given anything
                scene.io.drain()
                assert {node.holder(KEY) for node in scene.nodes} == {scene.sibling.owner.encode()}
                assert [node.queued(KEY) for node in scene.nodes] == [[]] * count
                scene.check_queue_goes_on()
                scene.behind = None
                assert scene.sibling.release()
        scene.check_nothing_is_left()
        return True

    every_point(play, least=2)


@by_any_interrupt
@pytest.mark.parametrize("count", [1, 3])
@HAND_OVERS
def test_interrupt_while_a_lease_is_made_of_a_siblings_hold_leaves_nothing(
    count: int, known: bool, error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Struck(Lease):
        def __init__(self, *args: Any) -> None:
            raise error

    scene = HandingOver(count, known, 0, "all", error)
    monkeypatch.setattr(FakeClient, "_lease_type", Struck)
    assert scene.acquire() is None
    scene.check_nothing_is_left()


def test_interrupt_while_the_next_waiter_is_woken_still_wakes_it() -> None:
    """Ctrl-C may strike anywhere: a waiter leaves again if its first try was interrupted."""

    class Struck(FakeWakeup):
        def set(self) -> None:
            if not self.is_struck:
                self.is_struck = True
                raise KeyboardInterrupt
            super().set()

        is_struck = False

    scene = Scene(1)
    prepare(scene, "majority")
    wakeup = Struck()
    acquisition = Acquisition(scene.lock, scene.lock.config.timing, None, 0.0)
    scene.io.later(0.1, lambda: scene.client.queues.enter(acquisition, wakeup, "behind"))
    scene.io.later(0.3, scene.rival.release)
    assert scene.acquire() is None
    assert wakeup.is_struck
    assert wakeup.calls == 1, "or it would sleep for ever"
    scene.io.drain()
    scene.client.watchdog.finish_all(scene.nodes)
    assert scene.keys_of_owner() == []
