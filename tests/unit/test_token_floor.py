"""The floor of a node that comes back: never below a token that was given, while fewer than a majority forget.

All cases of up to five nodes: what each node is, whether it answers, and which majority stored the token.
"""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import pytest

from handfast.core.guard import FORGOT, KEPT, Marker, _State, floor_for, memory, text
from handfast.core.nodes import NodeGroup
from handfast.options import policy

TOKEN = 7
INCARNATION = b"run:0"


class Case(NamedTuple):
    """What a node says of itself, and whether it remembers."""

    floor: bytes
    remembers: bool
    answers: bool = True


CASES = (
    Case(b"0", True),
    Case(b"0", True, answers=False),
    Case(FORGOT, False),
    Case(FORGOT, False, answers=False),
    Case(KEPT, True),
    Case(KEPT, False),
    Case(KEPT, False, answers=False),
)


def group_of(nodes: int) -> NodeGroup:
    return NodeGroup([f"node-{i}" for i in range(nodes)], policy({}), guard=True)


def state(case: Case, stored: bool) -> _State:
    raw = text(INCARNATION, b"1", 30_000, case.floor)
    return _State(raw, Marker.parse(raw), TOKEN if stored and case.remembers else 0, 2, 0.0)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_floor_is_never_below_token_while_minority_forgets(nodes: int) -> None:
    group = group_of(nodes)
    opened = 0
    for cases in product(CASES, repeat=nodes):
        if sum(1 for case in cases if not case.remembers) >= group.need:
            continue
        ready = sum(1 for case in cases if case.answers and case.floor != b"0")
        for majority in combinations(range(nodes), group.need):
            states = {i: state(case, i in majority) for i, case in enumerate(cases) if case.answers}
            floor = floor_for(group, states, ready) if states else None
            assert floor in (None, TOKEN), f"{floor} with {cases}, the token on {majority}"
            opened += floor is not None
    assert opened


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_nodes_open_when_all_answer(nodes: int) -> None:
    group = group_of(nodes)
    answering = [case for case in CASES if case.answers]
    for cases in product(answering, repeat=nodes):
        states = {i: state(case, True) for i, case in enumerate(cases)}
        ready = sum(1 for case in cases if case.floor != b"0")
        assert floor_for(group, states, ready) is not None, cases


def test_majority_that_certainly_forgot_opens_without_rest() -> None:
    forgot = state(Case(FORGOT, False), False)
    assert floor_for(group_of(3), {0: forgot, 1: forgot}, ready=2) == 0
    assert floor_for(group_of(3), {0: forgot, 1: forgot}, ready=1) is None


@pytest.mark.parametrize(
    ("seen", "remains"),
    [
        (None, FORGOT),
        (b"", FORGOT),
        (b"somebody's lock", FORGOT),
        (text(b"earlier:0", b"1", 30_000, FORGOT), FORGOT),
        (text(b"earlier:0", b"1", 30_000, KEPT), KEPT),
        (text(b"earlier:0", b"1", 30_000, b"41"), KEPT),
    ],
)
def test_marker_distinguishes_durable_restart_from_data_loss(seen: bytes | None, remains: bytes) -> None:
    assert memory(seen) == remains
