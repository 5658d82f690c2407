"""The client's rules of the queue, one by one: which votes count, until when, and what is sent for them.

A waiter's `ServerQueue` gets the replies and pushes one by one, and its IO records what it sends.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import pytest

from handfast.core.guard import STEPPED, UNREADY
from handfast.core.hold import Hold
from handfast.core.io import SILENT, Fault
from handfast.core.local_queue import Acquisition
from handfast.core.queue import ServerQueue
from handfast.core.votes import Ballot
from handfast.net.threads import run
from handfast.protocol.claims import Granted, Inquiry, Refused, Yours
from tests.support.fake_io import FakeIO, FakeWakeup, lock_request
from tests.support.fake_node import EPOCH_US, FakeNode, name_of

TTL: Final = 1.0
VALIDITY: Final = TTL * 0.99 - 0.002
DRIFT: Final = 0.01
SOMEBODY: Final = b"rival:1::" + b"a" * 32
SECOND: Final = 1_000_000
MARKER: Final = b"1 run:0 1 1000 41"


class Waiting:
    """A waiter on some nodes, at a time that stands still."""

    def __init__(self, count: int = 3, **options: Any) -> None:
        request = lock_request(count, ttl=TTL, **options)
        self.io = FakeIO([FakeNode() for _ in range(count)], request.group)
        self.io.tick = 0.0
        self.io.time = 100.0
        run(self.io.connect(count, 1.0))
        run(self.io.subscribe(1.0))
        self.acquisition = Acquisition(request, request.config.timing, None, self.io.time)
        self.queue = ServerQueue(self.io, FakeWakeup(), self.acquisition)
        self.io.mailbox[self.queue.who.id] = self.queue

    def refused(self, *times: int) -> None:
        """The first attempt was refused by nodes with these server times (0: granted, without a time)."""
        ballot = Ballot(len(times), len(times) // 2 + 1)
        for i, time in enumerate(times):
            ballot.add(i, Refused(9000, SOMEBODY, False, time, b"") if time else Granted(-1, 5, 0, False, 0, b""))
        self.queue.seed(ballot, queued=False)

    def queued(self) -> None:
        """It has claimed on all nodes, and was refused there a moment ago."""
        times = [EPOCH_US] * self.io.group.n
        self.refused(*times)
        self.sent()
        for i, time in enumerate(times):
            self.queue.on_reply(i, Refused(9000, SOMEBODY, False, time, b""), self.io.time, self.io.time)

    def granted(self, node: int, stamp: int, *, left_ms: int = 1000, age: float = 0.0, inquired: bool = False) -> None:
        """A node's reply to a claim that was sent `age` seconds ago."""
        self.queue.on_reply(node, Granted(left_ms, 7, stamp, inquired, EPOCH_US, None), self.io.time - age, self.io.time)

    def yours(self, node: int, stamp: int, after_us: int = 0) -> None:
        """A push: the vote was handed over so many µs after the node's last answer."""
        self.queue.on_push(node, Yours(self.queue.who.id, stamp, 7, EPOCH_US + after_us, None))

    def inquire(self, node: int, stamp: int) -> None:
        self.queue.on_push(node, Inquiry(self.queue.who.id, stamp))

    def pushed(self, node: int, text: bytes) -> None:
        """A message comes on the node's connection."""
        connection: Any = SimpleNamespace(on_push=None)
        self.io.listen_to(connection)
        connection.on_push(node, [b"message", self.io.channels[node], text])

    def sent(self) -> list[tuple[int, str]]:
        """What it sends now: node and command."""
        self.io.sent.clear()
        run(self.queue.send_due())
        return [(i, name_of(words)) for _, i, words in self.io.sent]

    def arguments(self) -> list[list[bytes]]:
        """The arguments of the scripts that it has just sent."""
        return [words[3 + int(words[2]) :] for _, _, words in self.io.sent]

    def counted(self) -> list[int]:
        """The nodes whose votes count now."""
        return [i for i, vote in enumerate(self.queue.votes) if vote.deadline > self.io.time]

    def hold(self) -> Hold | None:
        now = self.queue.io.now()
        counted = self.queue.counted(now)
        return run(self.queue.conclude(counted, now)) if len(counted) >= self.queue.group.need else None


