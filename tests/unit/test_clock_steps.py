"""Which clock has stepped: a node's, or this machine's. Without a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handfast.core.clocks import read_clock
from handfast.core.nodes import NodeGroup
from handfast.options import policy

OFFSET = 1_000.0
TRIP = 0.001


class Readings:
    """A group whose nodes report their times; each clock may have stepped."""

    def __init__(self, nodes: int) -> None:
        self.group = NodeGroup([f"node-{i}" for i in range(nodes)], policy({}), guard=True)
        self.losses = 0
        self.group.on_standstill = self._lost

    def _lost(self) -> None:
        self.losses += 1

    @property
    def max_ttl(self) -> float:
        return self.group.policy.max_ttl

    def read(self, index: int, at: float, step: float = 0.0, trip: float = TRIP) -> bool:
        """The node answers at once, and the answer is on its way for `trip`."""
        return read_clock(self.group, index, at, at + trip, round((at + OFFSET + step) * 1e6))

    def quarantine(self, index: int, until: float) -> None:
        self.group.cleared(index)
        self.group.nodes[index].quarantined_until = until

    def read_all(self, at: float, *steps: float) -> list[bool]:
        return [self.read(index, at, step) for index, step in enumerate(steps)]


@pytest.mark.parametrize("nodes", [3, 5])
def test_minority_with_clock_step_is_suspect(nodes: int) -> None:
    readings = Readings(nodes)
    minority = nodes - readings.group.need
    readings.read_all(0.0, *[0.0] * nodes)
    steps = [1.0] * minority + [0.0] * (nodes - minority)
    assert readings.read_all(1.0, *steps) == [bool(step) for step in steps]
    assert readings.group.suspects == set(range(minority))
    assert readings.losses == 0


@pytest.mark.parametrize("nodes", [2, 3, 5])
def test_equal_steps_of_majority_are_attributed_to_own_clock(nodes: int) -> None:
    readings = Readings(nodes)
    readings.read_all(0.0, *[0.0] * nodes)
    need = readings.group.need
    assert readings.read_all(1.0, *[0.7] * nodes) == [True] * need + [False] * (nodes - need)
    assert readings.group.suspects == set()
    assert (readings.losses, readings.group.standstills) == (1, 1)
    assert readings.read_all(2.0, *[0.7] * nodes) == [False] * nodes


def test_node_with_late_reading_is_not_suspect_after_standstill() -> None:
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    readings.read_all(1.0, 0.7, 0.7)
    assert not readings.read(2, 9.0, 0.7)
    assert readings.read(2, 10.0, 1.5), "its own step is still noticed"
    assert readings.group.suspects == {2}


@pytest.mark.parametrize("nodes", [3, 5])
def test_short_standstills_that_add_up_are_attributed_to_own_clock(nodes: int) -> None:
    """The first is too short to be noticed. The second is noticed, because the two add up."""
    readings = Readings(nodes)
    for at, stood in ((0.0, 0.0), (0.1, 0.0), (0.2, 0.015), (0.3, 0.015), (0.4, 0.030)):
        readings.read_all(at, *[stood] * nodes)
    assert readings.group.suspects == set()
    assert (readings.losses, readings.group.standstills) == (1, 1)


def test_noticed_step_covers_only_the_time_since_the_last_reading() -> None:
    readings = Readings(3)
    for at, step in ((0.0, 0.0), (0.1, 0.015), (0.2, 0.030)):
        readings.read(0, at, step)
    step = readings.group.nodes[0].step
    assert step is not None
    assert step.least <= 0.015 <= step.most


# -- a majority of suspects whose steps are not alike ------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [3, 5])
def test_majority_of_suspects_is_attributed_to_own_clock(nodes: int) -> None:
    """Each node has noticed another sum of short standstills, at another time."""
    readings = Readings(nodes)
    need = readings.group.need
    for index in range(nodes):
        readings.read(index, 0.0)
    for index in range(need):
        readings.read(index, 1.0 + index, 0.1 * (index + 1))
        assert len(readings.group.suspects) == (index + 1) % need
    assert (readings.losses, readings.group.standstills) == (1, 1)


def test_node_in_quarantine_for_its_clock_counts_as_suspect() -> None:
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    readings.read(0, 1.0, 0.1)
    readings.quarantine(0, until=32.0)
    readings.read(1, 20.0, 0.5)
    assert (readings.group.suspects, readings.losses) == (set(), 1)
    readings.read(2, 33.0, 1.5)
    assert (readings.group.suspects, readings.losses) == ({2}, 1), "the quarantine is over"


def test_nodes_that_were_not_read_for_longer_than_max_ttl_stay_suspect() -> None:
    """One may have stepped long ago, and the other just now, and that is within the promise. The leases are lost."""
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    assert readings.read_all(readings.max_ttl + 1, 1.0, 2.0, 0.0) == [True, True, False]
    assert (readings.group.suspects, readings.losses) == ({0, 1}, 1)


def test_step_that_slow_round_trips_have_hidden_for_longer_than_max_ttl_stays_suspect() -> None:
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    for at in (10.0, 20.0, readings.max_ttl + 1):
        readings.read(0, at, 1.0, trip=0.9)
        readings.read(1, at, 1.4, trip=1.3)
    for index in (0, 1):
        readings.read(index, readings.max_ttl + 2, 1.0 + 0.4 * index)
    assert readings.group.suspects == {0, 1}


def test_standstill_that_a_slow_round_trip_has_hidden_is_not_noticed_later() -> None:
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    readings.read(2, 1.0, 0.1, trip=0.2)
    readings.read_all(1.5, 0.1, 0.1)
    assert readings.losses == 1
    assert not readings.read(2, 2.0, 0.1)
    assert readings.group.suspects == set()


@given(data=st.data(), nodes=st.sampled_from([2, 3, 4, 5]))
def test_minority_that_really_steps_is_never_trusted(data: st.DataObject, nodes: int) -> None:
    """Whatever the round trips, the amounts and the times are, this machine's clock is not blamed."""
    readings = Readings(nodes)
    minority = data.draw(st.integers(1, readings.group.need - 1))
    ahead, noticed, at = [0.0] * nodes, set[int](), 0.0
    readings.read_all(0.0, *ahead)
    for _ in range(data.draw(st.integers(1, 12))):
        at += data.draw(st.floats(0.01, 100.0))
        index = data.draw(st.integers(0, nodes - 1))
        if index < minority:
            ahead[index] += data.draw(st.sampled_from([0.0, 0.03, 0.5, 30.0]))
        if readings.read(index, at, ahead[index], trip=data.draw(st.floats(0.0, 0.3))):
            noticed.add(index)
        assert readings.group.suspects == noticed <= set(range(minority))
    assert readings.group.standstills == 0


# -- a single node -----------------------------------------------------------------------------------------------------


def test_single_node_with_clock_step_is_suspect() -> None:
    readings = Readings(1)
    readings.read_all(0.0, 0.0)
    assert readings.read(0, 1.0, 1.0)
    assert (readings.group.suspects, readings.losses) == ({0}, 0)
