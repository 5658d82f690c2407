"""The line of one process: who is next, who is woken, and what a cohort may pass on without asking a server."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handfast.core import mutex
from handfast.core.commands import Request
from handfast.core.hold import HELD, LOST, RELEASED, Hold
from handfast.core.line import YIELD, Line, Lines, Place, still_held
from handfast.errors import ConfigError
from handfast.net.threads import run
from tests.support.fake_node import ModelBell, ModelDriver, ModelKeeper, ModelNode, lock_request

TTL = 1.0


class Row(Lines):
    """Lines, with short words for what the tests do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(nullcontext(), lambda text: None, lambda place, seconds, outcome: None)
        self.request = lock_request(1, ttl=TTL, **options)

    def enter(self, request: Request | None = None, wait: float | None = None, who: str = "") -> Place:
        request = request or self.request
        return self.join(request, request.settings.terms, ModelBell(), 0.0, wait, who)

    def take(self, place: Place) -> Hold | None:
        """As the head does it: what it was given is its own now."""
        given, place.given = place.given, None
        return given

    def held(self, token: int = 100, at: float = 0.0) -> Hold:
        """What the server has just given to one of a cohort; `token` is the last of those that were counted."""
        hold = Hold(self.request, b"host:1::abc", TTL, at + 0.988 * TTL, at, 1, token)
        hold.form_cohort()
        self.took(hold)
        return hold


def first(place: Place) -> bool:
    return place.line.head is place


def rings(*places: Place) -> list[int]:
    return [place.bell.rings for place in places]  # type: ignore[attr-defined]


# -- order -------------------------------------------------------------------------------------------------------------


def test_the_first_to_come_is_the_head_and_is_not_rung() -> None:
    row = Row()
    a, b, c = row.enter(), row.enter(), row.enter()
    assert [first(a), first(b), first(c)] == [True, False, False]
    assert rings(a, b, c) == [0, 0, 0]


def test_they_come_to_the_head_in_the_order_of_their_coming_each_rung_once() -> None:
    row = Row()
    places = [row.enter(who=str(i)) for i in range(5)]
    assert row.waiting(row.request) == ["0", "1", "2", "3", "4"]
    for i, place in enumerate(places):
        assert first(place)
        row.leave(place)
        assert rings(*places) == [0] + [1] * min(i + 1, 4) + [0] * (3 - i)


def test_one_that_leaves_from_the_middle_wakes_nobody_and_is_passed_over() -> None:
    row = Row()
    a, b, c = row.enter(who="a"), row.enter(who="b"), row.enter(who="c")
    row.leave(b)
    assert rings(a, b, c) == [0, 0, 0]
    assert first(a)
    assert row.waiting(row.request) == ["a", "c"]
    row.leave(a)
    assert first(c)
    assert rings(a, b, c) == [0, 0, 1]


def test_the_last_one_takes_the_line_away() -> None:
    row = Row()
    a, b = row.enter(), row.enter()
    row.leave(a)
    assert row.waited_for(row.request)
    row.leave(b)
    assert row.by_keys == {}
    assert not row.waited_for(row.request)
    assert row.waiting(row.request) == []


def test_leaving_twice_is_harmless_and_does_not_touch_a_line_that_has_begun_since() -> None:
    row = Row()
    a = row.enter()
    row.leave(a)
    b = row.enter()
    assert row.leave(a) is None
    assert first(b)
    assert row.waited_for(row.request)
    c = row.enter()
    row.leave(a)
    assert [first(b), first(c)] == [True, False]


def test_leaving_again_after_an_interrupt_wakes_the_next_that_was_not_woken() -> None:
    row = Row()
    a, b = row.enter(), row.enter()
    ring, b.bell.set = b.bell.set, _interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        row.leave(a)
    b.bell.set = ring  # type: ignore[method-assign]
    row.leave(a)
    assert first(b)
    assert rings(b) == [1]


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_different_locks_have_different_lines() -> None:
    row = Row()
    other, both = lock_request(1, "b"), lock_request(1)
    both = Request(both.settings, ("a", "b"), None)
    places = [row.enter(), row.enter(other), row.enter(both)]
    assert [first(place) for place in places] == [True, True, True]
    assert len(row.by_keys) == 3


def test_closing_wakes_everybody() -> None:
    row = Row()
    places = [row.enter(), row.enter(), row.enter(lock_request(1, "b"))]
    row.close()
    assert row.closed
    assert rings(*places) == [1, 1, 1]