def test_hold_knows_the_nodes_whose_replies_to_claims_are_still_missing() -> None:
    """A push may give the vote before the reply to a repeated claim. A release elsewhere could overtake that claim."""
    waiting = Waiting()
    waiting.queued()
    for vote in waiting.queue.votes:
        vote.due = 0.0
    assert waiting.sent() == [(0, "claim"), (1, "claim"), (2, "claim")]
    for claims in list(waiting.queue.requests):
        for node in (0, 2):
            claims.add(node, [0, 9000, SOMEBODY, 0, b"%d" % (EPOCH_US // SECOND), b"0", b""])
    for node in range(3):
        waiting.yours(node, stamp=9)
    hold = waiting.hold()
    assert hold is not None
    assert hold.claims_under_way == hold.unanswered == 0b010


# -- rule 1 ------------------------------------------------------------------------------------------------------------


def test_message_for_another_acquisition_is_ignored() -> None:
    waiting = Waiting()
    waiting.queued()
    for text in (b"yours %b 9 7 1800000000 0 ", b"inquire %b 9"):
        waiting.pushed(0, text % SOMEBODY)
    assert waiting.counted() == []
    assert waiting.sent() == []
    waiting.pushed(0, b"yours %b 9 7 1800000000 0 " % waiting.queue.who.id)
    assert waiting.counted() == [0]


def test_unknown_message_is_ignored() -> None:
    waiting = Waiting()
    waiting.queued()
    for text in (b"", b"hello", b"yours", b"yours %b x 7 1 1" % waiting.queue.who.id, b"\xff\xff"):
        waiting.pushed(0, text)
    assert waiting.counted() == []


# -- rule 2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stood_still", [False, True])
def test_standstill_while_the_nodes_agree_on_a_token_voids_the_votes(stood_still: bool) -> None:
    waiting = Waiting()
    waiting.queued()
    for node in (0, 1):
        waiting.granted(node, stamp=9)
    now = waiting.io.now()
    counted = waiting.queue.counted(now)
    if stood_still:
        waiting.io.group.stood_still()
    hold = run(waiting.queue.conclude(counted, now))
    assert (hold is None, waiting.counted()) == ((True, []) if stood_still else (False, [0, 1]))


def test_granted_vote_counts_from_the_moment_its_claim_was_sent() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5, age=0.2)
    assert waiting.counted() == [0]
    assert waiting.queue.votes[0].deadline == pytest.approx(100.0 - 0.2 + VALIDITY)


@pytest.mark.parametrize(("left_ms", "ttl"), [(500, 0.5), (1000, 1.0), (3_600_000, 1.0)])
def test_granted_vote_counts_for_its_remaining_ttl_and_never_longer(left_ms: int, ttl: float) -> None:
    """A server whose clock was set back says that hours are left."""
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5, left_ms=left_ms)
    assert waiting.queue.votes[0].deadline == pytest.approx(100.0 + ttl * 0.99 - 0.002)


def test_granted_vote_whose_deadline_has_passed_does_not_count_and_is_claimed_again() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5, age=TTL)
    assert waiting.counted() == []
    assert waiting.sent() == [(0, "claim")]


def test_handed_over_vote_counts_from_the_hand_over_less_the_drift() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.io.time += 5.1
    waiting.yours(0, 5, after_us=5 * SECOND)
    assert waiting.queue.votes[0].deadline == pytest.approx(100.0 + 5.0 * (1 - DRIFT) + VALIDITY)


def test_handed_over_vote_whose_deadline_has_passed_does_not_count_and_is_claimed_again() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.io.time += 5.0 + TTL
    waiting.yours(0, 5, after_us=5 * SECOND)
    assert waiting.counted() == []
    assert (0, "claim") in waiting.sent()


@pytest.mark.parametrize("after", [-1.0, 3600.0], ids=["before the answer", "in the future"])
def test_hand_over_with_impossible_time_is_claimed_again(after: float) -> None:
    """The server's clock was set."""
    waiting = Waiting()
    waiting.queued()
    waiting.yours(0, 5, after_us=round(after * SECOND))
    assert waiting.counted() == []
    assert waiting.sent() == [(0, "claim")]


