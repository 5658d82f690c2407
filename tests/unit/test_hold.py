"""The state of one acquisition: what may follow what, and who makes the move when two want to."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Iterator

import pytest

from handfast.core import renewal
from handfast.core.hold import HELD, LOST, RELEASED, RELEASING, TRANSITIONS, Hold
from tests.support.fake_node import lock_request

STATES = (HELD, RELEASING, RELEASED, LOST)
PATHS = {HELD: (), RELEASING: (RELEASING,), RELEASED: (RELEASING, RELEASED), LOST: (LOST,)}


def hold_of(ttl: float = 1.0, sent: float = 100.0) -> Hold:
    request = lock_request(1, ttl=ttl)
    return Hold(request, b"host:1::nonce", ttl, sent + request.settings.terms.validity, sent, 1, 7)


def move(hold: Hold, to: str) -> bool:
    """Try to bring it there; True if it moved."""
    before = hold.state
    if to == RELEASED:
        hold.end()
        return hold.state != before
    return hold.leave() if to == RELEASING else hold.lose("because")


def in_state(state: str) -> Hold:
    hold = hold_of()
    for step in PATHS[state]:
        assert move(hold, step)
    assert hold.state == state
    return hold


@pytest.mark.parametrize(("at", "to"), list(itertools.product(STATES, [RELEASING, RELEASED, LOST])))
def test_only_the_transitions_of_the_table_are_made(at: str, to: str) -> None:
    hold = in_state(at)
    assert move(hold, to) is ((at, to) in TRANSITIONS)
    assert hold.state == (to if (at, to) in TRANSITIONS else at)


@pytest.mark.parametrize("final", [RELEASED, LOST])
def test_released_and_lost_are_final(final: str) -> None:
    assert not any(at == final for at, _ in TRANSITIONS)
    hold = in_state(final)
    hold.confirm(200.0, 201.0, 1)
    renewal.expire(hold, 1e9)
    for to in (RELEASING, LOST, RELEASED):
        move(hold, to)
    assert hold.state == final


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_of_two_threads_that_race_to_leave_exactly_one_wins() -> None:
    rounds = 1500
    holds = [hold_of() for _ in range(rounds)]
    won: dict[str, list[bool]] = {RELEASING: [], LOST: []}
    start = threading.Barrier(2)

    def race(to: str) -> None:
        for hold in holds:
            start.wait()
            won[to].append(move(hold, to))

    threads = [threading.Thread(target=race, args=(to,)) for to in won]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, hold in enumerate(holds):
        assert won[RELEASING][i] + won[LOST][i] == 1
        assert hold.state == (RELEASING if won[RELEASING][i] else LOST)


def test_watchers_are_called_once_for_a_loss_and_never_for_a_release() -> None:
    lost, released = hold_of(), hold_of()
    calls: list[str] = []
    for hold, word in ((lost, "lost"), (released, "released")):
        hold.watch(lambda word=word: calls.append(word))
        hold.watch(lambda word=word: calls.append(word))
    assert lost.lose("because")
    assert not lost.lose("again")
    assert released.leave()
    released.end()
    assert calls == ["lost", "lost"]
    assert lost.reason == "because"


def test_of_many_that_declare_a_loss_the_watchers_hear_once() -> None:
    for _ in range(100):
        hold, calls = hold_of(), []
        hold.watch(lambda calls=calls: calls.append(1))
        threads = [threading.Thread(target=hold.lose, args=("because",)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert calls == [1]


def test_who_begins_to_watch_a_lost_hold_is_told_at_once() -> None:
    hold = in_state(LOST)
    calls: list[int] = []
    hold.watch(lambda: calls.append(1))
    assert calls == [1]


@pytest.mark.usefixtures("restless")
def test_who_begins_to_watch_while_it_is_being_lost_is_told() -> None:
    for _ in range(300):
        hold, told = hold_of(), threading.Event()
        loser = threading.Thread(target=hold.lose, args=("because",))
        loser.start()
        hold.watch(told.set)
        loser.join()
        assert told.is_set()


# -- deadlines -----------------------------------------------------------------------------------------------------


def test_a_renewal_counts_from_its_send() -> None:
    hold = hold_of(sent=100.0)
    hold.confirm(100.4, 100.4 + 0.988, 1)
    assert hold.deadline == pytest.approx(101.388)
    assert hold.renew_from == 100.4


def test_an_older_renewal_confirmed_late_does_not_shorten_a_newer_one() -> None:
    hold = hold_of(sent=100.0)
    hold.confirm(100.6, 101.588, 1)
    hold.confirm(100.3, 101.288, 1)
    assert hold.deadline == pytest.approx(101.588)


def test_an_older_renewal_confirmed_late_does_not_bring_the_next_one_forward() -> None:
    hold = hold_of(sent=100.0)
    hold.confirm(100.6, 101.588, 1)
    hold.confirm(100.3, 101.288, 1)
    assert hold.renew_from == 100.6


def test_a_longer_renewal_under_way_does_not_undo_a_shorter_extension() -> None:
    """The servers may have carried out the renewal first and the extension last: the key then ends with that."""
    hold = hold_of(ttl=3.0, sent=100.0)
    hold.promise(101.05, 0.5, 101.55 - 0.007)
    hold.confirm(101.0, 103.97 - 0.002, 1)
    assert hold.deadline <= 101.55


def test_due_is_a_third_of_the_ttl_then_every_twentieth_and_never_beyond_the_deadline() -> None:
    hold = hold_of(sent=100.0)
    assert renewal.due(hold, 100.0) == pytest.approx(100.0 + 1 / 3)
    hold.retrying = True
    assert renewal.due(hold, 100.4) == pytest.approx(100.45)
    assert renewal.due(hold, 100.98) == hold.deadline
    hold.retrying = False
    hold.renew_until = 0.0
    assert renewal.due(hold, 100.0) == hold.deadline
    hold.renew_until = 100.2
    assert renewal.due(hold, 100.0) == hold.deadline


def test_a_hold_expires_at_its_deadline_and_not_before() -> None:
    hold = hold_of(sent=100.0)
    assert not renewal.expire(hold, hold.deadline - 1e-6)
    assert hold.state == HELD
    assert renewal.expire(hold, hold.deadline)
    assert not renewal.expire(hold, hold.deadline + 1)
    assert hold.state == LOST
