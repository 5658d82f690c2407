"""The rules of the restart guard that need no server: markers, floors, Q, steps of a clock."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handfast.core import guard
from handfast.core.clocks import clock_stepped, read_clock
from handfast.core.guard import Marker
from handfast.core.io import Fault
from handfast.core.nodes import Node, NodeGroup
from handfast.core.votes import majority
from handfast.options import policy

US = 1_000_000
VOTER, FORGOT, SILENT = "voter", "forgot", "silent"


def group_of(nodes: int, **options: float) -> NodeGroup:
    group = NodeGroup([f"node-{i}" for i in range(nodes)], policy({**options}), guard=True)
    for node in group.nodes:
        node.incarnation = b"run:replid"
    return group


# -- markers -------------------------------------------------------------------------------------------------------


@given(
    incarnation=st.from_regex(rb"[0-9a-f]{1,40}:[0-9a-f]{0,40}", fullmatch=True),
    ready_at=st.integers(0, 2**60),
    max_ttl=st.integers(1, 10**9),
    floor=st.none() | st.integers(0, 2**53),
)
def test_marker_is_read_as_it_was_written(incarnation: bytes, ready_at: int, max_ttl: int, floor: int | None) -> None:
    word = b"-" if floor is None else b"%d" % floor
    marker = Marker.parse(guard.text(incarnation, b"%d" % ready_at, max_ttl, word))
    assert marker == Marker(incarnation, ready_at, max_ttl, word)
    assert marker.votes is (floor is not None)


@given(st.binary(max_size=60))
def test_garbage_is_not_a_marker(raw: bytes) -> None:
    marker = Marker.parse(raw)
    if marker is not None:
        assert raw.split(b" ")[0] == b"1"
        assert len(raw.split(b" ")) == 5


@pytest.mark.parametrize(
    "raw",
    [
        None,
        b"",
        b"1",
        b"0 run:id 5 6 7",
        b"2 run:id 5 6 7",
        b"1 run:id 5 6",
        b"1 run:id 5 6 7 8",
        b"1 run:id -5 6 7",
        b"1 run:id five 6 7",
        b"1 run:id 5 6.0 7",
        b"1  5 6 7 ",
        b"somebody's lock",
    ],
)
def test_unknown_text_is_not_a_marker(raw: bytes | None) -> None:
    assert Marker.parse(raw) is None


@pytest.mark.parametrize("floor", [b"", b"x", b"1.5", b"-1"])
def test_marker_with_a_malformed_floor_gives_no_vote(floor: bytes) -> None:
    marker = Marker.parse(b"1 run:replid 5 6 " + floor)
    assert marker is None or not marker.votes


# -- which nodes may vote ------------------------------------------------------------------------------------------


def test_marker_of_this_incarnation_with_a_floor_lets_the_node_vote() -> None:
    group = group_of(3, max_ttl=5.0)
    node = group.nodes[1]
    raw = guard.text(b"run:replid", b"%d" % (7 * US), 5000, b"41")
    assert guard.adopt(group, node, raw, 9 * US, 100.0)
    assert node.marker == raw
    assert group.closed(node, 100.0) is None
    assert group.voters() == 1
    assert not group.all_nodes_vote


def test_marker_without_a_floor_gives_no_vote_even_after_the_quarantine() -> None:
    group = group_of(3, max_ttl=5.0)
    node = group.nodes[1]
    node.fault = None  # connected
    raw = guard.text(b"run:replid", b"%d" % (12 * US), 5000, b"-")
    assert guard.adopt(group, node, raw, 9 * US, 100.0)
    assert node.marker == b""
    early, late = group.closed(node, 101.0), group.closed(node, 104.0)
    assert early is not None
    assert "no vote for another 2.0 s" in early.text
    assert late is not None
    assert "until enough other nodes are up" in late.text


@pytest.mark.parametrize("raw", [None, b"", b"garbage", b"1 other:replid 1 5000 41", b"1 run:other 1 5000 41"])
def test_missing_marker_or_one_of_another_incarnation_gives_no_vote(raw: bytes | None) -> None:
    group = group_of(3, max_ttl=5.0)
    node = group.nodes[1]
    group.set_marker(node, b"1 run:replid 1 5000 41")
    assert not guard.adopt(group, node, raw, 9 * US, 100.0)
    assert node.marker == b""


def test_marker_with_another_max_ttl_gives_no_vote() -> None:
    group = group_of(3, max_ttl=5.0)
    node = group.nodes[1]
    assert guard.adopt(group, node, guard.text(b"run:replid", b"1", 8000, b"41"), 9 * US, 100.0)
    assert node.marker == b""
    assert group.config_error() is None, "a majority may still agree with this client"


def test_client_whose_max_ttl_no_majority_can_share_is_misconfigured() -> None:
    group = group_of(3, max_ttl=5.0)
    for node in group.nodes[1:]:
        guard.adopt(group, node, guard.text(b"run:replid", b"1", 8000, b"41"), 9 * US, 100.0)
    error = group.config_error()
    assert error is not None
    assert "node-1" in error
    assert "max_ttl=8" in error
    assert "max_ttl=5" in error


def test_suspect_stays_closed_when_another_connection_reads_its_old_marker() -> None:
    group = group_of(3, max_ttl=5.0)
    raw = guard.text(b"run:replid", b"1", 5000, b"41")
    for node in group.nodes:
        guard.adopt(group, node, raw, 9 * US, 100.0)
    group.suspect(1)
    assert group.closed(group.nodes[1], 100.0) is not None
    guard.adopt(group, group.nodes[1], raw, 9 * US, 100.1)
    assert group.closed(group.nodes[1], 100.1) is not None


@pytest.mark.parametrize(("promoted", "votes"), [(False, True), (True, False)], ids=["same server", "promoted"])
def test_old_reply_does_not_open_a_node_that_was_promoted(promoted: bool, votes: bool) -> None:
    """The reply to an older question has told this client of the promotion. Confirmations compare with it from now on, so
    nothing else would show that the marker is of an earlier incarnation."""
    group = group_of(1)
    node, raw = group.nodes[0], b"1 run:replid 5 30000 6"
    group.set_marker(node, raw)
    node.marker_changed_at = 11.0
    if promoted:
        node.incarnation = b"run:later"
    marker = None if promoted else Marker.parse(raw)
    guard._adopt_all(group, {0: guard._State(raw, marker, 6, 5 * US, asked_at=10.0)}, now=12.0)
    assert (guard.check_vote(group, 0, raw, 5 * US, 12.0, 12.001) is None) == votes


def test_unreachable_node_is_closed_for_its_own_reason() -> None:
    group = NodeGroup(["node-0"], policy({}), guard=True)
    group.failed(0, Fault("refused", "refused the connection"))
    closed = group.closed(group.nodes[0], 0.0)
    assert closed is not None
    assert closed.text == "refused the connection"


# -- votes --------------------------------------------------------------------------------------------------------

MARKER = b"1 run:0 17 30000 0"
SENT, RECEIVED = 10.0, 10.001


def guarded() -> NodeGroup:
    group = group_of(3)
    group.nodes[1].incarnation = b"run:0"
    group.set_marker(group.nodes[1], MARKER)
    return group


def check(group: NodeGroup, proof: bytes, server_us: int = 5 * US) -> Fault | None:
    return guard.check_vote(group, 1, proof, server_us, SENT, RECEIVED)


def test_vote_with_the_expected_marker_counts() -> None:
    group = guarded()
    assert check(group, MARKER) is None
    assert group.closed(group.nodes[1], 10.0) is None


@pytest.mark.parametrize(
    "proof",
    [b"1 another:0 17 30000 0", b"0 " + MARKER, b""],
    ids=["another marker", "more than the marker", "no marker"],
)
def test_vote_without_the_expected_proof_is_a_fault_and_closes_the_node(proof: bytes) -> None:
    group = guarded()
    fault = check(group, proof)
    assert fault is not None
    assert fault.kind == "UNREADY"
    assert group.nodes[1].marker == b""


def test_vote_of_a_node_whose_clock_stepped_forward_is_a_fault_and_makes_it_a_suspect() -> None:
    group = guarded()
    assert check(group, MARKER) is None
    assert check(group, MARKER) is None
    fault = check(group, MARKER, 9 * US)
    assert fault is not None
    assert fault.kind == "clock"
    assert group.suspects == {1}
    assert group.nodes[1].marker == b""


@pytest.mark.parametrize(("share_of_q", "counts"), [(0.49, True), (0.51, False)], ids=["in time", "late"])
def test_vote_that_comes_late_is_a_fault(share_of_q: float, counts: bool) -> None:
    """The node may have been demoted and promoted again since it was asked, and may have missed votes meanwhile."""
    group = guarded()
    late = guard.check_vote(group, 1, MARKER, 5 * US, SENT, SENT + share_of_q * guard.period(group))
    assert (late is None) == counts
    assert group.closed(group.nodes[1], 10.0) is None


def test_any_proof_counts_without_a_guard() -> None:
    group = NodeGroup(["node-0"], policy({}), guard=False)
    assert guard.check_vote(group, 0, b"", 0, SENT, RECEIVED) is None


# -- Q -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_ttl", "drift"), [(30.0, 0.01), (0.8, 0.01), (30.0, 0.0), (10.0, 0.2)])
def test_quarantine_is_longer_than_any_forgotten_lease(max_ttl: float, drift: float) -> None:
    group = group_of(3, ttl=max_ttl, max_ttl=max_ttl, drift=drift)
    q = guard.period(group)
    assert q == pytest.approx(max_ttl * (1 + 2 * drift) + 0.1)
    # A lease of max_ttl ends on a client whose clock is slow; Q is over on a server whose clock is fast.
    assert q / (1 + drift) > policy({"ttl": max_ttl, "max_ttl": max_ttl, "drift": drift}).validity(max_ttl)


@pytest.mark.parametrize(
    ("server_us", "now", "over"), [(99, 10.0, False), (100, 9.9, False), (10**12, 9.9, False), (100, 10.0, True)]
)
def test_quarantine_is_over_by_both_clocks(server_us: int, now: float, over: bool) -> None:
    """Neither a step of the server's clock nor a fast clock of this machine ends it."""
    marker = Marker(b"run:replid", 100, 30000, b"-")
    node = group_of(1).nodes[0]
    node.opens_at = 10.0
    assert guard._is_over(node, marker, server_us, now) is over