def test_hand_over_of_a_guarded_node_counts_with_its_proof_only() -> None:
    """A node that has lost its data on a live connection shows no marker, or another one."""
    waiting = Waiting(guard=True)
    node = waiting.io.group.nodes[0]
    waiting.queued()
    waiting.io.group.set_marker(node, MARKER)
    for proof in (b"", b"0", b"1 run:0 5 1000 -"):
        waiting.queue.on_push(0, Yours(waiting.queue.who.id, 5, 7, EPOCH_US, proof))
        assert waiting.counted() == [], proof
        waiting.io.group.set_marker(node, MARKER)
    waiting.queue.on_push(0, Yours(waiting.queue.who.id, 6, 7, EPOCH_US, node.marker))
    assert waiting.counted() == [0]


@pytest.mark.parametrize(("age", "counted"), [(0.1, [0]), (0.6, [])], ids=["a recent claim", "an old claim"])
def test_hand_over_of_a_guarded_node_counts_for_a_recent_claim_only(age: float, counted: list[int]) -> None:
    """The node may have been demoted and promoted again since, and may have missed votes of another master."""
    waiting = Waiting(guard=True, max_ttl=TTL)
    waiting.queued()
    waiting.io.group.set_marker(waiting.io.group.nodes[0], MARKER)
    waiting.io.time += age
    passed = round(age * SECOND)
    waiting.queue.on_push(0, Yours(waiting.queue.who.id, 5, 7, EPOCH_US + passed, MARKER))
    assert waiting.counted() == counted
    assert (0, "claim") in waiting.sent() or counted


def test_hand_over_before_any_reply_is_claimed_again() -> None:
    waiting = Waiting()
    waiting.refused(EPOCH_US, EPOCH_US, EPOCH_US)
    waiting.sent()
    waiting.yours(0, 5)
    assert waiting.counted() == []
    assert waiting.sent() == [(0, "claim")]


@pytest.mark.parametrize("again", ["granted", "yours"])
@pytest.mark.parametrize("stamp", [4, 5])
def test_vote_that_was_yielded_never_counts_and_is_yielded_again(again: str, stamp: int) -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.inquire(0, 5)
    assert waiting.sent() == [(0, "yield")]
    if again == "granted":
        waiting.granted(0, stamp)
    else:
        waiting.yours(0, stamp)
    assert waiting.counted() == []
    assert waiting.sent() == [(0, "yield")]
    assert waiting.arguments()[0][2] == b"%d" % stamp


@pytest.mark.parametrize(("age", "counted"), [(0.1, [0]), (0.3, [])], ids=["sent after the yield", "sent before it"])
def test_vote_with_a_smaller_stamp_counts_if_the_node_began_anew(age: float, counted: list[int]) -> None:
    """The node's clock was set back, and the node forgot its stamps. Only the reply to a later request proves that."""
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.inquire(0, 5)
    assert waiting.sent() == [(0, "yield")]
    waiting.io.time += 0.2
    waiting.granted(0, 3, age=age)
    assert waiting.counted() == counted


def test_vote_with_a_newer_stamp_counts_after_a_yield() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.inquire(0, 5)
    assert waiting.sent() == [(0, "yield")]
    waiting.yours(0, 6)
    assert waiting.counted() == [0]


# -- rule 3 ------------------------------------------------------------------------------------------------------------


def test_majority_of_counted_votes_makes_a_hold() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    assert waiting.hold() is None
    waiting.granted(2, 9)
    hold = waiting.hold()
    assert hold is not None
    assert (hold.votes, hold.token) == (0b101, 7)


def test_hold_ends_with_the_last_vote_that_a_majority_needs() -> None:
    waiting = Waiting()
    waiting.queued()
    for node, age in enumerate((0.1, 0.3, 0.2)):
        waiting.granted(node, 5, age=age)
    hold = waiting.hold()
    assert hold is not None
    assert hold.deadline == pytest.approx(100.0 - 0.2 + VALIDITY), "the second largest deadline of three"
    assert hold.renew_from == pytest.approx(100.0 - 0.2)


def test_expired_votes_make_no_majority() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.io.time += 0.9
    waiting.granted(1, 5)
    waiting.io.time += 0.5
    assert waiting.counted() == [1]
    assert waiting.hold() is None


@pytest.mark.parametrize("fault", [UNREADY, STEPPED], ids=["forgot", "stepped"])
def test_vote_of_a_node_that_has_forgotten_does_not_count_any_more(fault: Fault) -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    assert waiting.counted() == [0]
    waiting.queue.on_reply(0, fault, waiting.io.time, waiting.io.time)
    assert waiting.counted() == []


def test_vote_of_a_node_that_does_not_answer_counts_on() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.queue.on_reply(0, SILENT, waiting.io.time, waiting.io.time)
    assert waiting.counted() == [0]