def test_a_place_knows_how_long_it_may_still_wait() -> None:
    row = Row()
    patient, hasty = row.enter(), row.enter(wait=2.0)
    assert (patient.until, hasty.until) == (None, 2.0)
    assert [patient.at_most(5.0, 1.0), hasty.at_most(5.0, 1.5), hasty.at_most(0.1, 1.5)] == [5.0, 0.5, 0.1]
    assert hasty.at_most(5.0, 3.0) == 0.0
    assert [patient.sooner(9.0), hasty.sooner(9.0), hasty.sooner(1.0)] == [9.0, 2.0, 1.0]


def test_who_has_to_wait_is_told_of_once_if_somebody_wants_to_know() -> None:
    told: list[tuple[Place, float, str]] = []
    lines = Lines(nullcontext(), lambda text: None, lambda *said: told.append(said))
    request = lock_request(1)
    place = lines.join(request, request.settings.terms, ModelBell(), 0.0, None, "me")
    lines.began(place)
    assert told == []
    lines.telling = True
    lines.began(place)
    lines.began(place)
    assert told == [(place, 0.0, "")]


class EventBell(threading.Event):
    """Wakes one thread."""

    def set(self) -> None:
        self.set()

    note = set  # noqa: A003


def test_threads_that_come_and_go_are_served_one_at_a_time_and_none_is_forgotten() -> None:
    lines = Lines(threading.Lock(), lambda text: None, lambda place, seconds, outcome: None)
    request = lock_request(1)
    inside: list[int] = []
    most: list[int] = []

    def come_and_go(me: int) -> None:
        for turn in range(100):
            bell = EventBell()
            place = lines.join(request, request.settings.terms, bell, 0.0, None, "")
            if turn % 3:  # the others give up at once
                while not first(place):
                    assert bell.wait(20), "nobody has woken it"
                    bell.clear()
                inside.append(me)
                most.append(len(inside))
                inside.remove(me)
            lines.leave(place)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(come_and_go, me) for me in range(6)]:
            done.result(timeout=40)
    assert lines.by_keys == {}
    assert max(most) == 1


# -- a cohort ----------------------------------------------------------------------------------------------------------


def test_what_is_passed_on_is_the_same_lock_under_a_new_token() -> None:
    row = Row(cohort=3)
    head, hold = row.enter(), row.held(token=100)
    assert (hold.token, hold.floor) == (97, 100)
    passed = row.pass_on(hold, 0.1)
    assert passed is not None
    assert head.given is passed
    assert rings(head) == [1]
    assert (passed.owner, passed.keys, passed.deadline, passed.votes) == (
        hold.owner,
        hold.keys,
        hold.deadline,
        hold.votes,
    )
    assert (passed.token, passed.floor) == (98, 100)
    assert (hold.state, passed.state) == (RELEASED, HELD)
    assert row.take(head) is passed
    assert row.leave(head) is None


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_it_is_passed_on_as_often_as_the_cohort_says_each_with_a_larger_token_below_the_floor(fence: bool) -> None:
    row = Row(cohort=3, fence=fence)
    hold = row.held(token=100 if fence else 0)
    tokens = [hold.token]
    floor = hold.floor
    places = [row.enter() for _ in range(5)]
    for place in places[:3]:
        assert row.pass_on(hold, 0.1) is not None
        taken = row.take(place)
        assert taken is not None
        row.leave(place)
        hold = taken
        tokens.append(hold.token)
        assert hold.floor == floor
    assert row.pass_on(hold, 0.1) is None
    assert hold.state == HELD, "and is released instead"
    assert tokens == ([97, 98, 99, 100] if fence else [0, 0, 0, 0])
    assert rings(*places) == [1, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("deadline", "now", "passed"),
    [
        (0.988, 0.1, True),
        (0.988, 0.487, True),
        (0.988, 0.489, False),  # less than half of its ttl is left
        (1.9, 0.999, True),
        (1.9, 1.0, False),  # a ttl since it was taken from the server: it was renewed, but its turn is over
    ],
)
def test_it_is_passed_on_only_while_it_lasts_and_its_turn_does(deadline: float, now: float, passed: bool) -> None:
    row = Row(cohort=3)
    row.enter()
    hold = row.held()
    hold.deadline = deadline
    assert (row.pass_on(hold, now) is not None) == passed
    assert hold.state == (RELEASED if passed else HELD)


def test_the_turn_does_not_begin_anew_with_each_of_the_cohort() -> None:
    row = Row(cohort=3)
    place, hold = row.enter(), row.held()
    hold.deadline = 1.9
    assert row.pass_on(hold, 0.9) is not None
    passed = row.take(place)
    row.leave(place)
    row.enter()
    assert passed is not None
    assert row.pass_on(passed, 1.0) is None


