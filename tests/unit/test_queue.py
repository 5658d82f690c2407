"""How the head of a line waits for servers, in virtual time: it sleeps through nothing, and asks no more than it must."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
import redis

from handfast import aio, lua
from handfast.backoff import steady
from handfast.core import commands, mutex
from handfast.core.effects import Payloads
from handfast.core.fair import granted
from handfast.core.hold import Hold
from handfast.core.line import YIELD, Line, Place
from handfast.core.lineup import line_up
from handfast.core.mutex import OUTAGE
from handfast.core.waiting import LOCAL_FIRST, LOOK_AGAIN, LOOK_AT_DEAF, OVERDUE
from handfast.errors import ConfigError, Contended, HandfastError, NoQuorum
from handfast.net.link import CONNECT_TIMEOUT
from handfast.net.threads import run
from handfast.testing import Server, available
from tests.support.eventually import eventually_async
from tests.support.fake_node import ModelBell, ModelDriver, ModelKeeper, ModelNode, commands_in, lock_request

KEY: Final = b"handfast:{a}"
QUEUE: Final = b"handfast:{a}:q"
RIVAL: Final = b"a rival"
SLACK: Final = 0.003
"""Seconds: a few looks at the clock, and a round trip or two."""


class Scene(ModelDriver):
    """A waiter on nodes with a clock of their own, and what it has sent when."""

    tick = 1e-6
    latency = 0.0005

    def __init__(self, count: int = 1, **options: Any) -> None:
        super().__init__([ModelNode(lambda: self.time) for _ in range(count)])
        self.request = lock_request(count, **options)
        self.terms = self.request.settings.terms
        self.keeper = ModelKeeper(self)
        self.lines = self.keeper.lines
        self.rival = RIVAL
        self.sent: list[tuple[float, str]] = []
        """When which command was sent to how ever many nodes."""

    def _send(self, payloads: Payloads) -> list[int]:
        payload = payloads if isinstance(payloads, bytes) else next((each for each in payloads if each), b"")
        names = [words[0].decode() for words in commands_in(payload)]
        self.sent += [(self.time, name) for name in names]
        return super()._send(payloads)

    def times(self, name: str) -> list[float]:
        return [at for at, each in self.sent if each == name]

    def looks(self) -> list[float]:
        return self.times("PTTL")

    def attempts(self) -> list[float]:
        return self.times("EVALSHA")

    def rival_takes(self, px: int | None = 10_000, nodes: int | None = None) -> None:
        for node in self.nodes[:nodes]:
            node.put(KEY, self.rival, px)

    def rival_goes(self) -> None:
        for node in self.nodes:
            if node.data.get(KEY) == self.rival:
                node.drop(KEY)

    def rival_renews(self) -> None:
        for node in self.nodes:
            node.run(commands.extend(self.request, self.rival, b"10000"))

    def line(self) -> Line:
        (line,) = self.lines.by_keys.values()
        return line

    def acquire(self, wait: float | None = None) -> Hold:
        work: Awaitable[Any] = (
            self.keeper._line_up(self.request, self.terms, wait, self.now())
            if self.request.settings.fair
            else mutex.acquire(self, self.request, self.terms, wait, self.keeper)
        )
        hold: Hold = run(work)  # type: ignore[arg-type]
        return hold

    def fails(self, wait: float | None = None) -> HandfastError:
        with pytest.raises(HandfastError) as raised:
            self.acquire(wait)
        assert self.lines.by_keys == {}
        return raised.value


COUNTS = pytest.mark.parametrize("count", [1, 3, 5])
FAIR = pytest.mark.parametrize("fair", [True, False], ids=["fair", "plain"])


# -- no wake-up is lost ------------------------------------------------------------------------------------------------


@COUNTS
def test_a_release_wakes_the_waiter_at_once(count: int) -> None:
    io = Scene(count)
    io.rival_takes()
    io.later(3.0, io.rival_goes)
    hold = io.acquire()
    assert hold.renew_from == pytest.approx(3.0, abs=SLACK)
    assert len(io.looks()) == 1, "nobody polls"


@COUNTS
@pytest.mark.parametrize("names", ["one", "several"])
def test_a_release_between_the_look_and_the_sleep_is_noticed(count: int, names: str) -> None:
    io = Scene(count)
    if names == "several":
        io.request.spelt, io.request.key = ("a", "b"), b""
    io.rival_takes()
    # The first to answer is the attempt, the second the look.
    io.answered = [lambda: None, io.rival_goes]
    assert io.acquire().renew_from < SLACK


@COUNTS
def test_a_release_between_the_attempt_and_the_look_is_noticed(count: int) -> None:
    io = Scene(count)
    io.rival_takes()
    io.answered = [io.rival_goes]
    assert io.acquire().renew_from < SLACK


def test_a_release_in_the_middle_of_a_look_is_noticed() -> None:
    """Some nodes are read before it and some after: those say that they are free, these push."""
    io = Scene(3)
    io.rival_takes()
    answers = io._answers
    looked: list[int] = []

    def and_then(node: int) -> list[Any]:
        found = answers(node)
        if io.log[node] and io.log[node][-1][0] == "pttl":
            looked.append(node)
            if len(looked) == 2:
                io.rival_goes()
        return found

    io._answers = and_then  # type: ignore[method-assign]
    assert io.acquire().renew_from < SLACK
    assert len(looked) >= 2


@COUNTS
def test_a_release_by_a_majority_of_the_nodes_is_enough(count: int) -> None:
    io = Scene(count)
    io.rival_takes()

    def most_go() -> None:
        for node in io.nodes[: count // 2 + 1]:
            node.drop(KEY)

    io.later(0.5, most_go)
    assert io.acquire().renew_from == pytest.approx(0.5, abs=SLACK)


def test_one_node_of_three_that_changes_is_no_reason_to_try() -> None:
    io = Scene(3)
    io.rival_takes()
    for i in range(1, 100):
        io.later(0.01 * i, lambda: io.nodes[0].touch(KEY))
    io.later(2.0, io.rival_goes)
    assert io.acquire().renew_from == pytest.approx(2.0, abs=SLACK)
    assert len(io.attempts()) == 2


def test_a_lost_connection_is_a_change() -> None:
    """It would have told us, and does no more."""
    io = Scene(1)
    io.rival_takes()
    io.later(0.5, lambda: io.nodes[0].data.clear())  # unnoticed
    io.later(0.6, lambda: io.connection_lost(0))
    assert io.acquire().renew_from == pytest.approx(0.6, abs=SLACK)


def test_a_fair_waiter_whose_connection_was_lost_asks_again_and_keeps_its_place() -> None:
    io = Scene(1, fair=True)
    io.rival_takes()
    node = io.nodes[0]
    io.later(0.2, lambda: node.run(commands.claim(io.request, b"another", io.terms, b"theirs", b"")))
    io.later(0.5, lambda: io.connection_lost(0))
    io.later(0.8, lambda: node.run(commands.pass_on(io.request, RIVAL, b"")))
    node.channels[b"theirs"] = lambda push: None
    hold = io.acquire(5.0)
    assert len(io.attempts()) == 3, "briefly, to stay, and because it may have been told nothing"
    assert node.data[KEY] == hold.owner
    assert [commands.owner_in(claim) for claim in node.queues[QUEUE]] == [b"another"]


def test_a_fair_release_between_the_question_and_the_sleep_is_noticed() -> None:
    io = Scene(1, fair=True)
    io.rival_takes()
    io.answered = [lambda: io.nodes[0].run(commands.pass_on(io.request, RIVAL, b""))]
    hold = io.acquire(5.0)
    assert hold.renew_from < SLACK
    assert len(io.attempts()) == 1


def test_a_question_whose_answer_was_lost_leaves_no_second_claim() -> None:
    """The server was slow, not dead: it has heard the first question, and then hears the next."""
    io = Scene(1, fair=True)
    io.rival_takes()
    io._subscribe(0.0)
    silence(io)
    io.later(1.0, io.silent.clear)
    claims: list[int] = []
    io.later(2.0, lambda: claims.append(len(io.nodes[0].queues[QUEUE])))
    io.later(2.5, lambda: io.nodes[0].run(commands.pass_on(io.request, RIVAL, b"")))
    hold = io.acquire(5.0)
    assert claims == [1], "or the lock would be handed over to a waiter that is gone"
    assert io.nodes[0].data[KEY] == hold.owner
    assert io.nodes[0].queues[QUEUE] == []


# -- the net below -----------------------------------------------------------------------------------------------------


@COUNTS
def test_the_end_of_the_holders_ttl_is_noticed_though_nobody_tells_of_it(count: int) -> None:
    io = Scene(count)
    io.rival_takes(px=700)
    hold = io.acquire()
    assert 0.7 <= hold.renew_from <= 0.7 + OVERDUE + SLACK
    assert len(io.looks()) == 1


def test_the_end_of_a_fair_holders_ttl_is_noticed_though_nobody_tells_of_it() -> None:
    io = Scene(1, fair=True)
    io.rival_takes(px=700)
    hold = io.acquire()
    assert 0.7 <= hold.renew_from <= 0.7 + OVERDUE + SLACK
    assert len(io.attempts()) == 3


def test_the_net_hangs_where_the_first_majority_of_nodes_loses_it() -> None:
    io = Scene(5)
    for node, px in zip(io.nodes, [900, 200, 400, 600, 800], strict=True):
        node.put(KEY, RIVAL, px)
    assert io.acquire().renew_from == pytest.approx(0.6 + OVERDUE, abs=SLACK)


@FAIR
def test_a_key_without_an_end_is_looked_at_now_and_then(fair: bool) -> None:
    io = Scene(1, fair=fair)
    io.rival_takes(px=None)
    io.later(2 * LOOK_AGAIN + 1, lambda: io.nodes[0].data.clear())  # unnoticed
    assert io.acquire().renew_from == pytest.approx(3 * LOOK_AGAIN, abs=0.1)
    assert len(io.attempts() if fair else io.looks()) <= 5


# -- no more than it must ----------------------------------------------------------------------------------------------


def per_second(times: list[float], since: float) -> int:
    """The most in any second from then on."""
    late = [at for at in times if at >= since]
    return max((sum(1 for at in late if start <= at < start + 1.0) for start in late), default=0)


@COUNTS
@pytest.mark.parametrize("every", [0.001, 0.01, 0.03])
def test_a_holder_that_renews_all_the_time_slows_its_waiters_down_not_the_servers(count: int, every: float) -> None:
    io = Scene(count)
    io.rival_takes()
    for i in range(round(5.0 / every)):
        io.later(every * i, io.rival_renews)
    io.later(6.0, io.rival_goes)
    hold = io.acquire()
    assert hold.renew_from == pytest.approx(6.0, abs=0.06)
    assert per_second(io.looks(), 0.0) <= 30
    assert per_second(io.looks(), 1.0) <= 21, "a look in 50 ms"
    assert per_second(io.attempts(), 1.0) <= 21


def test_a_holder_that_renews_as_usual_costs_a_look_each_time() -> None:
    io = Scene(1)
    io.rival_takes()
    for i in range(1, 20):
        io.later(3.3 * i, io.rival_renews)
    io.later(70.0, io.rival_goes)
    hold = io.acquire()
    assert hold.renew_from == pytest.approx(70.0, abs=SLACK), "patience with renewals delays nobody afterwards"
    assert len(io.looks()) <= 20


@pytest.mark.parametrize(("ttl", "attempts"), [(20.0, 2), (2.0, 100)])
def test_a_fair_waiter_is_woken_by_nothing_but_the_hand_over_until_it_has_waited_for_a_renewal(
    ttl: float, attempts: int
) -> None:
    io = Scene(1, fair=True, ttl=ttl)
    io.rival = b"host:1::" + b"0123456789ABCDEF" * 2
    io.rival_takes()
    for i in range(500):
        io.later(0.01 * i, io.rival_renews)
    io.later(5.0, lambda: io.nodes[0].run(commands.pass_on(io.request, io.rival, b"")))
    hold = io.acquire()
    assert io.nodes[0].data[KEY] == hold.owner
    # Then each renewal might be the end, but one that renews all the time does not drive its waiters.
    assert len(io.attempts()) <= attempts


@pytest.mark.parametrize("queued", [True, False], ids=["after a renewal's time", "of a stranger"])
def test_a_fair_waiter_is_woken_by_a_deletion(queued: bool) -> None:
    io = Scene(1, fair=True, ttl=9.0)
    if queued:
        io.rival = b"host:1::" + b"0123456789ABCDEF" * 2
    gone = 3.5 if queued else 0.1
    io.rival_takes()
    io.later(gone, io.rival_goes)
    hold = io.acquire()
    assert hold.renew_from == pytest.approx(gone, abs=SLACK)
    assert len(io.attempts()) == 3
    assert len(io.looks()) == 1


def test_a_deletion_between_a_fair_waiters_claim_and_its_look_is_noticed() -> None:
    io = Scene(1, fair=True, ttl=9.0)
    io.rival_takes()
    io.later(io.terms.brief, lambda: io.answered.append(io.rival_goes))
    assert io.acquire().renew_from < io.terms.brief + SLACK
    assert io._watches == {}, "nobody listens any more"


def test_a_server_whose_clock_was_set_back_makes_no_lease_longer_than_it_was_asked_for() -> None:
    """Who finds that the lock is its own already believes in its ttl, whatever the server says is left of it."""
    io = Scene(1, fair=True, ttl=2.0)
    place = Place(Line(), io.request, io.terms, None, 0.0, None, None)
    place.come_as(b"nonce")
    for left in (500, 2000, 3_600_000):
        hold = granted(place, [1, left, b"7", b"1800000000", b"5"], 0.1)
        assert hold is not None
        assert hold.deadline == pytest.approx(io.request.settings.policy.validity(min(left / 1000, 2.0)))


def test_beside_a_node_that_cannot_push_a_waiter_looks_now_and_then_and_does_not_poll() -> None:
    """Another is free, so the two would be a majority at any time; and no push would say so."""
    io = Scene(3)
    io.request.group.nodes[0].tracks = False
    io.rival_takes()
    io.nodes[1].data.clear()
    io.fails(3.0)
    assert 5 <= len(io.looks()) <= 3.0 / LOOK_AT_DEAF + 3


def test_a_leftover_that_lasts_for_long_is_not_taken_for_what_a_silent_node_has() -> None:
    io = Scene(3)
    for node, px in zip(io.nodes, (20_000, 1_000), strict=False):
        node.put(KEY, RIVAL, px)
    io.silent = {2}
    io.later(2 * LOOK_AGAIN, io.silent.clear)
    io.acquire()
    assert io.looks()[1] == pytest.approx(LOOK_AGAIN, abs=0.1)


@pytest.mark.parametrize("after", [0.0, 0.01, 0.025])
def test_a_lock_that_is_handed_over_soon_is_asked_for_once_and_counts_from_the_question(after: float) -> None:
    io = Scene(1, fair=True, ttl=9.0)
    io.rival_takes()
    io.later(after, lambda: io.nodes[0].run(commands.pass_on(io.request, RIVAL, b"")))
    hold = io.acquire()
    assert io.time == pytest.approx(after, abs=SLACK)
    assert hold.renew_from < SLACK
    assert hold.deadline == pytest.approx(io.terms.validity, abs=SLACK)
    assert len(io.attempts()) == 1
    assert io.looks() == []


@pytest.mark.parametrize("moved", [False, True], ids=["same connection", "another connection"])
def test_who_releases_is_spoken_to_where_it_listens_now(moved: bool) -> None:
    """The release was made before the lock was asked for, with the channel of that time."""
    io = Scene(1, fair=True, ttl=9.0)
    node = io.nodes[0]
    hold = io.acquire()
    if moved:
        io.channel = b"hand:me again"
    heard: list[Any] = []
    for name in (b"hand:me", b"hand:me again", b"theirs"):
        node.channels[name] = heard.append
    node.run(commands.claim(io.request, b"another", io.terms, b"theirs", b""))
    assert run(mutex.release(io, hold, io.keeper)) is True
    assert [channel for _, channel, _ in heard] == [io.channel, b"theirs"]


@pytest.mark.parametrize("ttl", [9.0, 0.2])
def test_one_that_waits_for_longer_asks_who_holds_it_and_keeps_its_place(ttl: float) -> None:
    io = Scene(1, fair=True, ttl=ttl)
    node = io.nodes[0]
    node.channels[b"theirs"] = lambda push: None
    io.rival_takes()
    io.later(io.terms.brief / 2, lambda: node.run(commands.claim(io.request, b"another", io.terms, b"theirs", b"")))
    io.later(0.05, lambda: node.run(commands.pass_on(io.request, RIVAL, b"")))
    hold = io.acquire()
    assert io.attempts()[1] == pytest.approx(io.terms.brief, abs=SLACK)
    assert len(io.attempts()) == 2
    assert node.data[KEY] == hold.owner
    assert [commands.owner_in(claim) for claim in node.queues[QUEUE]] == [b"another"]


def test_a_brief_claim_after_an_ordinary_one_counts_from_its_own_question() -> None:
    """It had the lock, heard of it too late, came anew, got it at once, and was stopped just then."""
    io = Scene(1, fair=True, ttl=1.0)
    node = io.nodes[0]
    io.rival_takes()

    def too_late() -> None:
        node.put(KEY, commands.owner_in(node.queues[QUEUE].pop()), 2)
        io.answered = [io.rival_takes]
        io.connection_lost(0)

    def stopped() -> None:
        node.run(commands.pass_on(io.request, RIVAL, b""))
        io.time += 2.5

    io.later(2.0, too_late)
    io.later(2.01, stopped)
    hold = io.acquire()
    assert hold.renew_from >= 4.5, "what it was handed over at 2.01 ended at 3.01"


def test_one_that_runs_out_of_time_while_it_asks_is_told_what_was_known() -> None:
    io = Scene(1, fair=True, ttl=9.0)
    io.rival_takes(px=62)
    io.later(0.05, lambda: io.silent.add(0))
    with pytest.raises(Contended, match="held by a rival"):
        io.acquire(0.0632)


def test_one_that_will_not_wait_for_long_asks_at_once_who_holds_it() -> None:
    io = Scene(1, fair=True, ttl=9.0)
    io.rival_takes()
    with pytest.raises(Contended, match="held by a rival"):
        io.acquire(2 * io.terms.brief)
    io.drain()
    assert io.attempts()[1:] == [pytest.approx(2 * io.terms.brief, abs=SLACK)], "only to leave"
    assert io.nodes[0].queues.get(QUEUE, []) == []


def test_a_handed_over_lease_counts_from_the_hand_over_less_the_drift() -> None:
    io = Scene(1, fair=True)
    io.rival_takes()
    io.later(5.0, lambda: io.nodes[0].run(commands.pass_on(io.request, RIVAL, b"")))
    hold = io.acquire()
    drift = io.request.settings.policy.drift
    assert hold.renew_from == pytest.approx(5.0 * (1 - drift), abs=SLACK)
    assert hold.deadline <= 5.0 + 1.0 - drift


# -- without tracking --------------------------------------------------------------------------------------------------


@COUNTS
def test_where_tracking_is_refused_the_waiter_looks_now_and_then_and_says_so_once(count: int) -> None:
    io = Scene(count, backoff=steady(0.1))
    for node in io.request.group.nodes:
        node.tracks = False
    for turn in range(2):
        began = io.time
        io.rival_takes()
        io.later(began + 1.05, io.rival_goes)
        hold = io.acquire()
        assert began + 1.05 <= hold.renew_from <= began + 1.05 + 0.11
        assert 8 <= len([at for at in io.looks() if at >= began]) <= 12
        assert run(mutex.release(io, hold, io.keeper)), turn
    assert io.times("CLIENT") == [], "no wish that would be refused"
    assert len(io.keeper.warnings) == 1
    for node in io.request.group.nodes:
        assert node.label in io.keeper.warnings[0]


def test_a_minority_that_refuses_tracking_is_named_and_makes_no_difference() -> None:
    io = Scene(3, backoff=steady(0.1))
    io.request.group.nodes[2].tracks = False
    io.rival_takes()
    io.later(5.0, io.rival_goes)
    assert io.acquire().renew_from == pytest.approx(5.0, abs=SLACK)
    assert len(io.looks()) == 1
    assert "node-2" in io.keeper.warnings[0]
    assert "node-0" not in io.keeper.warnings[0]


# -- when nobody answers -----------------------------------------------------------------------------------------------


def silence(io: Scene) -> None:
    io.silent = set(range(len(io.nodes)))


def unreachable(io: Scene) -> None:
    """No connection, and it takes all the time that one has to find that out."""
    io.down = set(range(len(io.nodes)))


def refused(io: Scene) -> None:
    """No connection, and that is known at once."""
    io.down = set(range(len(io.nodes)))
    io.settled = True


OUTAGES = pytest.mark.parametrize("outage", [silence, unreachable, refused])


@FAIR
@OUTAGES
def test_an_outage_ends_a_wait_without_end_after_some_seconds(outage: Callable[[Scene], None], fair: bool) -> None:
    io = Scene(1, fair=fair)
    outage(io)
    error = io.fails(wait=None)
    assert isinstance(error, NoQuorum)
    assert OUTAGE - SLACK <= io.time <= OUTAGE + (CONNECT_TIMEOUT if outage is unreachable else 1.0)
    assert per_second([at for at, _ in io.sent], 0.5) <= 20, "it is not stormed when it comes back"
    assert list(error.nodes) == ["node-0"]


@OUTAGES
def test_an_outage_of_a_majority_is_one(outage: Callable[[Scene], None]) -> None:
    io = Scene(5)
    outage(io)
    io.silent -= {0, 1}
    io.down -= {0, 1}
    error = io.fails(wait=None)
    assert isinstance(error, NoQuorum)
    assert OUTAGE - SLACK <= io.time <= OUTAGE + CONNECT_TIMEOUT + 0.5
    assert len(error.nodes) == 5


def test_an_outage_of_a_minority_is_none() -> None:
    io = Scene(5)
    io.silent = {0}
    io.down = {1}
    io.rival_takes(px=None)
    error = io.fails(wait=3 * OUTAGE)
    assert io.time == pytest.approx(3 * OUTAGE, abs=SLACK)
    assert isinstance(error, Contended)
    assert error.holder == RIVAL.decode()


@FAIR
def test_an_outage_that_ends_in_time_is_waited_out(fair: bool) -> None:
    io = Scene(1, fair=fair)
    silence(io)
    io.later(3.0, io.silent.clear)
    assert 3.0 <= io.acquire(wait=None).renew_from <= 3.6


@FAIR
def test_contention_is_waited_for_without_end(fair: bool) -> None:
    io = Scene(1, fair=fair)
    io.rival_takes()
    for i in range(1, 40):
        io.later(5.0 * i, io.rival_renews)
    io.later(199.0, lambda: io.nodes[0].run(commands.release(io.request, RIVAL, 0)))
    assert io.acquire(wait=None) is not None
    assert io.time == pytest.approx(199.0, abs=SLACK)


# -- the end of a wait -------------------------------------------------------------------------------------------------

WAITS = pytest.mark.parametrize("wait", [0.05, 0.3, 2.0])


@COUNTS
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_a_wait_no_longer_than_a_round_trip_is_told_who_holds_it_all_the_same(count: int, fence: bool) -> None:
    io = Scene(count, fence=fence)
    io.rival_takes()
    error = io.fails(wait=1e-6)
    assert isinstance(error, Contended)
    assert error.holder == RIVAL.decode()


@WAITS
@COUNTS
def test_a_wait_for_a_lock_that_is_held_ends_at_its_deadline_and_says_by_whom(count: int, wait: float) -> None:
    io = Scene(count)
    io.rival_takes()
    error = io.fails(wait)
    assert io.time == pytest.approx(wait, abs=SLACK)
    assert isinstance(error, Contended)
    assert error.holder == RIVAL.decode()
    assert error.remaining == pytest.approx(10.0 - wait, abs=0.01)
    assert set(error.nodes.values()) <= {f"held by {RIVAL.decode()}", "not waited for"}


@WAITS
def test_a_wait_in_a_fair_locks_queue_ends_at_its_deadline_and_says_who_holds_it(wait: float) -> None:
    io = Scene(1, fair=True)
    io.rival_takes()
    error = io.fails(wait)
    assert io.time == pytest.approx(wait, abs=SLACK)
    assert isinstance(error, Contended)
    assert error.holder == RIVAL.decode()
    assert error.remaining == pytest.approx(10.0 - wait, abs=0.01)
    io.drain()
    assert io.nodes[0].queues[QUEUE] == []


@WAITS
@OUTAGES
@pytest.mark.parametrize(("count", "fair"), [(1, False), (5, False), (1, True)], ids=["one", "five", "fair"])
def test_a_wait_while_nothing_answers_ends_at_its_deadline_and_is_no_contention(
    count: int, fair: bool, outage: Callable[[Scene], None], wait: float
) -> None:
    io = Scene(count, fair=fair)
    outage(io)
    error = io.fails(wait)
    assert io.time == pytest.approx(wait, abs=SLACK)
    assert isinstance(error, NoQuorum), "a timeout is never mistaken for contention"
    assert len(error.nodes) == count


@WAITS
@FAIR
def test_a_wait_that_meets_silence_on_its_way_ends_at_its_deadline(fair: bool, wait: float) -> None:
    """It stood in line or in the queue, and then the servers fell silent."""
    io = Scene(1, fair=fair)
    io.rival_takes(px=round(wait * 700))
    io.later(wait * 0.5, lambda: silence(io))
    error = io.fails(wait)
    assert io.time == pytest.approx(wait, abs=SLACK)
    assert isinstance(error, NoQuorum)


@WAITS
@FAIR
def test_one_that_comes_to_the_head_late_still_ends_at_its_deadline(fair: bool, wait: float) -> None:
    io = Scene(1, fair=fair)
    silence(io)
    before = io.lines.join(io.request, io.terms, ModelBell(), 0.0, None, "before")
    io.later(wait * 0.8, lambda: io.lines.leave(before))
    with pytest.raises(NoQuorum):
        run(line_up(io, io.lines, io.request, io.terms, wait, io.now(), io.keeper))
    assert io.time == pytest.approx(wait, abs=SLACK)


@WAITS
@FAIR
def test_one_that_never_comes_to_the_head_ends_at_its_deadline_without_a_word_to_a_server(
    fair: bool, wait: float
) -> None:
    io = Scene(1, fair=fair)
    before = io.lines.join(io.request, io.terms, ModelBell(), 0.0, None, "before")
    before.line.sight = (RIVAL, 10_000, 0.0, None)
    with pytest.raises(Contended) as raised:
        run(line_up(io, io.lines, io.request, io.terms, wait, io.now(), io.keeper))
    assert raised.value.holder == RIVAL.decode()
    assert raised.value.remaining == pytest.approx(10.0 - wait, abs=0.01)
    assert io.time == pytest.approx(wait, abs=SLACK)
    assert io.sent == []
    assert before.line.head is before


def test_a_wait_over_slow_connections_ends_at_its_deadline() -> None:
    """Connecting took most of the time, and then the node does not answer."""

    class Slow(Scene):
        async def settle(self, need: int, within: float) -> None:
            self._pass_time(self.time + min(within, 0.25))
            self.settled = True

    io = Slow(1)
    silence(io)
    error = io.fails(wait=0.3)
    assert io.time == pytest.approx(0.3, abs=SLACK)
    assert isinstance(error, NoQuorum)


def test_a_closed_client_ends_all_its_waits_at_once() -> None:
    for fair in (True, False):
        for ahead in (True, False):
            io = Scene(1, fair=fair)
            io.rival_takes()
            if ahead:
                io.lines.join(io.request, io.terms, ModelBell(), 0.0, None, "before")
            io.later(1.0, io.lines.close)
            with pytest.raises(ConfigError, match="closed while it waited"):
                run(line_up(io, io.lines, io.request, io.terms, None, io.now(), io.keeper))
            assert io.time == pytest.approx(1.0, abs=SLACK)


def test_tries_are_counted_while_waiting_too() -> None:
    io = Scene(1, tries=4, backoff=steady(0.1))
    io.rival_takes()
    assert isinstance(io.fails(), Contended)
    assert len(io.attempts()) == 4
    assert io.time == pytest.approx(0.3, abs=0.02)


# -- siblings ----------------------------------------------------------------------------------------------------------


def siblings(io: Scene, known: bool) -> Hold:
    """One of this process has the lock, and has got it from the line of the waiter, or before there was one."""
    hold = io.acquire(1.0)
    io.lines.took(hold)
    if known:
        io.visitors.append(lambda: setattr(io.line(), "holder", hold))
    io.sent.clear()
    return hold


SIBLINGS = pytest.mark.parametrize(
    ("count", "fair", "known"),
    [(1, False, True), (1, False, False), (3, False, True), (3, False, False), (1, True, True), (1, True, False)],
    ids=["one node, known", "one node", "three nodes, known", "three nodes", "fair, known", "fair"],
)


@SIBLINGS
def test_what_a_sibling_passes_on_is_taken_at_once(count: int, fair: bool, known: bool) -> None:
    io = Scene(count, cohort=3, fair=fair)
    hold = siblings(io, known)
    io.later(0.3, lambda: io.lines.pass_on(hold, io.time))
    taken = io.acquire(5.0)
    assert (taken.owner, taken.token) == (hold.owner, hold.token + 1)
    assert io.time == pytest.approx(0.3, abs=SLACK)
    assert len(io.sent) <= 20, "and it does not run in circles meanwhile"
    io.drain()
    assert not io.nodes[0].queues.get(QUEUE)


@SIBLINGS
@pytest.mark.parametrize("gone", [3.0, None], ids=["then free", "held on"])
def test_what_a_sibling_passed_on_too_late_is_forgotten(count: int, fair: bool, known: bool, gone: float | None) -> None:
    """This process was stopped for some seconds, and others were not: now it waits like everybody else."""
    io = Scene(count, cohort=3, fair=fair)
    hold = siblings(io, known)

    def stop() -> None:
        assert io.lines.pass_on(hold, io.time) is not None
        io.time = 2.0
        io.rival_takes()

    io.later(0.3, stop)
    if gone is None:
        assert isinstance(io.fails(wait=4.0), Contended)
        assert io.time == pytest.approx(4.0, abs=SLACK)
    else:
        io.later(gone, lambda: [node.run(commands.release(io.request, RIVAL, 0)) for node in io.nodes])
        taken = io.acquire(wait=4.0)
        assert taken.owner != hold.owner
        assert io.time == pytest.approx(gone, abs=SLACK)
    assert len(io.attempts()) <= 10, "it does not run in circles"


@pytest.mark.parametrize("count", [1, 3])
def test_the_head_of_a_cohort_relies_on_its_sibling_for_a_moment_before_it_asks_a_server(count: int) -> None:
    io = Scene(count, cohort=3)
    hold = io.acquire(1.0)
    io.sent.clear()
    io.visitors.append(lambda: setattr(io.line(), "holder", hold))
    began = io.time
    io.later(began + 0.003, lambda: io.lines.pass_on(hold, io.time))
    taken = run(line_up(io, io.lines, io.request, io.terms, None, io.now(), io.keeper))
    assert taken.owner == hold.owner
    assert io.sent == []


@FAIR
def test_who_relies_on_a_sibling_hears_that_its_client_is_closed(fair: bool) -> None:
    io = Scene(1, cohort=3, fair=fair, ttl=9.0)
    siblings(io, True)
    began = io.now()
    io.later(began + LOCAL_FIRST / 2, io.lines.close)
    with pytest.raises(ConfigError, match="closed while it waited"):
        run(line_up(io, io.lines, io.request, io.terms, None, began, io.keeper))
    assert io.time - began < LOCAL_FIRST


@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("count", [1, 3])
def test_a_cohort_that_has_had_its_turn_lets_those_of_other_processes_go_first(count: int, known: bool) -> None:
    """It is free, and the head of our own line knows it at once; all the same it waits a little."""
    io = Scene(count, cohort=1)
    hold = siblings(io, known)
    hold.passes = 1
    for node in io.nodes:
        node.put(KEY + b":w", b"1")
    io.later(0.3, lambda: run(mutex.release(_beside(io), hold, io.keeper)))
    taken = io.acquire(5.0)
    assert taken.owner != hold.owner
    assert [at for at in io.attempts() if 0.3 <= at < 0.3 + YIELD] == [], "a free lock is left to others for a while"
    assert io.time == pytest.approx(0.3 + YIELD, abs=SLACK)


@pytest.mark.parametrize("count", [1, 3])
def test_a_cohort_that_nobody_else_waits_for_goes_on_at_once(count: int) -> None:
    io = Scene(count, cohort=1)
    hold = siblings(io, True)
    hold.passes = 1
    io.later(0.3, lambda: run(mutex.release(_beside(io), hold, io.keeper)))
    io.acquire(5.0)
    assert io.time == pytest.approx(0.3, abs=SLACK)


def _beside(io: Scene) -> ModelDriver:
    """Another connection to the same nodes."""
    driver = ModelDriver(io.nodes)
    driver.time = io.time
    return driver


@pytest.mark.parametrize("count", [1, 3])
def test_a_waiting_cohort_leaves_word_for_the_one_that_has_the_lock(count: int) -> None:
    io = Scene(count, cohort=3)
    io.rival_takes()
    io.later(1.0, io.rival_goes)
    words: list[bool] = []

    def read() -> None:
        io.drain()
        words.extend(KEY + b":w" in node.data for node in io.nodes)

    io.later(0.5, read)
    io.acquire()
    assert words == [True] * count


@pytest.mark.skipif(not available(), reason="no server binary on this machine")
@FAIR
def test_closing_a_client_gives_back_what_was_passed_on_and_not_taken_yet(fair: bool) -> None:
    async def main() -> Any:
        client = aio.connect(server.url, ttl=20.0, cohort=3, fair=fair)
        lock = client.lock("a")
        lease = await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        await eventually_async(lambda: client._lines.by_keys)
        assert await lease.release()
        await client.close()
        with pytest.raises(ConfigError, match="closed while it waited"):
            await waiting
        return server.command("EXISTS", KEY)

    with Server() as server:
        assert asyncio.run(main()) == 0


# -- the model itself --------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not available(), reason="no server binary on this machine")
def test_the_nodes_of_these_tests_answer_as_a_server_does() -> None:
    """Claims, hand-overs and passes, step by step on both."""
    request = lock_request(1, fair=True, ttl=20.0)
    terms = request.settings.terms
    node = ModelNode(lambda: 0.0)
    heard: list[Any] = []
    node.channels[b"alive"] = heard.append
    claims: dict[tuple[int, bytes], bytes] = {}

    def claim(owner: bytes, channel: bytes) -> Callable[[int], bytes]:
        return lambda which: commands.claim(request, owner, terms, channel, claims.get((which, owner), b""))

    def leave(owner: bytes, channel: bytes = b"alive") -> Callable[[int], bytes]:
        return lambda which: commands.pass_on(request, owner, claims.get((which, owner), b""), channel)

    steps = [
        *[claim(b"a", b""), claim(b"a", b""), claim(b"b", b""), claim(b"b", b"alive"), claim(b"c", b"gone")],
        *[claim(b"d", b"alive"), claim(b"e", b"alive"), claim(b"d", b"alive"), leave(b"x"), leave(b"a"), leave(b"e")],
        *[claim(b"b", b"alive"), leave(b"b"), leave(b"d", b""), claim(b"f", b"alive"), leave(b"f"), leave(b"f")],
    ]
    with Server() as server, redis.Redis.from_url(server.url) as client, client.pubsub() as listening:
        listening.subscribe(b"alive")
        assert listening.get_message(timeout=5.0)
        said: list[list[Any]] = [[], []]
        for step in steps:
            for which in (0, 1):
                (words,) = commands_in(step(which))
                answer = node.run(step(which))[0] if which == 0 else _evaluate(server, words)
                if type(answer) is list and answer[0] == 0:
                    claims[which, words[6]] = answer[5]
                said[which].append(_timeless(answer))
        messages = [listening.get_message(timeout=5.0) for _ in heard]
    assert said[0] == said[1]
    # Whoever lets go is spoken to before its heir is, and so written to after it.
    assert [message["data"].split(b" ")[-1] for message in messages if message] == [b"", b"b", b"", b"d"]
    assert [message.split(b" ")[-1] for _, _, message in heard] == [b"", b"b", b"", b"d"]


def _evaluate(server: Server, words: list[bytes]) -> Any:
    """Whether or not the server knows the script."""
    text = next(lua.TEXT[name] for name, sha in lua.SHA.items() if sha == words[1])
    return server.command(b"EVAL", text, *words[2:])


def _timeless(answer: Any) -> Any:
    """Without what depends on when it was asked."""
    if type(answer) is not list:
        return answer
    if answer[0] == 1:
        return [1, round(answer[1], -4), len(answer)]
    return [0, round(answer[1], -4), answer[2], answer[5][10:]]