# -- rule 4 ------------------------------------------------------------------------------------------------------------


def test_inquired_vote_is_uncounted_before_it_is_yielded() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.inquire(0, 5)
    assert waiting.counted() == [], "once the yield is sent, the vote may be another's"
    waiting.granted(1, 5)
    assert waiting.hold() is None
    assert waiting.sent() == [(0, "yield")]
    assert waiting.arguments()[0][2] == b"5"


def test_inquiry_in_the_reply_to_a_claim_is_obeyed() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5, inquired=True)
    assert waiting.counted() == []
    assert waiting.sent() == [(0, "yield")]


@pytest.mark.parametrize("stamp", [4, 6])
def test_inquiry_for_another_vote_is_ignored(stamp: int) -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.inquire(0, stamp)
    assert waiting.counted() == [0]
    assert waiting.sent() == []


def test_inquiry_is_ignored_without_counted_vote() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.inquire(0, 5)
    assert waiting.sent() == []


def test_holder_ignores_inquiries() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.granted(1, 5)
    assert waiting.hold() is not None
    waiting.inquire(0, 5)
    assert waiting.counted() == [0, 1]
    assert waiting.sent() == []


def test_inquiry_that_overtakes_its_grant_is_remembered() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.inquire(0, 5)
    waiting.granted(0, 5)
    assert waiting.counted() == []
    assert waiting.sent() == [(0, "yield")]


def test_yield_to_an_unreachable_node_is_not_tried_again_and_again() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.inquire(0, 5)
    waiting.io.lose_connection(0)
    assert waiting.sent() == []
    assert waiting.queue.next_look() > waiting.io.time
    assert not waiting.queue.must_yield
    run(waiting.io.connect(3, 1.0))
    waiting.io.time += 0.11
    assert (0, "yield") in waiting.sent()


def test_vote_whose_counter_cannot_be_raised_is_claimed_again() -> None:
    """The node that is behind does not answer."""
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.queue.on_reply(1, Granted(1000, 8, 5, False, EPOCH_US, None), waiting.io.time, waiting.io.time)
    waiting.io.silent = {0}
    assert waiting.hold() is None
    assert (0, "claim") in waiting.sent()
    assert 0 not in waiting.counted()


# -- rule 5 ------------------------------------------------------------------------------------------------------------


def test_vote_is_claimed_again_before_it_expires() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.granted(0, 5)
    waiting.io.time += TTL / 3 - 0.01
    assert waiting.sent() == []
    waiting.io.time += 0.02
    assert waiting.sent() == [(0, "claim")]


def test_refused_claim_is_repeated_when_the_holders_ttl_is_over() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.queue.on_reply(0, Refused(400, SOMEBODY, False, EPOCH_US, None), waiting.io.time, waiting.io.time)
    waiting.io.time += 0.4
    assert waiting.sent() == [], "servers count whole milliseconds"
    waiting.io.time += 0.0011
    assert waiting.sent() == [(0, "claim")]


def test_claims_of_a_waiter_that_has_left_are_over() -> None:
    """A connection that loads lost scripts sends claims again, behind the release, unless they are over."""
    waiting = Waiting()
    waiting.refused(EPOCH_US, EPOCH_US, EPOCH_US)
    waiting.sent()
    requests = list(waiting.queue.requests)
    assert requests
    waiting.queue.end()
    assert all(request.over for request in requests)


def test_claim_is_repeated_without_reply() -> None:
    waiting = Waiting()
    waiting.refused(EPOCH_US, EPOCH_US, EPOCH_US)
    assert len(waiting.sent()) == 3
    waiting.io.time += 0.05
    assert waiting.sent() == []
    waiting.io.time += 0.06
    assert len(waiting.sent()) == 3


def test_claim_is_repeated_after_a_fault() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.queue.on_reply(1, SILENT, waiting.io.time, waiting.io.time)
    waiting.io.time += 0.11
    assert waiting.sent() == [(1, "claim")]


def test_claim_is_repeated_after_a_reconnection_and_the_subscription_comes_first() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.io.lose_connection(1)
    run(waiting.io.connect(3, 1.0))
    assert waiting.io.channels[1] == b""
    assert waiting.sent() == [(1, "claim")]
    assert waiting.io.channels[1] in waiting.arguments()[0], "the claim names the channel"
    assert waiting.arguments()[0][0] == waiting.queue.who.id, "it finds its place again"


