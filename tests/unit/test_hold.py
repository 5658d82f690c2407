"""The state of one acquisition: its transitions, and two callers that want one at the same time."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from handfast.core import renew
from handfast.core.hold import HELD, LOST, RELEASED, RELEASING, Hold
from handfast.protocol.commands import Identity
from tests.support.fake_io import lock_request

STATES = (HELD, RELEASING, RELEASED, LOST)
EVENTS = ("begin_release", "finish_release", "mark_lost")
PATHS = {HELD: (), RELEASING: EVENTS[:1], RELEASED: EVENTS[:2], LOST: EVENTS[2:]}
TRANSITIONS = {
    (HELD, "begin_release"): RELEASING,
    (RELEASING, "finish_release"): RELEASED,
    (HELD, "mark_lost"): LOST,
}


def hold_of(ttl: float = 1.0, sent: float = 100.0) -> Hold:
    request = lock_request(1, ttl=ttl)
    deadline = sent + request.config.timing.validity
    return Hold(request, Identity(b"host:1::nonce", b"host:1::nonce"), ttl, deadline, sent, 1, 7)


def fire(hold: Hold, event: str) -> bool:
    """Fire an event; True if it made a transition."""
    before = hold.state
    if event == "mark_lost":
        moved = hold.mark_lost("because")
    elif event == "begin_release":
        moved = hold.begin_release()
    else:
        hold.finish_release()
        moved = hold.state != before
    return moved


def in_state(state: str) -> Hold:
    hold = hold_of()
    for event in PATHS[state]:
        assert fire(hold, event)
    assert hold.state == state
    return hold


@pytest.mark.parametrize(("state", "event"), list(itertools.product(STATES, EVENTS)))
def test_hold_makes_the_transitions_of_the_table_and_no_other(state: str, event: str) -> None:
    hold = in_state(state)
    assert fire(hold, event) is ((state, event) in TRANSITIONS)
    assert hold.state == TRANSITIONS.get((state, event), state)


@pytest.mark.parametrize("final", [RELEASED, LOST])
def test_released_and_lost_are_final(final: str) -> None:
    hold = in_state(final)
    hold.confirm(200.0, 201.0, 1)
    renew.expire(hold, 1e9)
    for event in EVENTS:
        fire(hold, event)
    hold.give_up()
    assert hold.state == final


@pytest.mark.parametrize("state", [HELD, RELEASING, RELEASED])
def test_give_up_releases_a_hold_that_is_not_lost(state: str) -> None:
    hold = in_state(state)
    hold.give_up()
    assert hold.state == RELEASED


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


class Permit:
    """The permit of a hold. Other threads run right after a thread has tried to take it."""

    def __init__(self, hold: Hold, others: Callable[[], object], *, taken: bool) -> None:
        self.others = others
        self.taken = taken
        hold._permit = self  # type: ignore[assignment]

    def pop(self) -> int:
        others, self.others = self.others, lambda: None
        before, self.taken = self.taken, True
        others()
        if before:
            raise IndexError
        return 0


def test_loss_that_is_too_late_leaves_no_trace_on_a_released_hold() -> None:
    hold, seen = in_state(RELEASED), list[str]()
    Permit(hold, lambda: seen.extend([hold.reason, hold.why_ended]), taken=True)
    assert not hold.mark_lost("the deadline passed")
    assert seen == ["", ""]
    assert not renew.expire(hold, 1e9)
    assert hold.why_ended == ""


def test_loss_that_is_too_late_does_not_erase_what_the_release_has_found() -> None:
    hold = in_state(RELEASING)

    def conclude() -> None:
        hold.reason = "its deadline had passed when it was released"
        hold.finish_release()

    Permit(hold, conclude, taken=True)
    assert not hold.mark_lost("the deadline passed")
    assert hold.reason == hold.why_ended == "its deadline had passed when it was released"


def test_release_that_a_loss_under_way_refuses_finds_the_reason() -> None:
    """Otherwise the block would end as if the lease had been released in time."""
    hold, seen = hold_of(), list[object]()
    Permit(hold, lambda: seen.extend([hold.begin_release(), hold.why_ended, hold.state]), taken=False)
    assert hold.mark_lost("the deadline passed")
    assert seen == [False, "the deadline passed", HELD]
    assert hold.why_ended == hold.reason == "the deadline passed"


@pytest.mark.usefixtures("restless")
def test_exactly_one_of_two_racing_threads_leaves_the_held_state() -> None:
    rounds = 1500
    holds = [hold_of() for _ in range(rounds)]
    won: dict[str, list[bool]] = {"begin_release": [], "mark_lost": []}
    start = threading.Barrier(2)

    def race(event: str) -> None:
        for hold in holds:
            start.wait()
            won[event].append(fire(hold, event))

    threads = [threading.Thread(target=race, args=(event,)) for event in won]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, hold in enumerate(holds):
        assert won["begin_release"][i] + won["mark_lost"][i] == 1
        assert hold.state == (RELEASING if won["begin_release"][i] else LOST)


def test_listeners_are_called_once_for_a_loss_and_never_for_a_release() -> None:
    lost, released = hold_of(), hold_of()
    calls: list[str] = []
    for hold, word in ((lost, "lost"), (released, "released")):
        hold.when_lost(lambda word=word: calls.append(word))
        hold.when_lost(lambda word=word: calls.append(word))
    assert lost.mark_lost("because")
    assert not lost.mark_lost("again")
    assert released.begin_release()
    released.finish_release()
    assert calls == ["lost", "lost"]
    assert lost.reason == "because"


def test_listeners_are_called_once_when_several_threads_declare_the_loss() -> None:
    for _ in range(100):
        hold, calls = hold_of(), []
        hold.when_lost(lambda calls=calls: calls.append(1))
        threads = [threading.Thread(target=hold.mark_lost, args=("because",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == [1]


def test_new_listener_of_a_lost_hold_is_called_at_once() -> None:
    hold = in_state(LOST)
    calls: list[int] = []
    hold.when_lost(lambda: calls.append(1))
    assert calls == [1]


@pytest.mark.usefixtures("restless")
def test_listener_that_is_added_during_the_loss_is_called() -> None:
    for _ in range(300):
        hold, told = hold_of(), threading.Event()
        loser = threading.Thread(target=hold.mark_lost, args=("because",))
        loser.start()
        hold.when_lost(told.set)
        loser.join()
        assert told.is_set()


# -- deadlines -----------------------------------------------------------------------------------------------------


def test_renewal_counts_from_the_moment_it_was_sent() -> None:
    hold = hold_of(sent=100.0)
    hold.confirm(100.4, 100.4 + 0.988, 1)
    assert hold.deadline == pytest.approx(101.388)
    assert hold.renew_from == 100.4


def test_older_renewal_confirmed_late_does_not_shorten_a_newer_one() -> None:
    hold = hold_of(sent=100.0)
    hold.confirm(100.6, 101.588, 1)
    hold.confirm(100.3, 101.288, 1)
    assert hold.deadline == pytest.approx(101.588)
    assert hold.renew_from == 100.6


def test_longer_renewal_under_way_does_not_undo_a_shorter_extension() -> None:
    """The servers may have carried out the renewal first and the extension last, so the key ends with the extension."""
    hold = hold_of(ttl=3.0, sent=100.0)
    hold.promise(101.05, 0.5, 101.55 - 0.007)
    hold.confirm(101.0, 103.97 - 0.002, 1)
    assert hold.deadline <= 101.55


def test_renewal_is_due_after_a_third_of_the_ttl_then_every_twentieth_and_never_after_the_deadline() -> None:
    hold = hold_of(sent=100.0)
    assert renew.due(hold, 100.0) == pytest.approx(100.0 + 1 / 3)
    hold.retrying = True
    assert renew.due(hold, 100.4) == pytest.approx(100.45)
    assert renew.due(hold, 100.98) == hold.deadline
    hold.retrying = False
    hold.renew_until = 0.0
    assert renew.due(hold, 100.0) == hold.deadline
    hold.renew_until = 100.2
    assert renew.due(hold, 100.0) == hold.deadline


def test_hold_expires_at_its_deadline_and_not_before() -> None:
    hold = hold_of(sent=100.0)
    assert not renew.expire(hold, hold.deadline - 1e-6)
    assert hold.state == HELD
    assert renew.expire(hold, hold.deadline)
    assert not renew.expire(hold, hold.deadline + 1)
    assert hold.state == LOST