# -- suspects ------------------------------------------------------------------------------------------------------


def stepped(group: NodeGroup, index: int) -> None:
    """A node's clock has stepped, and the node had not been asked for longer than max_ttl: nobody knows when it was."""
    for at, ahead in ((0.0, 0.0), (100.0, 60.0 * (index + 1))):
        read_clock(group, index, at, at, round((at + 5.0 + ahead) * US))


@pytest.mark.parametrize(("nodes", "most"), [(1, 1), (2, 0), (3, 1), (4, 1), (5, 2)])
def test_suspects_in_quarantine_leave_a_majority(nodes: int, most: int) -> None:
    """With a single node there is no majority to leave."""
    group = group_of(nodes)
    states = {node.index: state_of(VOTER, 0) for node in group.nodes}
    for node in group.nodes:
        group.set_marker(node, states[node.index].raw)
    closed = set[int]()
    for node in group.nodes:
        stepped(group, node.index)
        assert node.index in group.suspects
        if guard._to_quarantine(group, node, states[node.index], states):
            closed.add(node.index)
    assert closed == set(range(most))


def test_suspect_that_may_not_go_into_quarantine_is_not_trusted_for_Q() -> None:
    group = group_of(3)
    stepped(group, 1)
    raw = guard.text(b"run:replid", b"1", 30000, b"41")
    for now, votes in ((100.0, False), (100.0 + guard.period(group) - 0.01, False), (100.0 + guard.period(group), True)):
        guard._end_suspicions(group, now)
        guard.adopt(group, group.nodes[1], raw, 9 * US, now)
        assert (group.closed(group.nodes[1], now) is None) is votes