def test_lost_connection_of_a_minority_is_made_again_at_once() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.io.lose_connection(1)
    assert waiting.sent() == [], "the node is being connected"
    run(waiting.io.sleep(waiting.queue.next_look()))
    assert waiting.sent() == [(1, "claim")]
    assert waiting.io.channels[1] in waiting.arguments()[0], "the claim names the channel"


# -- rule 6 ------------------------------------------------------------------------------------------------------------


def test_ticket_is_the_median_of_the_refusing_nodes_times() -> None:
    waiting = Waiting(5)
    waiting.refused(EPOCH_US + 7, EPOCH_US + 2, EPOCH_US + 9, 0, 0)
    waiting.sent()
    assert {arguments[4] for arguments in waiting.arguments()} == {b"%d" % (EPOCH_US + 7)}


def test_ticket_is_taken_once() -> None:
    waiting = Waiting()
    waiting.queued()
    waiting.io.time += 20.0
    for node in range(3):
        waiting.queue.on_reply(
            node, Refused(0, SOMEBODY, False, EPOCH_US + 20 * SECOND, None), waiting.io.time, waiting.io.time
        )
    waiting.io.time += 1.0
    assert len(waiting.sent()) == 3
    assert {arguments[4] for arguments in waiting.arguments()} == {b"%d" % EPOCH_US}


def test_ticket_is_sent_to_all_nodes_including_granting_ones() -> None:
    waiting = Waiting()
    waiting.refused(EPOCH_US, EPOCH_US, 0)
    assert waiting.sent() == [(0, "claim"), (1, "claim"), (2, "claim")]


def test_ticket_comes_from_clocks_of_nodes_without_refusals() -> None:
    waiting = Waiting()
    names = [name for _, name in waiting.sent()]
    assert names == ["time"] * 3 + ["claim"] * 3
    assert {words[3 + int(words[2]) + 4] for _, _, words in waiting.io.sent if len(words) > 3} == {b"%d" % EPOCH_US}


def test_ticket_of_a_single_node_is_the_time_of_arrival() -> None:
    waiting = Waiting(1)
    waiting.refused(EPOCH_US)
    assert waiting.sent() == [(0, "claim")]
    assert waiting.arguments()[0][4] == b"0"


def _joining() -> Waiting:
    """A waiter of an explicit owner that has just claimed on all three nodes."""
    waiting = Waiting(owner=b"job")
    waiting.queued()
    for vote in waiting.queue.votes:
        vote.unanswered = 1
    return waiting


def _share(waiting: Waiting, node: int) -> None:
    """The node's vote is with another acquisition of the owner, and a lower ticket waits for it."""
    waiting.queue.votes[node].unanswered = 0
    waiting.granted(node, stamp=9, inquired=True)


def _refusal(waiting: Waiting, node: int) -> None:
    waiting.queue.votes[node].unanswered = 0
    waiting.queue.on_reply(node, Refused(9000, SOMEBODY, False, EPOCH_US, b""), waiting.io.time, waiting.io.time)


def test_waiter_that_joins_its_owner_on_a_majority_yields_nothing() -> None:
    waiting = _joining()
    for node in (0, 1):
        _share(waiting, node)
    assert waiting.counted() == [0, 1]
    assert waiting.hold() is not None
    assert not any(vote.to_yield for vote in waiting.queue.votes)


def test_waiter_that_joins_its_owner_on_a_minority_yields_when_all_nodes_have_replied() -> None:
    waiting = _joining()
    _share(waiting, 0)
    _refusal(waiting, 1)
    assert waiting.counted() == [0]
    waiting.queue.wakes_at = waiting.io.time  # it sleeps, and nothing else is due
    waiting.queue.wakeup.is_set = False
    _refusal(waiting, 2)
    assert waiting.counted() == []
    assert waiting.queue.wakeup.is_set
    assert (0, "yield") in waiting.sent()


def test_waiter_that_joins_its_owner_does_not_wait_long_for_a_node_without_reply() -> None:
    waiting = _joining()
    _share(waiting, 0)
    _refusal(waiting, 1)
    assert waiting.queue.votes[0].due <= waiting.io.time + 0.1
    _share(waiting, 0)  # the reply to a repeated claim
    assert waiting.counted() == []
    assert (0, "yield") in waiting.sent()
