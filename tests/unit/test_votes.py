"""Vote counting: decided exactly when the yeses reach the need, or when they no longer can."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handfast.core.io import Fault
from handfast.core.votes import (
    AllReplies,
    Ballot,
    BatchBallot,
    MultiReplyBallot,
    OneReply,
    is_grant,
    majority,
)
from handfast.protocol.claims import Granted, Refused

FAULT = Fault("closed", "not connected")
YES: list[Any] = [1, 42, b"OK", Granted(-1, 7, 0, False, 0, b"")]
NO: list[Any] = [None, 0, Refused(900, b"somebody", False, 0, b"")]
KINDS = ("yes", "no", "fault")


def reply_of(kind: str, variant: int) -> Any:
    if kind == "fault":
        return FAULT
    return YES[variant % len(YES)] if kind == "yes" else NO[variant % len(NO)]


def play(ballot: Ballot, order: tuple[int, ...], kinds: tuple[str, ...], need: int) -> None:
    """Give the answers in this order, and compare every step with the definition."""
    nodes = len(kinds)
    late: list[int] = []
    ballot.late = late.append
    yeses: list[int] = []
    dead, expected_late, was_decided = 0, [], False
    for step, node in enumerate(order):
        kind = kinds[node]
        told = ballot.add(node, reply_of(kind, step + node))
        if kind == "yes":
            yeses.append(node)
            if was_decided:
                expected_late.append(node)
        else:
            dead += 1
        decided = len(yeses) >= need or nodes - dead < need
        assert told is (decided and not was_decided)
        assert ballot.decided is decided
        assert ballot.won is (len(yeses) >= need)
        assert ballot.votes == sum(1 << i for i in yeses)
        assert ballot.refused() == sum(kinds[i] == "no" for i in order[: step + 1])
        assert [i for i, a in enumerate(ballot.answers) if a is None] == sorted(
            set(range(nodes)) - set(order[: step + 1])
        )
        was_decided = decided
    assert late == expected_late
    assert ballot.decided


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_ballot_is_decided_when_the_outcome_is_certain_for_every_order_and_answer(nodes: int) -> None:
    for need in range(1, nodes + 1):
        for kinds in itertools.product(KINDS, repeat=nodes):
            for order in itertools.permutations(range(nodes)):
                play(Ballot(nodes, need), order, kinds, need)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_ballot_of_a_loss_waits_for_the_noes_that_prove_it(nodes: int) -> None:
    need = majority(nodes)
    for kinds in itertools.product(KINDS, repeat=nodes):
        for order in itertools.permutations(range(nodes)):
            ballot, said = Ballot(nodes, need, proves_loss=True), []
            for step, node in enumerate(order):
                was_decided = ballot.decided
                told = ballot.add(node, reply_of(kinds[node], step + node))
                said.append(kinds[node])
                silent = nodes - len(said)
                may_win = said.count("yes") + silent >= need > said.count("yes")
                may_be_refused = said.count("no") + silent > nodes - need >= said.count("no")
                assert ballot.decided is (was_decided or said.count("yes") >= need or not (may_win or may_be_refused))
                assert told is (ballot.decided and not was_decided)


def test_ballot_of_five_nodes_for_every_order_and_answer() -> None:
    need = majority(5)
    for kinds in itertools.product(KINDS, repeat=5):
        for order in itertools.permutations(range(5)):
            play(Ballot(5, need), order, kinds, need)


@given(st.data())
def test_ballot_of_a_larger_group_is_decided_when_the_outcome_is_certain(data: st.DataObject) -> None:
    nodes = data.draw(st.integers(5, 15))
    need = data.draw(st.integers(1, nodes))
    kinds = tuple(data.draw(st.lists(st.sampled_from(KINDS), min_size=nodes, max_size=nodes)))
    order = tuple(data.draw(st.permutations(range(nodes))))
    play(Ballot(nodes, need), order, kinds, need)


@pytest.mark.parametrize("nodes", range(1, 16))
def test_two_majorities_share_a_node(nodes: int) -> None:
    assert 2 * majority(nodes) > nodes
    assert 2 * (majority(nodes) - 1) <= nodes


@pytest.mark.parametrize("answer", YES)
def test_grant_positive_integer_and_status_count_as_grants(answer: Any) -> None:
    assert is_grant(answer)


@pytest.mark.parametrize("answer", [*NO, FAULT, -1, "", True, [], [1, 2, 3]])
def test_other_replies_are_no_grants(answer: Any) -> None:
    assert not is_grant(answer)
    ballot = Ballot(1, 1)
    ballot.add(0, answer)
    assert not ballot.won


def test_fault_is_not_a_refusal() -> None:
    ballot = Ballot(3, 2)
    for node, reply in enumerate([FAULT, None, FAULT]):
        ballot.add(node, reply)
    assert ballot.decided
    assert ballot.refused() == 1


def test_ballot_among_some_nodes_is_decided_by_them_alone() -> None:
    ballot = Ballot(5, 2, 2)
    assert ballot.add(3, FAULT)
    assert not ballot.won


def test_several_replies_of_a_node_are_reduced_to_one_answer_and_faults_are_kept() -> None:
    reduced: list[tuple[int, list[Any]]] = []

    def reduce(node: int, replies: list[Any]) -> Any:
        reduced.append((node, replies))
        return replies[1]

    ballot = MultiReplyBallot(3, 2, 2, reduce)
    assert not ballot.add(0, [0, 1])
    assert not ballot.add(1, FAULT)
    assert ballot.add(2, [0, 1])
    assert reduced == [(0, [0, 1]), (2, [0, 1])]
    assert ballot.votes == 0b101


def test_all_replies_are_decided_when_all_nodes_have_answered() -> None:
    ballot = AllReplies(3, 2, lambda node, replies: replies[0])
    assert not ballot.add(0, [1, 1])
    assert not ballot.add(2, FAULT)
    assert ballot.add(1, [0, 1])
    assert ballot.answers == [1, 0, FAULT]


def columns(width: int) -> list[Any]:
    """Every answer of one node to `width` commands, and no answer to any."""
    return [*itertools.product(KINDS, repeat=width), "fault"]


@pytest.mark.parametrize(("nodes", "width"), [(1, 1), (2, 1), (3, 1), (4, 1), (1, 2), (2, 2), (3, 2)])
def test_batch_is_decided_when_every_column_is_or_all_nodes_have_answered(nodes: int, width: int) -> None:
    need = majority(nodes)
    for answers in itertools.product(columns(width), repeat=nodes):
        for order in itertools.permutations(range(nodes)):
            ballots = [Ballot(nodes, need) for _ in range(width)]
            batch = BatchBallot(ballots, asked=nodes)
            told = 0
            for step, node in enumerate(order):
                kinds = answers[node]
                replies: Any = FAULT if kinds == "fault" else [reply_of(kind, 0) for kind in kinds]
                told += batch.add(node, replies if width > 1 or replies is FAULT else replies[0])
                assert batch.decided is (all(ballot.decided for ballot in ballots) or step + 1 == nodes)
                assert told == batch.decided
            for column, ballot in enumerate(ballots):
                said = [answers[i] if answers[i] == "fault" else answers[i][column] for i in range(nodes)]
                assert ballot.yeses == said.count("yes")
                assert ballot.refused() == said.count("no")


def test_fault_in_the_tail_voids_all_answers_of_that_node_only() -> None:
    ballots = [Ballot(3, 2) for _ in range(2)]
    tails: list[tuple[int, list[Any]]] = []

    def tail(node: int, replies: list[Any]) -> Fault | None:
        tails.append((node, replies))
        return FAULT if node == 0 else None

    batch = BatchBallot(ballots, asked=3, extra=1, tail=tail)
    assert batch.width == 3
    assert not batch.add(0, [b"OK", b"OK", 9])
    assert not batch.add(1, [b"OK", None, 9])
    assert batch.add(2, [b"OK", None, 9])
    assert [ballot.yeses for ballot in ballots] == [2, 0]
    assert [ballot.refused() for ballot in ballots] == [0, 2]
    assert tails == [(0, [9]), (1, [9]), (2, [9])]


def test_first_of_two_replies_counts_where_one_is_expected() -> None:
    """A request that a cluster redirects may be answered twice."""
    one = OneReply()
    assert one.add(0, 1)
    assert not one.add(0, 0)
    assert one.reply == 1