def test_it_is_not_passed_on_where_nobody_waits() -> None:
    row = Row(cohort=3)
    hold = row.held()
    assert row.pass_on(hold, 0.1) is None
    row.enter(lock_request(1, "b", cohort=3))
    assert row.pass_on(hold, 0.1) is None
    assert hold.state == HELD


def test_it_is_not_passed_on_to_one_that_wants_something_else() -> None:
    row = Row(cohort=3)
    request = row.request
    alike, longer = request.settings.terms, request.settings.terms_for(2.0)
    for other, terms in [
        (request, longer),
        (Request(request.settings, "a", b"job-42"), alike),
        (lock_request(1, ttl=TTL, cohort=3, fence=False), alike),
    ]:
        place = row.join(other, terms, ModelBell(), 0.0, None, "")
        assert place.line.keys == (request.key or request.keys)
        hold = row.held()
        assert row.pass_on(hold, 0.1) is None
        assert (hold.state, place.given) == (HELD, None)
        row.leave(place)


def test_it_is_not_passed_over_a_head_that_wants_something_else() -> None:
    row = Row(cohort=3)
    head = row.enter(Request(row.request.settings, "a", b"job-42"))
    behind = row.enter()
    assert row.pass_on(row.held(), 0.1) is None
    assert (head.given, behind.given) == (None, None)


def test_it_is_not_passed_on_without_a_cohort_nor_under_an_owner_that_others_may_have() -> None:
    row = Row()
    row.enter()
    assert row.pass_on(Hold(row.request, b"me", TTL, 0.988, 0.0, 1, 5), 0.1) is None
    row = Row(cohort=3)
    row.enter()
    io = ModelDriver([ModelNode(lambda: 0.0)])
    presented = Request(row.request.settings, "a", b"job-42")
    hold = run(mutex.acquire(io, presented, presented.settings.terms, 0, ModelKeeper(io)))
    assert hold.presented
    assert row.pass_on(hold, 0.1) is None


@pytest.mark.parametrize("end", [lambda hold: hold.lose("a test"), lambda hold: hold.leave()], ids=["lost", "released"])
def test_what_is_not_held_any_more_is_not_passed_on(end: Any) -> None:
    row = Row(cohort=3)
    place, hold = row.enter(), row.held()
    end(hold)
    assert row.pass_on(hold, 0.1) is None
    assert place.given is None
    assert hold.state != HELD


def test_one_that_leaves_before_it_has_taken_what_it_was_given_hands_it_back() -> None:
    row = Row(cohort=3)
    a, b = row.enter(), row.enter()
    passed = row.pass_on(row.held(), 0.1)
    assert row.leave(a) is passed
    assert first(b)
    assert (rings(b), b.given) == ([1], None)
    assert row.leave(a) is None


def test_nobody_is_given_two() -> None:
    row = Row(cohort=3)
    place = row.enter()
    assert row.pass_on(row.held(), 0.1) is place.given
    other = row.held(token=200)
    assert row.pass_on(other, 0.1) is None
    assert other.state == HELD


def test_letting_go_wakes_the_head_and_lets_those_of_other_processes_go_first() -> None:
    row = Row(cohort=3)
    a, b = row.enter(), row.enter()
    hold = row.held()
    row.letting_go(hold, 3.0)
    assert a.line.yields == 3.0 + YIELD, "nobody of ours before it is known whether others want it"
    row.let_go(hold, others=False)
    assert a.line.yields == 0.0
    assert rings(a, b) == [1, 0]
    row.letting_go(hold, 3.0)
    row.let_go(hold, others=True)
    assert a.line.yields == 3.0 + YIELD
    row.leave(a)
    row.leave(b)
    row.letting_go(hold, 4.0)
    row.let_go(hold, others=False)
    assert row.by_keys == {}


def test_only_what_was_got_last_is_passed_on() -> None:
    row = Row(cohort=3)
    place, old = row.enter(), row.held()
    new = row.held(token=200)
    assert row.pass_on(old, 0.1) is None, "the server has given the lock anew, so it was lost"
    assert place.given is None
    assert row.pass_on(new, 0.1) is place.given


def test_a_holder_is_relied_on_until_its_deadline_or_its_end() -> None:
    hold = Row(cohort=3).held()
    assert still_held(hold, 0.1)
    assert not still_held(hold, hold.deadline)
    assert not still_held(None, 0.1)
    hold.lose("a test")
    assert hold.state == LOST
    assert not still_held(hold, 0.1)


# -- anything in any order ---------------------------------------------------------------------------------------------