# -- floors --------------------------------------------------------------------------------------------------------


def state_of(kind: str, mark: int) -> guard._State:
    raw = guard.text(b"run:replid", b"0", 30000, b"0" if kind == VOTER else b"-")
    return guard._State(raw, Marker.parse(raw), mark, 0, 0.0)


@pytest.mark.parametrize("nodes", [3, 4, 5])
def test_majority_that_forgot_is_readmitted_in_any_order(nodes: int) -> None:
    """A node that opened alone would look to the next one as if it had lost nothing, and would keep it closed."""
    need = majority(nodes)
    group = group_of(nodes)
    for kinds in itertools.product((VOTER, FORGOT, SILENT), repeat=nodes):
        forgetful = [i for i, kind in enumerate(kinds) if kind == FORGOT]
        if kinds.count(SILENT) > nodes - need or len(forgetful) < need:
            continue
        for order in itertools.permutations(forgetful):
            states = {i: state_of(kind, 10 * i) for i, kind in enumerate(kinds) if kind != SILENT}
            for last in range(1, len(order) + 1):
                ready = [i for i in order[:last] if not states[i].votes]
                floor = guard.floor_for(group, states, len(ready)) if ready else None
                if floor is not None:
                    states.update({i: state_of(VOTER, floor) for i in ready})
            assert all(state.votes for state in states.values()), (kinds, order)


