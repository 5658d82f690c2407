"""How the head of a wait queue waits for servers, in virtual time: it misses no wake-up and sends only what it must."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest
import redis

from handfast import Lease, aio
from handfast.backoff import steady
from handfast.core.acquire import LOCAL_FIRST
from handfast.core.attempt import OUTAGE
from handfast.core.local_queue import Acquisition, Waiter
from handfast.core.node_votes import LOOK_AGAIN, OVERDUE
from handfast.errors import ConfigError, Contended, HandfastError, NoQuorum
from handfast.net.link import CONNECT_TIMEOUT
from handfast.protocol import commands
from handfast.protocol.commands import Identity
from handfast.protocol.scripts import TEXT
from handfast.testing import Server, available
from tests.support.eventually import eventually_async
from tests.support.fake_io import FakeClient, FakeWakeup, Rival, lock_request
from tests.support.fake_node import SCRIPTS, FakeNode, commands_in

KEY: Final = b"handfast:{a}"
PLAIN: Final = b"a"
"""The key where the name is shared with other programs."""
SHARED: Final[dict[str, Any]] = {"prefix": "", "fence": False}
SLACK: Final = 0.003
"""Seconds: a few looks at the clock, and a round trip or two."""
COUNTS = pytest.mark.parametrize("count", [1, 3, 5])


class Scene:
    """A client in virtual time, on nodes with the same clock, and a rival that holds the lock."""

    def __init__(self, count: int = 1, **options: Any) -> None:
        self.nodes = [FakeNode(lambda: self.io.time) for _ in range(count)]
        self.client = FakeClient(self.nodes, **options)
        self.io = self.client.io
        self.io.tick, self.io.latency = 1e-6, 0.0005
        self.lock = self.client.lock("a")
        self.rival = Rival(self.nodes, self.lock)
        self.leases: list[Lease] = []

    def acquire(self, wait: float | None = None) -> Lease:
        with self.client.virtual_time():
            lease = self.lock.acquire(wait=wait)
        self.leases.append(lease)
        return lease

    def fails(self, wait: float | None = None) -> HandfastError:
        with pytest.raises(HandfastError) as raised:
            self.acquire(wait)
        assert self.client.queues.by_key == {}
        return raised.value

    def enter(self, caller: str = "before") -> Waiter:
        """Another thread of the process waits for the lock."""
        acquisition = Acquisition(self.lock, self.lock.config.timing, None, 0.0)
        return self.client.queues.enter(acquisition, FakeWakeup(), caller)

    def claims(self) -> list[float]:
        return self.io.times("claim")

    def expires(self, lease: Lease) -> float:
        """When a lease ends, on the client's clock."""
        with self.client.virtual_time():
            return lease.remaining() + self.io.time

    def another_program_takes(self, key: bytes = KEY, px: int | None = 10_000) -> None:
        for node in self.nodes:
            node.put(key, b"another program", px)

    def another_program_goes(self, key: bytes = KEY) -> None:
        for node in self.nodes:
            node.drop(key)


# -- no wake-up is lost ------------------------------------------------------------------------------------------------


@COUNTS
def test_release_wakes_waiter_at_once_without_polling(count: int) -> None:
    scene = Scene(count)
    scene.rival.acquire()
    scene.io.later(3.0, scene.rival.release)
    scene.acquire()
    assert scene.io.time == pytest.approx(3.0, abs=SLACK)
    # A first attempt; on several nodes a claim with a ticket follows. It is repeated after the waiter's own ttl.
    assert len(scene.claims()) <= 2 + 3


@COUNTS
def test_release_between_the_attempt_and_the_wait_is_noticed(count: int) -> None:
    scene = Scene(count)
    scene.rival.acquire()
    scene.io.answered = [scene.rival.release]
    scene.acquire()
    assert scene.io.time < SLACK


@COUNTS
def test_release_between_the_claim_and_the_wait_is_noticed(count: int) -> None:
    scene = Scene(count)
    scene.rival.acquire()
    scene.io.answered = [lambda: None, scene.rival.release] if count > 1 else [scene.rival.release]
    scene.acquire()
    assert scene.io.time < SLACK


