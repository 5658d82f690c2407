"""The wait queues of one process: which waiter is next, which is woken, what a cohort hands over without a server."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handfast.core.config import LockRequest, Timing
from handfast.core.hold import HELD, LOST, RELEASED, Hold
from handfast.core.io import CappedTimeout
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.errors import ConfigError, Contended, NoQuorum
from handfast.protocol.commands import Identity
from tests.support.fake_io import FakeClient, FakeWakeup, fake_queues, lock_request
from tests.support.fake_node import FakeNode

TTL = 1.0
OWNER = b"host:1::" + b"a" * 32


class Queue:
    """The wait queues of a client, and a lock that tests wait for."""

    def __init__(self, **options: Any) -> None:
        self.queues = fake_queues()
        self.request = lock_request(1, ttl=TTL, **options)

    def enter(
        self,
        caller: str = "",
        request: LockRequest | None = None,
        timing: Timing | None = None,
        wait: float | None = None,
    ) -> Waiter:
        request = request or self.request
        acquisition = Acquisition(request, timing or request.config.timing, wait, 0.0)
        return self.queues.enter(acquisition, FakeWakeup(), caller)

    def waiting(self) -> list[Any]:
        return self.queues.waiting(self.request)

    def held(self, token: int = 100, at: float = 0.0) -> Hold:
        """A hold that the server has just given to a cohort; `token` is the last token that it counted."""
        hold = Hold(self.request, Identity(OWNER, OWNER), TTL, at + 0.988 * TTL, at, 1, token)
        hold.form_cohort()
        self.queues.acquired(hold)
        return hold


def is_head(waiter: Waiter) -> bool:
    return waiter.queue.head is waiter


def calls(*waiters: Waiter) -> list[int]:
    return [waiter.wakeup.calls for waiter in waiters]


# -- order -------------------------------------------------------------------------------------------------------------


def test_first_waiter_is_the_head_and_no_waiter_is_woken() -> None:
    queue = Queue()
    a, b, c = queue.enter(), queue.enter(), queue.enter()
    assert [is_head(a), is_head(b), is_head(c)] == [True, False, False]
    assert calls(a, b, c) == [0, 0, 0]


def test_waiters_become_head_in_order_of_arrival_and_are_woken_once() -> None:
    queue = Queue()
    waiters = [queue.enter(str(i)) for i in range(5)]
    assert queue.waiting() == ["0", "1", "2", "3", "4"]
    for i, waiter in enumerate(waiters):
        assert is_head(waiter)
        queue.queues.leave(waiter)
        assert calls(*waiters) == [0] + [1] * min(i + 1, 4) + [0] * (3 - i)


def test_waiter_that_leaves_from_the_middle_wakes_no_other() -> None:
    queue = Queue()
    a, b, c = queue.enter("a"), queue.enter("b"), queue.enter("c")
    queue.queues.leave(b)
    assert calls(a, b, c) == [0, 0, 0]
    assert is_head(a)
    assert queue.waiting() == ["a", "c"]
    queue.queues.leave(a)
    assert is_head(c)
    assert calls(a, b, c) == [0, 0, 1]


def test_last_waiter_removes_the_queue() -> None:
    queue = Queue()
    a, b = queue.enter(), queue.enter()
    queue.queues.leave(a)
    assert queue.queues.has_waiters(queue.request)
    queue.queues.leave(b)
    assert queue.queues.by_key == {}
    assert not queue.queues.has_waiters(queue.request)
    assert queue.waiting() == []


def test_only_an_empty_queue_can_be_entered_at_its_head() -> None:
    queue = Queue()
    acquisition = Acquisition(queue.request, queue.request.config.timing, None, 0.0)
    first = queue.queues.enter_empty(acquisition, FakeWakeup(), "first")
    assert first is not None
    assert is_head(first)
    assert queue.queues.enter_empty(acquisition, FakeWakeup(), "second") is None
    assert queue.waiting() == ["first"]


def test_waiter_that_leaves_twice_does_not_affect_newer_queue() -> None:
    queue = Queue()
    a = queue.enter()
    queue.queues.leave(a)
    b = queue.enter()
    assert queue.queues.leave(a) is None
    assert is_head(b)
    assert queue.queues.has_waiters(queue.request)
    c = queue.enter()
    queue.queues.leave(a)
    assert [is_head(b), is_head(c)] == [True, False]


def test_leaving_again_after_an_interrupt_wakes_the_next_waiter() -> None:
    queue = Queue()
    a, b = queue.enter(), queue.enter()

    def interrupt() -> None:
        raise KeyboardInterrupt

    wake, b.wakeup.set = b.wakeup.set, interrupt
    with pytest.raises(KeyboardInterrupt):
        queue.queues.leave(a)
    b.wakeup.set = wake
    queue.queues.leave(a)
    assert is_head(b)
    assert calls(b) == [1]


@pytest.mark.parametrize("crowded", [False, True])
def test_leaving_again_after_an_interrupt_takes_nothing_from_a_later_waiter(crowded: bool) -> None:
    """The interrupt came before the empty queue was removed."""
    queue = Queue()
    first = queue.enter()
    if crowded:
        queue.queues.leave(queue.enter())
    key = first.queue.key
    queue.queues.leave(first)
    queue.queues.by_key[key] = first.queue
    second = queue.enter("second")
    assert second.queue is first.queue
    queue.queues.leave(first)
    assert is_head(second)
    assert queue.waiting() == ["second"]
    queue.queues.leave(second)
    assert queue.queues.by_key == {}


def test_different_locks_have_different_queues() -> None:
    queue = Queue()
    both = LockRequest(queue.request.config, ("a", "b"))
    waiters = [queue.enter(), queue.enter(request=lock_request(1, "b")), queue.enter(request=both)]
    assert all(is_head(waiter) for waiter in waiters)
    assert len(queue.queues.by_key) == 3


def test_closing_wakes_all_waiters_and_lets_no_more_in() -> None:
    queue = Queue()
    waiters = [queue.enter(), queue.enter(), queue.enter(request=lock_request(1, "b"))]
    queue.queues.close()
    assert calls(*waiters) == [1, 1, 1]
    for waiter in waiters:
        with pytest.raises(ConfigError, match="closed while it waited"):
            queue.queues.check(waiter, 0.0)
        queue.queues.leave(waiter)
    with pytest.raises(ConfigError, match="closed while it waited"):
        queue.enter()
    acquisition = Acquisition(queue.request, queue.request.config.timing, None, 0.0)
    with pytest.raises(ConfigError, match="closed while it waited"):
        queue.queues.enter_empty(acquisition, FakeWakeup(), "late")
    assert queue.queues.by_key == {}


def test_acquisition_knows_how_long_it_may_still_wait() -> None:
    queue = Queue()
    patient, hasty = (queue.enter(wait=wait).acquisition for wait in (None, 2.0))
    assert (patient.until, hasty.until) == (None, 2.0)
    assert [patient.timeout(5.0, 1.0), hasty.timeout(5.0, 1.5), hasty.timeout(0.1, 1.5)] == [5.0, 0.5, 0.1]
    assert hasty.timeout(5.0, 3.0) == 0.0
    stretched = hasty.timeout(0.1, 1.5)
    assert isinstance(stretched, CappedTimeout)
    assert stretched.most == 0.5
    assert [patient.earlier(9.0), hasty.earlier(9.0), hasty.earlier(1.0)] == [9.0, 2.0, 1.0]


def test_start_and_end_of_wait_are_reported_once() -> None:
    told: list[tuple[Waiter, float, str]] = []
    queues = fake_queues(lambda *said: told.append(said))
    request = lock_request(1)
    waiter = queues.enter(Acquisition(request, request.config.timing, None, 1.0), FakeWakeup(), "me")
    assert not waiter.announced
    queues.began(waiter)
    assert waiter.announced
    queues.began(waiter)
    queues.ended(waiter, 4.0, "acquired")
    assert told == [(waiter, 0.0, ""), (waiter, 3.0, "acquired")]


def test_threads_are_served_one_at_a_time() -> None:
    queues = fake_queues()
    queues.lock = threading.Lock()
    request = lock_request(1)
    inside: list[int] = []
    most: list[int] = []

    def enter_and_leave(me: int) -> None:
        for turn in range(100):
            wakeup = threading.Event()
            waiter = queues.enter(Acquisition(request, request.config.timing, None, 0.0), wakeup, "")
            if turn % 3:  # the others give up at once
                while not is_head(waiter):
                    assert wakeup.wait(20), "nobody has woken it"
                    wakeup.clear()
                inside.append(me)
                most.append(len(inside))
                inside.remove(me)
            queues.leave(waiter)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(enter_and_leave, me) for me in range(6)]:
            done.result(timeout=40)
    assert queues.by_key == {}
    assert max(most) == 1


# -- the end of a wait -------------------------------------------------------------------------------------------------


def test_wait_ends_at_its_deadline_and_not_before() -> None:
    queue = Queue()
    waiter = queue.enter(wait=2.0)
    queue.queues.check(waiter, 1.999)
    with pytest.raises(NoQuorum):
        queue.queues.check(waiter, 2.0)


def test_wait_with_hold_in_time_does_not_time_out() -> None:
    queue = Queue(cohort=3)
    waiter = queue.enter(wait=0.5)
    assert queue.queues.hand_over(queue.held(), 0.1) is not None
    queue.queues.check(waiter, 0.6)


def test_waiter_behind_head_gets_last_known_state_of_head() -> None:
    queue = Queue()
    queue.enter()
    waiter = queue.enter(wait=1.0)
    error = Contended("a", holder="somebody", remaining=3.0, nodes={})
    waiter.queue.explain = lambda now: error
    with pytest.raises(Contended) as raised:
        queue.queues.check(waiter, 1.0)
    assert raised.value is error


def test_waiter_behind_sibling_gets_state_of_sibling() -> None:
    queue = Queue(cohort=3)
    waiter = queue.enter(wait=0.5)
    waiter.queue.holder = queue.held()
    with pytest.raises(Contended) as raised:
        queue.queues.check(waiter, 0.5)
    assert raised.value.holder == OWNER.decode()
    assert raised.value.remaining == pytest.approx(0.488, abs=0.001)


# -- a cohort ----------------------------------------------------------------------------------------------------------


def take(queue: Queue, waiter: Waiter) -> Hold:
    """The head takes the hold that it was given, and leaves."""
    given = waiter.usable(0.1)
    assert given is not None
    waiter.given = None
    assert queue.queues.leave(waiter) is None
    return given


def test_hand_over_gives_the_same_lock_with_a_new_token() -> None:
    queue = Queue(cohort=3)
    head, hold = queue.enter(), queue.held(token=100)
    assert (hold.token, hold.token_floor) == (97, 100)
    passed = queue.queues.hand_over(hold, 0.1)
    assert passed is not None
    assert head.given is passed
    assert hold.next_hold is passed
    assert calls(head) == [1]
    assert (passed.who, passed.keys, passed.deadline, passed.votes) == (hold.who, hold.keys, hold.deadline, hold.votes)
    assert (passed.token, passed.token_floor) == (98, 100)
    assert (hold.state, passed.state) == (RELEASED, HELD)
    assert take(queue, head) is passed


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_cohort_hands_over_as_often_as_it_may_each_time_with_a_larger_token(fence: bool) -> None:
    queue = Queue(cohort=3, fence=fence)
    hold = queue.held(token=100 if fence else 0)
    tokens, floor = [hold.token], hold.token_floor
    waiters = [queue.enter() for _ in range(5)]
    for waiter in waiters[:3]:
        assert queue.queues.hand_over(hold, 0.1) is not None
        hold = take(queue, waiter)
        tokens.append(hold.token)
        assert hold.token_floor == floor
    assert queue.queues.hand_over(hold, 0.1) is None
    assert hold.state == HELD, "it is released instead"
    assert tokens == ([97, 98, 99, 100] if fence else [0, 0, 0, 0])
    assert calls(*waiters) == [1, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("deadline", "now", "passed"),
    [
        (0.988, 0.1, True),
        (0.988, 0.487, True),
        (0.988, 0.489, False),  # less than half of its ttl is left
        (1.9, 0.999, True),
        (1.9, 1.0, False),  # a ttl since it was acquired from the server: it was renewed, but its turn is over
    ],
)
def test_hand_over_needs_half_a_ttl_and_a_turn_that_lasts(deadline: float, now: float, passed: bool) -> None:
    queue = Queue(cohort=3)
    queue.enter()
    hold = queue.held()
    hold.deadline = deadline
    assert (queue.queues.hand_over(hold, now) is not None) == passed
    assert hold.state == (RELEASED if passed else HELD)


def test_hand_over_does_not_begin_a_new_turn() -> None:
    queue = Queue(cohort=3)
    waiter, hold = queue.enter(), queue.held()
    hold.deadline = 1.9
    assert queue.queues.hand_over(hold, 0.9) is not None
    passed = take(queue, waiter)
    queue.enter()
    assert queue.queues.hand_over(passed, 1.0) is None


def test_nothing_is_handed_over_without_waiters() -> None:
    queue = Queue(cohort=3)
    hold = queue.held()
    assert queue.queues.hand_over(hold, 0.1) is None
    queue.enter(request=lock_request(1, "b", cohort=3))
    assert queue.queues.hand_over(hold, 0.1) is None
    assert hold.state == HELD


@pytest.mark.parametrize("wants", ["another ttl", "an explicit owner", "other settings"])
def test_nothing_is_handed_over_to_head_with_other_options(wants: str) -> None:
    queue = Queue(cohort=3)
    request, timing = queue.request, queue.request.config.timing
    if wants == "another ttl":
        timing = request.config.timing_for(2.0)
    elif wants == "an explicit owner":
        request = LockRequest(request.config, ("a",), b"job-42")
    else:
        request = lock_request(1, ttl=TTL, cohort=3, fence=False)
    head, behind = queue.enter("head", request, timing), queue.enter("behind")
    hold = queue.held()
    assert head.queue is behind.queue
    assert queue.queues.hand_over(hold, 0.1) is None
    assert (hold.state, head.given, behind.given) == (HELD, None, None)


def test_nothing_is_handed_over_without_a_cohort_or_under_an_explicit_owner() -> None:
    client = FakeClient([FakeNode()])
    with client.virtual_time():
        plain = client.lock("a").acquire(wait=0)
        explicit = client.lock("b", owner="job-42", cohort=3).acquire(wait=0)
        for lease in (plain, explicit):
            request = client.lock(lease.name, cohort=3)
            waiter = client.queues.enter(Acquisition(request, request.config.timing, None, 0.0), FakeWakeup(), "")
            assert lease.release()
            assert waiter.given is None
    assert len(client.io.times("pass")) == 2


ENDS: dict[str, Callable[[Hold], Any]] = {
    "lost": lambda hold: hold.mark_lost("a test"),
    "released": lambda hold: hold.begin_release(),
}


@pytest.mark.parametrize("end", ENDS)
def test_ended_hold_is_not_handed_over(end: str) -> None:
    queue = Queue(cohort=3)
    waiter, hold = queue.enter(), queue.held()
    ENDS[end](hold)
    assert queue.queues.hand_over(hold, 0.1) is None
    assert waiter.given is None
    assert hold.state != HELD


def test_waiter_that_leaves_returns_hold_it_has_not_taken() -> None:
    queue = Queue(cohort=3)
    a, b = queue.enter(), queue.enter()
    passed = queue.queues.hand_over(queue.held(), 0.1)
    assert queue.queues.leave(a) is passed
    assert is_head(b)
    assert (calls(b), b.given) == ([1], None)
    assert queue.queues.leave(a) is None


def test_no_waiter_gets_two_holds() -> None:
    queue = Queue(cohort=3)
    waiter = queue.enter()
    assert queue.queues.hand_over(queue.held(), 0.1) is waiter.given
    other = queue.held(token=200)
    assert queue.queues.hand_over(other, 0.1) is None
    assert other.state == HELD


def test_only_the_latest_hold_of_a_cohort_is_handed_over() -> None:
    queue = Queue(cohort=3)
    waiter, old = queue.enter(), queue.held()
    new = queue.held(token=200)
    assert queue.queues.hand_over(old, 0.1) is None, "the server has given the lock anew, so it was lost"
    assert waiter.given is None
    assert queue.queues.hand_over(new, 0.1) is waiter.given


def test_handed_over_hold_is_usable_until_its_deadline() -> None:
    queue = Queue(cohort=3)
    waiter = queue.enter()
    passed = queue.queues.hand_over(queue.held(), 0.1)
    assert passed is not None
    assert waiter.usable(passed.deadline - 0.001) is passed
    assert waiter.usable(passed.deadline) is None
    assert waiter.given is None, "what is over is forgotten"


def test_hold_is_held_until_its_deadline_or_its_end() -> None:
    hold = Queue(cohort=3).held()
    assert hold.held_at(0.1)
    assert not hold.held_at(hold.deadline)
    hold.mark_lost("a test")
    assert hold.state == LOST
    assert not hold.held_at(0.1)


# -- anything in any order ---------------------------------------------------------------------------------------------


class Model:
    """A queue, and its invariants after every step."""

    def __init__(self, cohort: int) -> None:
        self.queue = Queue(cohort=cohort)
        self.queues: WaitQueues = self.queue.queues
        self.cohort = cohort
        self.order: list[Waiter] = []
        self.hold: Hold | None = None
        """What a thread of this process holds."""
        self.tokens: list[int] = []
        self.counter = 0
        self.given: list[Hold] = []

    def step(self, what: str, index: int) -> None:
        before = {waiter: waiter.wakeup.calls for waiter in self.order}
        woken = getattr(self, what)(index)
        for waiter in self.order:
            assert waiter.wakeup.calls - before.get(waiter, 0) == (1 if waiter is woken else 0), what
            assert is_head(waiter) == (waiter is self.order[0])
        assert self.queue.waiting() == [waiter.caller for waiter in self.order]
        assert bool(self.queues.by_key) == bool(self.order)
        assert [waiter for waiter in self.order if waiter.given is not None] in ([], self.order[:1])

    def enter(self, index: int) -> None:
        self.order.append(self.queue.enter(str(len(self.tokens) + len(self.order))))

    def leave(self, index: int) -> Waiter | None:
        if not self.order:
            return None
        waiter = self.order.pop(index % len(self.order))
        given, was_head = waiter.given, not index % (len(self.order) + 1)
        assert self.queues.leave(waiter) is given
        if given is not None:
            given.give_up()  # as a release does
        return self.order[0] if was_head and self.order else None

    def grant(self, index: int) -> None:
        """The server gives the lock to a thread of this process, if none has it."""
        given = self.order[0].given if self.order else None
        if (self.hold is not None and self.hold.held_at(0.1)) or given is not None:
            return
        self.counter += 1 + self.cohort
        self.hold = self.queue.held(token=self.counter)
        self.note(self.hold)

    def note(self, hold: Hold) -> None:
        assert all(token < hold.token for token in self.tokens)
        assert hold.token <= hold.token_floor == self.counter
        self.tokens.append(hold.token)

    def hand_over(self, index: int) -> Waiter | None:
        hold = self.hold
        if hold is None:
            return None
        head = self.order[0] if self.order else None
        may = head is not None and hold.state == HELD and hold.handovers < self.cohort and head.given is None
        passed = self.queues.hand_over(hold, 0.1)
        assert (passed is not None) == may
        if passed is None or head is None:
            return None
        assert not any(passed is each for each in self.given)
        self.given.append(passed)
        assert head.given is passed
        self.note(passed)
        return head

    def take(self, index: int) -> None:
        """The head takes the hold that it was given, and leaves with it at the next step."""
        if self.order and (taken := self.order[0].usable(0.1)) is not None:
            self.order[0].given = None
            assert taken is self.given[-1]
            self.hold = taken

    def release(self, index: int) -> None:
        if self.hold is not None:
            self.hold.give_up()


STEPS = st.sampled_from(["enter", "enter", "leave", "grant", "hand_over", "hand_over", "take", "release"])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(STEPS, st.integers(0, 7)), max_size=60))
def test_oldest_waiter_is_head_and_at_most_one_waiter_has_a_hold(cohort: int, steps: list[tuple[str, int]]) -> None:
    model = Model(cohort)
    for what, index in steps:
        model.step(what, index)
    while model.order:
        model.step("leave", 0)
    assert model.queues.by_key == {}