def test_node_whose_clock_stepped_is_not_counted_as_a_voter() -> None:
    group = group_of(3)
    states = {0: state_of(VOTER, 10), 1: state_of(FORGOT, 0), 2: state_of(FORGOT, 0)}
    assert guard.floor_for(group, states, 1) == 10
    group.suspect(0)
    assert guard.floor_for(group, states, 1) is None
    assert guard.floor_for(group, states, 2) == 10


# -- clocks --------------------------------------------------------------------------------------------------------


def node_at(offset: float, at: float, trip: float = 0.0) -> Node:
    """A node whose clock was read once: `offset` ahead of this machine's, with a round trip of `trip`."""
    node = Node(0, "node-0")
    assert not clock_stepped(node, at, at + trip, round((at + trip / 2 + offset) * 1e6), 0.01)
    return node


def test_first_reading_is_never_a_step() -> None:
    assert not clock_stepped(Node(0, "node-0"), 1.0, 1.0, 10**15, 0.01)


@pytest.mark.parametrize(
    ("step", "after", "stepped"),
    [
        (0.0, 1.0, False),
        (0.015, 0.1, False),  # set right by less than the margin
        (0.025, 0.1, True),
        (0.025, 1.0, False),  # as far as rates may differ in a second, and the margin
        (0.035, 1.0, True),
        (0.2, 10.0, True),
        (3600.0, 1.0, True),
        (-0.5, 1.0, False),  # backwards keeps keys longer: no lease ends early
        (-3600.0, 1.0, False),
    ],
)
def test_step_forward_beyond_drift_and_margin_is_noticed(step: float, after: float, stepped: bool) -> None:
    node = node_at(5.0, 100.0)
    at = 100.0 + after
    assert clock_stepped(node, at, at, round((at + 5.0 + step) * 1e6), 0.01) is stepped


def test_slow_round_trip_is_not_taken_for_a_step() -> None:
    node = node_at(5.0, 100.0, trip=0.4)
    assert not clock_stepped(node, 101.0, 101.5, round((101.01 + 5.0) * 1e6), 0.01)


def test_step_is_measured_from_the_latest_reading() -> None:
    node = node_at(5.0, 100.0)
    assert clock_stepped(node, 101.0, 101.0, round((101.0 + 6.0) * 1e6), 0.01)
    assert not clock_stepped(node, 102.0, 102.0, round((102.0 + 6.0) * 1e6), 0.01)