def test_hand_over_after_a_standstill_of_our_clock_is_claimed_again() -> None:
    """The claim was sent before the standstill, so its time does not tell until when the vote is valid."""
    scene = Scene(1)
    scene.rival.acquire()

    def stand_still_and_release() -> None:
        scene.client.group.standstills += 1
        scene.rival.release()

    scene.io.later(0.5, stand_still_and_release)
    scene.acquire()
    assert len(scene.claims()) == 2


@pytest.mark.parametrize("count", [3, 5])
def test_hand_over_by_a_majority_is_enough(count: int) -> None:
    scene = Scene(count)
    scene.rival.acquire()
    scene.io.later(0.5, lambda: scene.rival.release(*range(count // 2 + 1)))
    lease = scene.acquire()
    assert scene.io.time == pytest.approx(0.5, abs=SLACK)
    assert len(lease.votes) == count // 2 + 1


@COUNTS
def test_waiter_whose_connections_were_lost_claims_again_and_keeps_its_place(count: int) -> None:
    scene = Scene(count, ttl=5.0)
    scene.rival.acquire()
    other = Rival(scene.nodes, scene.lock, 2)
    scene.io.later(0.2, lambda: other.acquire(ticket=b"%d" % scene.nodes[0].now_us()))

    def lose() -> None:
        for i in range(count):
            scene.io.lose_connection(i)

    scene.io.later(0.5, lose)
    scene.io.later(0.8, scene.rival.release)
    lease = scene.acquire(5.0)
    assert scene.io.time == pytest.approx(0.8, abs=SLACK)
    assert {node.holder(KEY) for node in scene.nodes} == {lease.owner.encode()}
    assert [node.queued(KEY) for node in scene.nodes] == [[other.who.id]] * count


def test_lock_that_was_handed_over_to_a_lost_connection_is_found_again() -> None:
    scene = Scene(1, ttl=5.0)
    scene.rival.acquire()

    def hand_over_and_lose() -> None:
        scene.io.nodes[0].channels[scene.io.channels[0]] = lambda push: None  # the push is lost
        scene.rival.release()
        scene.io.lose_connection(0)

    scene.io.later(0.5, hand_over_and_lose)
    scene.acquire(5.0)
    assert scene.io.time == pytest.approx(0.5, abs=0.02)


@COUNTS
def test_claim_whose_reply_was_lost_leaves_no_second_claim(count: int) -> None:
    """The servers are slow, not dead: they run the first claim, and then the next."""
    scene = Scene(count)
    scene.rival.acquire()
    scene.io.later(0.0, lambda: scene.io.silent.update(range(count)))
    scene.io.later(1.0, scene.io.silent.clear)
    queued: list[int] = []
    scene.io.later(2.0, lambda: queued.extend(len(node.queued(KEY)) for node in scene.nodes))
    scene.io.later(2.5, scene.rival.release)
    lease = scene.acquire(5.0)
    assert queued == [1] * count
    assert {node.holder(KEY) for node in scene.nodes} == {lease.owner.encode()}
    scene.io.drain()
    assert [node.queued(KEY) for node in scene.nodes] == [[]] * count


# -- expiry is silent --------------------------------------------------------------------------------------------------


@COUNTS
def test_expiry_of_holders_ttl_is_noticed_without_push(count: int) -> None:
    scene = Scene(count)
    scene.rival = Rival(scene.nodes, scene.lock, ttl=0.7)
    scene.rival.acquire()
    scene.acquire()
    assert 0.7 <= scene.io.time <= 0.7 + OVERDUE + SLACK


def test_waiter_on_a_quorum_acquires_when_the_first_majority_has_expired() -> None:
    scene = Scene(5)
    for i, ttl in enumerate([0.9, 0.2, 0.4, 0.6, 0.8]):
        Rival(scene.nodes, scene.lock, ttl=ttl).acquire(i)
    scene.acquire()
    assert scene.io.time == pytest.approx(0.6 + OVERDUE, abs=SLACK)


def test_claim_of_dead_waiter_is_skipped() -> None:
    """Its push has no listener."""
    scene = Scene(1)
    scene.rival.acquire()
    dead = Rival(scene.nodes, scene.lock, 2)
    dead.acquire(ticket=b"0")
    del scene.nodes[0].channels[dead.channel]
    scene.io.later(0.5, scene.rival.release)
    scene.acquire()
    assert scene.io.time == pytest.approx(0.5, abs=SLACK)


# -- no more than it must ----------------------------------------------------------------------------------------------


def per_second(times: list[float], since: float) -> int:
    """The most in any second from that time on."""
    late = [at for at in times if at >= since]
    return max((sum(1 for at in late if start <= at < start + 1.0) for start in late), default=0)


@COUNTS
def test_renewals_of_the_holder_do_not_wake_the_waiter(count: int) -> None:
    scene = Scene(count, ttl=20.0)
    scene.rival.acquire()
    for i in range(500):
        scene.io.later(0.01 * i, scene.rival.renew)
    scene.io.later(5.0, scene.rival.release)
    scene.acquire()
    assert scene.io.time == pytest.approx(5.0, abs=SLACK)
    assert len(scene.claims()) <= 2


def test_holder_that_renews_as_usual_costs_a_claim_in_five_seconds() -> None:
    scene = Scene(1, ttl=10.0)
    scene.rival.acquire()
    for i in range(1, 21):
        scene.io.later(3.3 * i, scene.rival.renew)
    scene.io.later(70.0, scene.rival.release)
    scene.acquire()
    assert scene.io.time == pytest.approx(70.0, abs=SLACK)
    assert len(scene.claims()) <= 70.0 / LOOK_AGAIN + 2


def test_handed_over_lease_counts_from_the_hand_over_less_the_drift() -> None:
    scene = Scene(1, ttl=9.0)
    scene.rival.acquire()
    scene.io.later(5.0, scene.rival.release)
    lease = scene.acquire()
    drift, timing = scene.lock.config.policy.drift, scene.lock.config.timing
    assert scene.expires(lease) == pytest.approx(5.0 * (1 - drift) + timing.validity, abs=SLACK)


# -- a holder that does not hand over ----------------------------------------------------------------------------------


@COUNTS
def test_key_of_another_program_is_tracked_and_its_deletion_wakes_the_waiter(count: int) -> None:
    scene = Scene(count, ttl=9.0)
    scene.another_program_takes()
    scene.io.later(2.0, scene.another_program_goes)
    scene.acquire()
    assert scene.io.time == pytest.approx(2.0, abs=SLACK)
    assert len(scene.io.times("pttl")) == 2, "one look, with the wish to be told, and one for the change"
    assert scene.io.trackers == []


def test_deletion_between_the_claim_and_the_look_is_noticed() -> None:
    scene = Scene(1, ttl=9.0)
    scene.another_program_takes()
    scene.io.later(0.01, lambda: scene.io.answered.append(scene.another_program_goes))
    scene.acquire()
    assert scene.io.time < 0.1


def test_key_without_ttl_is_polled_rarely() -> None:
    scene = Scene(1, ttl=9.0)
    scene.another_program_takes(px=None)
    scene.io.later(2 * LOOK_AGAIN + 1, lambda: scene.nodes[0].forget(KEY))  # and nobody is told
    scene.acquire()
    assert scene.io.time == pytest.approx(3 * LOOK_AGAIN, abs=0.2)
    assert len(scene.claims()) <= 6


def test_key_of_another_program_is_polled_often_without_tracking() -> None:
    scene = Scene(1, ttl=9.0)
    scene.nodes[0].refuses_tracking = True
    scene.another_program_takes()
    scene.io.later(2.0, scene.another_program_goes)
    scene.acquire()
    assert scene.io.time == pytest.approx(2.0, abs=0.06)
    assert per_second(scene.claims(), 0.0) <= 21


# -- keys shared with other programs -----------------------------------------------------------------------------------


@COUNTS
def test_deleted_shared_key_is_acquired_without_polling(count: int) -> None:
    scene = Scene(count, **SHARED)
    scene.another_program_takes(PLAIN)
    scene.io.later(3.0, lambda: scene.another_program_goes(PLAIN))
    scene.acquire()
    assert scene.io.time == pytest.approx(3.0, abs=SLACK)
    assert len(scene.io.times("pttl")) == 1


@COUNTS
@pytest.mark.parametrize("step", [0, 1], ids=["attempt and look", "look and wait"])
def test_deletion_of_a_shared_key_between_two_steps_is_noticed(count: int, step: int) -> None:
    scene = Scene(count, **SHARED)
    scene.another_program_takes(PLAIN)
    scene.io.answered = [lambda: None] * step + [lambda: scene.another_program_goes(PLAIN)]
    scene.acquire()
    assert scene.io.time < SLACK


@COUNTS
def test_expiry_of_shared_key_is_noticed_without_push(count: int) -> None:
    scene = Scene(count, **SHARED)
    scene.another_program_takes(PLAIN, px=700)
    scene.acquire()
    assert 0.7 <= scene.io.time <= 0.7 + OVERDUE + SLACK
    assert len(scene.io.times("pttl")) == 1


def test_change_on_one_of_three_nodes_triggers_no_attempt_on_shared_key() -> None:
    scene = Scene(3, **SHARED)
    scene.another_program_takes(PLAIN)
    for i in range(1, 100):
        scene.io.later(0.01 * i, lambda: scene.nodes[0].touch(PLAIN))
    scene.io.later(2.0, lambda: scene.another_program_goes(PLAIN))
    scene.acquire()
    assert scene.io.time == pytest.approx(2.0, abs=SLACK)
    assert len(scene.io.times("set")) == 2


def test_lost_connection_counts_as_a_change_of_a_shared_key() -> None:
    scene = Scene(1, **SHARED)
    scene.another_program_takes(PLAIN)
    scene.io.later(0.5, lambda: scene.nodes[0].forget(PLAIN))  # and nobody is told
    scene.io.later(0.6, lambda: scene.io.lose_connection(0))
    scene.acquire()
    assert scene.io.time == pytest.approx(0.6, abs=SLACK)


@COUNTS
@pytest.mark.parametrize("every", [0.001, 0.01, 0.03])
def test_frequent_renewal_of_shared_key_slows_waiters_not_servers(count: int, every: float) -> None:
    scene = Scene(count, **SHARED)
    scene.another_program_takes(PLAIN)
    for i in range(round(5.0 / every)):
        scene.io.later(every * i, lambda: scene.another_program_takes(PLAIN))
    scene.io.later(6.0, lambda: scene.another_program_goes(PLAIN))
    scene.acquire()
    assert scene.io.time == pytest.approx(6.0, abs=0.06)
    assert per_second(scene.io.times("pttl"), 0.0) <= 30
    assert per_second(scene.io.times("pttl"), 1.0) <= 21, "a look in 50 ms"
    assert per_second(scene.io.times("set"), 1.0) <= 21


@COUNTS
def test_shared_key_is_polled_with_one_warning_without_tracking(count: int, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(count, backoff=steady(0.1), **SHARED)
    for node in scene.nodes:
        node.refuses_tracking = True
    for _ in range(2):
        began = scene.io.time
        scene.another_program_takes(PLAIN)
        scene.io.later(began + 1.05, lambda: scene.another_program_goes(PLAIN))
        lease = scene.acquire()
        assert began + 1.05 <= scene.io.time <= began + 1.05 + 0.11
        assert 8 <= len([at for at in scene.io.times("pttl") if at >= began]) <= 12
        with scene.client.virtual_time():
            assert lease.release()
    assert scene.io.times("client") == [], "no wish that would be refused"
    warnings = [record.getMessage() for record in caplog.records if "tracking is refused" in record.getMessage()]
    assert len(warnings) == 1
    for known in scene.client.group.nodes:
        assert known.label in warnings[0]


# -- servers that cannot push ------------------------------------------------------------------------------------------


@COUNTS
def test_attempts_are_repeated_with_one_warning_without_pushes(count: int, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(count, backoff=steady(0.1))
    for node in scene.nodes:
        node.refuses_hello = True
    for _ in range(2):
        began = scene.io.time
        scene.rival.acquire()
        scene.io.later(began + 1.05, scene.rival.release)
        lease = scene.acquire()
        assert began + 1.05 <= scene.io.time <= began + 1.05 + 0.11
        assert 8 <= len([at for at in scene.claims() if at >= began]) <= 13
        with scene.client.virtual_time():
            assert lease.release()
    warnings = [record.getMessage() for record in caplog.records if "cannot push" in record.getMessage()]
    assert len(warnings) == count


def test_minority_that_cannot_push_makes_no_difference() -> None:
    scene = Scene(3)
    scene.nodes[2].refuses_hello = True
    scene.rival.acquire()
    scene.io.later(5.0, scene.rival.release)
    scene.acquire()
    assert scene.io.time == pytest.approx(5.0, abs=SLACK)


def test_tries_are_counted_while_waiting() -> None:
    scene = Scene(1, tries=4, backoff=steady(0.1))
    scene.rival.acquire()
    assert isinstance(scene.fails(), Contended)
    assert len(scene.claims()) == 4
    assert scene.io.time == pytest.approx(0.3, abs=0.02)


# -- when no server answers --------------------------------------------------------------------------------------------


def silence(scene: Scene) -> None:
    scene.io.silent.update(range(len(scene.nodes)))


def unreachable(scene: Scene) -> None:
    """No connection can be made, and each try takes all the time that it has."""
    scene.io.down.update(range(len(scene.nodes)))


def refusing(scene: Scene) -> None:
    """No connection can be made, and that is known at once."""
    scene.io.down.update(range(len(scene.nodes)))
    scene.io.connect_takes = 0.01


OUTAGES = pytest.mark.parametrize("outage", [silence, unreachable, refusing])
WAYS = pytest.mark.parametrize("options", [{}, SHARED], ids=["queue", "shared key"])


@OUTAGES
@WAYS
def test_outage_ends_a_wait_without_end_after_some_seconds(
    outage: Callable[[Scene], None], options: dict[str, Any]
) -> None:
    scene = Scene(1, **options)
    outage(scene)
    error = scene.fails(wait=None)
    assert isinstance(error, NoQuorum)
    # It counts from the first time that no server answers.
    assert OUTAGE - SLACK <= scene.io.time <= OUTAGE + (CONNECT_TIMEOUT if outage is unreachable else 1.0) + 0.5
    assert per_second([at for at, _, _ in scene.io.sent], 0.5) <= 20, "the servers are not stormed when they come back"
    assert len(error.nodes) == 1


def test_short_wait_for_a_silent_server_says_how_long_it_was() -> None:
    scene = Scene(1, node_timeout=1.0)
    silence(scene)
    assert "no answer in 100 ms" in str(scene.fails(wait=0.1))


@OUTAGES
def test_outage_of_a_majority_ends_a_wait_without_end(outage: Callable[[Scene], None]) -> None:
    scene = Scene(5)
    outage(scene)
    scene.io.silent -= {0, 1}
    scene.io.down -= {0, 1}
    error = scene.fails(wait=None)
    assert isinstance(error, NoQuorum)
    assert OUTAGE - SLACK <= scene.io.time <= OUTAGE + CONNECT_TIMEOUT + 0.5
    assert len(error.nodes) == 5


def test_outage_of_a_minority_does_not_end_a_wait() -> None:
    scene = Scene(5)
    scene.rival = Rival(scene.nodes, scene.lock, ttl=1000.0)
    scene.rival.acquire()
    scene.io.silent = {0}
    scene.io.down = {1}
    error = scene.fails(wait=3 * OUTAGE)
    assert scene.io.time == pytest.approx(3 * OUTAGE, abs=SLACK)
    assert isinstance(error, Contended)
    assert error.holder == scene.rival.owner.decode()


@WAYS
def test_wait_survives_short_outage(options: dict[str, Any]) -> None:
    scene = Scene(1, **options)
    silence(scene)
    scene.io.later(3.0, scene.io.silent.clear)
    scene.acquire(wait=None)
    assert 3.0 <= scene.io.time <= 3.6


@COUNTS
def test_unlimited_wait_survives_long_contention(count: int) -> None:
    scene = Scene(count)
    scene.rival.acquire()
    for i in range(1, 40):
        scene.io.later(5.0 * i, scene.rival.renew)
    scene.io.later(199.0, scene.rival.release)
    scene.acquire(wait=None)
    assert scene.io.time == pytest.approx(199.0, abs=SLACK)


# -- the end of a wait -------------------------------------------------------------------------------------------------

WAITS = pytest.mark.parametrize("wait", [0.05, 0.3, 2.0])


@COUNTS
@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_wait_no_longer_than_a_round_trip_names_the_holder(count: int, fence: bool) -> None:
    scene = Scene(count, fence=fence)
    scene.rival.acquire()
    error = scene.fails(wait=1e-6)
    assert isinstance(error, Contended)
    assert error.holder == scene.rival.owner.decode()


def test_short_wait_for_several_names_names_the_holder_though_a_node_is_slow() -> None:
    scene = Scene(3)
    scene.rival.acquire()
    scene.io.later(0.0, lambda: scene.io.silent.add(2))
    scene.lock = scene.client.lock(["a", "b"])
    error = scene.fails(wait=0.02)
    assert isinstance(error, Contended)
    assert error.holder == scene.rival.owner.decode()


@WAITS
@COUNTS
def test_wait_ends_at_its_deadline_and_names_the_holder(count: int, wait: float) -> None:
    scene = Scene(count)
    scene.rival.acquire()
    error = scene.fails(wait)
    assert scene.io.time == pytest.approx(wait, abs=SLACK)
    assert isinstance(error, Contended)
    assert error.holder == scene.rival.owner.decode()
    assert error.remaining == pytest.approx(10.0 - wait, abs=0.01)
    assert set(error.nodes.values()) <= {f"held by {error.holder}", "had not answered yet"}
    scene.io.drain()
    assert [node.queued(KEY) for node in scene.nodes] == [[]] * count


@WAITS
@OUTAGES
@pytest.mark.parametrize(("count", "options"), [(1, {}), (5, {}), (1, SHARED)], ids=["one", "five", "shared key"])
def test_wait_without_replies_ends_at_its_deadline_as_outage(
    count: int, options: dict[str, Any], outage: Callable[[Scene], None], wait: float
) -> None:
    scene = Scene(count, **options)
    outage(scene)
    error = scene.fails(wait)
    assert scene.io.time == pytest.approx(wait, abs=SLACK)
    assert isinstance(error, NoQuorum), "a timeout is never mistaken for contention"
    assert len(error.nodes) == count


@WAITS
def test_wait_ends_at_its_deadline_when_servers_fall_silent(wait: float) -> None:
    scene = Scene(1)
    scene.rival = Rival(scene.nodes, scene.lock, ttl=wait * 0.7)
    scene.rival.acquire()
    scene.io.later(wait * 0.5, lambda: silence(scene))
    scene.fails(wait)
    assert scene.io.time == pytest.approx(wait, abs=SLACK)


@WAITS
def test_waiter_that_becomes_head_late_times_out_in_time(wait: float) -> None:
    scene = Scene(1)
    silence(scene)
    before = scene.enter()
    scene.io.later(wait * 0.8, lambda: scene.client.queues.leave(before))
    with pytest.raises(NoQuorum):
        scene.acquire(wait)
    assert scene.io.time == pytest.approx(wait, abs=SLACK)


@WAITS
def test_queued_waiter_times_out_without_contacting_server(wait: float) -> None:
    scene = Scene(1)
    before = scene.enter()
    error = Contended("a", holder="somebody", remaining=3.0, nodes={})
    before.queue.explain = lambda now: error
    with pytest.raises(Contended) as raised:
        scene.acquire(wait)
    assert raised.value is error
    assert scene.io.time == pytest.approx(wait, abs=SLACK)
    assert scene.io.sent == []
    assert before.queue.head is before


def test_wait_over_slow_connections_ends_at_its_deadline() -> None:
    """Connecting takes most of the time, and then the node does not answer."""
    scene = Scene(1)
    scene.io.connect_takes = 0.25
    silence(scene)
    error = scene.fails(wait=0.3)
    assert scene.io.time == pytest.approx(0.3, abs=SLACK)
    assert isinstance(error, NoQuorum)


@pytest.mark.parametrize("options", [{}, SHARED, {"tries": 100}], ids=["queue", "shared key", "tries"])
@pytest.mark.parametrize("head", [True, False], ids=["head", "behind another"])
def test_closed_client_ends_its_waits_at_once(options: dict[str, Any], head: bool) -> None:
    scene = Scene(1, **options)
    scene.rival.acquire()
    scene.another_program_takes(PLAIN)
    if not head:
        scene.enter()
    scene.io.later(1.0, scene.client.queues.close)
    with pytest.raises(ConfigError, match="closed while it waited"):
        scene.acquire()
    assert scene.io.time == pytest.approx(1.0, abs=SLACK if not options.get("tries") else 0.5)


# -- siblings ----------------------------------------------------------------------------------------------------------


class Cohort(Scene):
    """A sibling holds the lock. `known`: it got the lock from the queue in which this waiter is."""

    def __init__(self, count: int, known: bool, **options: Any) -> None:
        super().__init__(count, **{"cohort": 3, **options})
        with self.client.virtual_time():
            self.sibling = self.lock.acquire(wait=0)
        self.io.sent.clear()
        self.began = self.io.time
        if known:
            before = self.enter()
            before.queue.holder = next(iter(self.client.watched()))
            self.io.later(self.began + 0.0001, lambda: self.client.queues.leave(before))

    def release(self) -> None:
        assert self.sibling.release()


SIBLINGS = pytest.mark.parametrize("known", [True, False], ids=["known holder", "unknown holder"])


@SIBLINGS
@COUNTS
def test_hand_over_by_sibling_is_accepted_at_once(count: int, known: bool) -> None:
    scene = Cohort(count, known)
    scene.io.later(0.3, scene.release)
    lease = scene.acquire(5.0)
    assert lease.owner == scene.sibling.owner
    assert lease.token == (scene.sibling.token or 0) + 1
    with scene.client.virtual_time():
        assert lease.valid
    assert scene.io.time == pytest.approx(0.3, abs=SLACK)
    assert len(scene.io.sent) <= 4 * count, "no busy loop during that time"
    scene.io.drain()
    assert [node.queued(KEY) for node in scene.nodes] == [[]] * count


@SIBLINGS
@COUNTS
@pytest.mark.parametrize("then", ["free", "held"])
def test_late_hand_over_is_dropped(count: int, known: bool, then: str) -> None:
    """This process was stopped for some seconds, and others were not: now it waits like all others."""
    scene = Cohort(count, known)

    def stop() -> None:
        scene.release()
        scene.io.time = 2.0
        scene.rival.acquire(barge=True)

    scene.io.later(0.3, stop)
    if then == "held":
        assert isinstance(scene.fails(wait=4.0), Contended)
        assert scene.io.time == pytest.approx(4.0, abs=0.01)
    else:
        scene.io.later(3.0, scene.rival.release)
        lease = scene.acquire(wait=4.0)
        assert lease.owner != scene.sibling.owner
        assert scene.io.time == pytest.approx(3.0, abs=SLACK)
    assert len(scene.claims()) <= 10, "no busy loop"


@COUNTS
def test_head_of_a_cohort_relies_on_its_sibling_before_it_asks_a_server(count: int) -> None:
    scene = Cohort(count, known=True)
    scene.io.later(scene.began + LOCAL_FIRST * 0.8, scene.release)
    lease = scene.acquire()
    assert lease.owner == scene.sibling.owner
    assert scene.io.sent == []


def test_waiter_that_relies_on_sibling_ends_when_client_is_closed() -> None:
    scene = Cohort(1, known=True, ttl=9.0)
    scene.io.later(scene.began + LOCAL_FIRST / 2, scene.client.queues.close)
    with pytest.raises(ConfigError, match="closed while it waited"):
        scene.acquire()
    assert scene.io.time - scene.began < LOCAL_FIRST


def test_cohort_that_has_had_its_turn_lets_waiters_of_other_processes_go_first() -> None:
    scene = Cohort(1, known=False, cohort=1)
    scene.io.later(0.1, scene.release)
    other = Rival(scene.nodes, scene.lock, 2)
    other.acquire(ticket=b"0")
    first = scene.acquire(5.0)
    assert first.owner == scene.sibling.owner
    with scene.client.virtual_time():
        waiter = scene.enter()
        assert first.release()
    assert waiter.given is None
    assert scene.nodes[0].holder(KEY) == other.owner


POLLING: Final[dict[str, Any]] = {"tries": 1000}
SIBLING_WAYS = pytest.mark.parametrize(
    "options", [{}, SHARED, POLLING], ids=["queue", "shared key", "limited number of tries"]
)


@SIBLING_WAYS
@pytest.mark.parametrize("wait", [None, 2.0])
def test_hold_from_a_sibling_ends_a_wait_in_an_outage(options: dict[str, Any], wait: float | None) -> None:
    scene = Cohort(1, known=False, ttl=20.0, node_timeout=0.05, backoff=steady(0.05), **options)
    scene.io.later(0.5, lambda: silence(scene))
    scene.io.later(0.6, lambda: scene.io.lose_connection(0))
    scene.io.later(1.5, scene.release)
    lease = scene.acquire(wait)
    assert lease.owner == scene.sibling.owner
    assert scene.io.time == pytest.approx(1.5, abs=0.11)


@SIBLING_WAYS
def test_hold_from_a_sibling_that_has_ended_does_not_prolong_a_wait(options: dict[str, Any]) -> None:
    scene = Cohort(1, known=False, ttl=20.0, node_timeout=0.05, backoff=steady(0.05), **options)
    silence(scene)

    def release_and_expire() -> None:
        scene.release()
        for hold in scene.client.watched():
            hold.mark_lost("its deadline passed")

    scene.io.later(0.8, release_and_expire)
    scene.fails(wait=1.0)
    assert scene.io.time == pytest.approx(1.0, abs=0.11)


@pytest.mark.skipif(not available(), reason="no server binary on this machine")
def test_closing_client_releases_untaken_hand_over() -> None:
    async def main() -> Any:
        client = aio.connect(server.url, ttl=20.0, cohort=3)
        lock = client.lock("a")
        lease = await lock.acquire()
        waiting = asyncio.create_task(lock.acquire())
        # The claim is in the server's queue before its reply brings the waiter into the queue of the process.
        await eventually_async(lambda: client._queues.by_key and server.command("EXISTS", KEY + b":q"))
        assert await lease.release()
        await client.close()
        with pytest.raises(ConfigError, match="closed while it waited"):
            await waiting
        return server.command("EXISTS", KEY)

    with Server() as server:
        assert asyncio.run(main()) == 0


# -- the nodes of these tests ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not available(), reason="no server binary on this machine")
def test_fake_nodes_reply_like_servers() -> None:
    """Claims, hand-overs, yields, extensions and releases, step by step on both."""
    request = lock_request(1, ttl=20.0)
    config = request.config
    node = FakeNode()
    heard: list[bytes] = []
    node.channels[b"alive"] = lambda push: heard.append(push[2])

    def claim(who: Identity, ticket: bytes = b"", channel: bytes = b"-", barge: bool = False) -> bytes:
        terms = config.timing.claim_terms
        rules = commands.claim_rules(config.longest_ms, overtakes=barge)
        return commands.claim(request.queue_keys, b"", who, terms, ticket, channel, rules=rules)

    def leave(who: Identity) -> bytes:
        return commands.pass_on(request.queue_keys, b"", who, b"0", config.retention_arg)

    a, b, c, d, e = (Identity(b"host:1::%032x" % i, b"host:1::%032x" % i) for i in range(5))
    one, two = (Identity.explicit(b"job", b"%032x" % i) for i in (8, 9))
    steps = [
        *[claim(a), claim(a), claim(b), claim(b, b"70", b"alive"), claim(c, b"60", b"gone"), claim(d, b"80", b"alive")],
        *[claim(b, b"70", b"alive"), leave(e), commands.extend(request.keys, a, b"30000", b"99999"), leave(a)],
        *[claim(b, b"70", b"alive"), claim(c, b"50", b"alive"), claim(e, barge=True), leave(b), leave(b), leave(c)],
        *[leave(d), claim(one), claim(two), leave(one), leave(one), claim(a, b"0", b"alive"), leave(two), leave(a)],
        commands.acquire_all((request.key, request.key + b"2"), (), a, b"20000", 1, b"0", 60, 1 << 52, False),
        commands.raise_token((request.key, request.key + b"2"), (), a, 1 << 52, 60),
        commands.restore_vote((request.key,), (), a, 30000, 1 << 52, 60),
        commands.restore_vote((request.key,), (), b, 30000, 1 << 52, 60),
        leave(a),
    ]
    with Server() as server, redis.Redis.from_url(server.url) as client, client.pubsub() as listening:
        listening.subscribe(b"alive")
        assert listening.get_message(timeout=5.0)
        said: list[list[Any]] = [[], []]
        for step in steps:
            (words,) = commands_in(step)
            said[0].append(_timeless(node.run(step)[0]))
            said[1].append(_timeless(server.command(b"EVAL", TEXT[SCRIPTS[words[1]]], *words[2:])))
        messages = [listening.get_message(timeout=5.0) for _ in heard]
    assert said[0] == said[1]
    assert [text.split()[:2] for text in heard] == [message["data"].split()[:2] for message in messages if message]
    assert {text.split()[0] for text in heard} == {b"yours", b"inquire"}


def _timeless(reply: Any) -> Any:
    """A reply without what depends on the server's clock."""
    if type(reply) is int and reply > 1:
        return "token"
    if type(reply) is not list:
        return reply
    (
        granted,
        left,
        third,
        fourth,
        *_,
    ) = reply
    return [granted, round(left, -4), bool(third) if granted else third, bool(int(fourth)), *reply[6:]]