class Watched:
    """A row, and what must be true of it after every step."""

    def __init__(self, cohort: int) -> None:
        self.row = Row(cohort=cohort)
        self.cohort = cohort
        self.order: list[Place] = []
        self.hold: Hold | None = None
        """What one of this process holds."""
        self.tokens: list[int] = []
        self.counter = 0
        self.was_given: list[Hold] = []

    def step(self, what: str, index: int) -> None:
        before = {place: place.bell.rings for place in self.order}  # type: ignore[attr-defined]
        rung = getattr(self, what)(index)
        for place in self.order:
            more = place.bell.rings - before.get(place, 0)  # type: ignore[attr-defined]
            assert more == (1 if place is rung else 0), what
        for place in self.order:
            assert first(place) == (place is self.order[0])
        assert self.row.waiting(self.row.request) == [place.who for place in self.order]
        assert bool(self.row.by_keys) == bool(self.order)
        assert [place for place in self.order if place.given is not None] in ([], self.order[:1])

    def join(self, index: int) -> None:
        self.order.append(self.row.enter(who=str(len(self.tokens) + len(self.order))))

    def leave(self, index: int) -> Place | None:
        if not self.order:
            return None
        place = self.order.pop(index % len(self.order))
        given, was_first = place.given, not index % (len(self.order) + 1)
        assert self.row.leave(place) is given
        if given is not None:
            given.leave()  # and is released by somebody
        return self.order[0] if was_first and self.order else None

    def grant(self, index: int) -> None:
        """The server gives it to one of this process, if none has it."""
        given = self.order[0].given if self.order else None
        if still_held(self.hold, 0.1) or given is not None:
            return
        self.counter += 1 + self.cohort
        self.hold = self.row.held(token=self.counter)
        self.note(self.hold)

    def note(self, hold: Hold) -> None:
        assert all(token < hold.token for token in self.tokens)
        assert hold.token <= hold.floor == self.counter
        self.tokens.append(hold.token)

    def pass_on(self, index: int) -> Place | None:
        hold = self.hold
        if hold is None:
            return None
        head = self.order[0] if self.order else None
        may = head is not None and hold.state == HELD and hold.passes < self.cohort and head.given is None
        passed = self.row.pass_on(hold, 0.1)
        assert (passed is not None) == may
        if passed is None or head is None:
            return None
        assert not any(passed is each for each in self.was_given)
        self.was_given.append(passed)
        assert head.given is passed
        self.note(passed)
        return head

    def take(self, index: int) -> None:
        """The head takes what it was given, and leaves with it at the next step."""
        if self.order and (taken := self.row.take(self.order[0])) is not None:
            assert taken is self.was_given[-1]
            self.hold = taken

    def release(self, index: int) -> None:
        if self.hold is not None:
            self.hold.leave()


STEPS = st.sampled_from(["join", "join", "leave", "grant", "pass_on", "pass_on", "take", "release"])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 4), st.lists(st.tuples(STEPS, st.integers(0, 7)), max_size=60))
def test_whatever_happens_the_oldest_is_first_and_no_more_than_one_is_given_anything(
    cohort: int, steps: list[tuple[str, int]]
) -> None:
    watched = Watched(cohort)
    for what, index in steps:
        watched.step(what, index)
    while watched.order:
        watched.step("leave", 0)
    assert watched.row.by_keys == {}


def test_leaving_twice_takes_nothing_from_who_has_joined_since() -> None:
    """As after an interrupt: the line is still known, and has no head."""
    row = Row()
    for crowded in (False, True):
        first = row.enter()
        if crowded:
            row.leave(row.enter())
        line = first.line
        row.leave(first)
        row.by_keys[line.keys] = line  # struck before it was forgotten
        second = row.enter(who="second")
        assert second.line is line
        row.leave(first)
        assert line.head is second
        assert row.waiting(row.request) == ["second"]
        row.leave(second)
        assert row.by_keys == {}


def test_a_line_that_somebody_leads_while_all_are_closed_disturbs_nobody() -> None:
    row = Row()
    terms = row.request.settings.terms

    class Slow(Line):
        @property
        def places(self) -> list[Place]:
            assert row.lead(lock_request(1, name="b"), terms, ModelBell(), 0.0, None, "late") is None
            return super().places

    place = row.enter()
    slow = row.by_keys[place.line.keys] = place.line = Slow()
    slow.keys, slow.head = row.request.key, place
    row.close()
    assert place.bell.is_set
    row.leave(place)
    assert row.by_keys == {}


def test_nobody_joins_a_line_of_a_client_that_is_closed() -> None:
    row = Row()
    row.close()
    with pytest.raises(ConfigError, match="closed"):
        row.enter()
    assert row.lead(row.request, row.request.settings.terms, ModelBell(), 0.0, None, "late") is None
    assert row.by_keys == {}
