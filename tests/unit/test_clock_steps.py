"""Which clock has stepped: a node's, or this machine's. Without a server."""

from __future__ import annotations

import pytest

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

    def read(self, index: int, at: float, step: float = 0.0) -> bool:
        return read_clock(self.group, index, at, at + TRIP, round((at + OFFSET + step) * 1e6))

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


def test_steps_of_different_amounts_are_not_alike() -> None:
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    assert readings.read_all(1.0, 1.0, 2.0, 0.0) == [True, True, False]
    assert (readings.group.suspects, readings.losses) == ({0, 1}, 0)


def test_steps_at_different_times_are_not_alike() -> None:
    readings = Readings(3)
    readings.read_all(0.0, 0.0, 0.0, 0.0)
    readings.read_all(1.0, 1.0, 0.0, 0.0)
    readings.read_all(2.0, 1.0, 0.0, 0.0)
    readings.read_all(3.0, 1.0, 1.0, 0.0)
    assert (readings.group.suspects, readings.losses) == ({0, 1}, 0)


def test_single_node_with_clock_step_is_suspect() -> None:
    readings = Readings(1)
    readings.read_all(0.0, 0.0)
    assert readings.read(0, 1.0, 1.0)
    assert (readings.group.suspects, readings.losses) == ({0}, 0)
