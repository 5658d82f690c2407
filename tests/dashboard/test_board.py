"""What the dashboard makes of two snapshots, without servers."""

from __future__ import annotations

from typing import Any

import pytest

from handfast.dashboard.board import LINES, Board
from handfast.dashboard.reading import Seen, Snapshot
from handfast.events import Event
from handfast.operate.doctor import Check
from handfast.operate.locks import LockInfo, NodeVote, Owner

NODES = ("redis://a", "redis://b", "redis://c")


def lock(
    name: str = "orders",
    owner: str = "ann",
    token: int | None = 7,
    ttl: float | None = 10.0,
    since: float = 1.0,
    waiters: int = 0,
    votes: str = "yyy",
) -> LockInfo:
    def vote(node: str, how: str) -> NodeVote:
        has = {"y": owner, "o": "somebody else"}.get(how)
        return NodeVote(node, has, ttl, token, waiters, "connection refused" if how == "e" else "")

    each = tuple(vote(node, how) for node, how in zip(NODES, votes, strict=True))
    return LockInfo(name, "lock", "held", Owner(owner), token, ttl, since, waiters, each)


def snapshot(at: float, *locks: LockInfo, **more: Any) -> Snapshot:
    return Snapshot(at, {info.name: Seen(info, at) for info in locks}, **more)


def told(board: Board, *snapshots: Snapshot) -> list[tuple[str, str]]:
    """Kinds and names of the lines that the last of these snapshots adds to the tape."""
    for each in snapshots:
        news = board.update(each)
    return [(line["kind"], line["name"]) for line in news.tape]


@pytest.fixture
def board() -> Board:
    return Board(NODES)


def test_locks_that_are_there_at_first_are_no_news(board: Board) -> None:
    assert told(board, snapshot(100, lock())) == []
    assert [row.info.name for row in board.rows.values()] == ["orders"]


def test_new_lock_is_acquired(board: Board) -> None:
    assert told(board, snapshot(100), snapshot(101, lock())) == [("acquired", "orders")]


def test_lock_that_is_gone_before_its_end_was_released(board: Board) -> None:
    assert told(board, snapshot(100, lock()), snapshot(101)) == [("released", "orders")]


def test_lock_whose_time_ran_out_was_lost(board: Board) -> None:
    overdue = snapshot(109, lock(ttl=1, since=10))
    assert told(board, snapshot(100, lock(ttl=10)), overdue, snapshot(111)) == [("lost", "orders")]
    assert board.holders["orders"][0].ended == 110


def test_lock_that_was_fine_before_a_long_pause_has_ended_somehow(board: Board) -> None:
    """It may have been released, or have run out: no snapshot shows which."""
    assert told(board, snapshot(100, lock(ttl=1)), snapshot(103)) == [("ended", "orders")]


def test_holders_of_more_locks_than_are_remembered(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handfast.dashboard.board.REMEMBERED", 2)
    many = [lock(name=f"orders:{i}") for i in range(5)]
    told(board, snapshot(100, *many), snapshot(101, *(lock(name=each.name, ttl=9) for each in many)), snapshot(102))
    assert len(board.holders) == 2
    assert board.rows == {}


def test_other_owner_is_a_hand_over(board: Board) -> None:
    lines = told(board, snapshot(100, lock()), snapshot(102, lock(owner="bob", token=8, since=0.5)))
    assert lines == [("acquired", "orders")]
    assert board.points[-1] == [102_000, 0.5, 0.5]
    first, second = board.holders["orders"]
    assert (first.owner, first.end) == ("bob", "")
    assert (second.owner, second.end, second.ended) == ("ann", "handed over", 101.5)


def test_other_token_of_the_same_owner_is_a_new_acquisition(board: Board) -> None:
    assert told(board, snapshot(100, lock()), snapshot(101, lock(token=8))) == [("acquired", "orders")]


def test_end_that_moves_is_a_renewal_and_sends_no_row(board: Board) -> None:
    board.update(snapshot(100, lock(ttl=7)))
    news = board.update(snapshot(101, lock(ttl=10, since=2)))
    assert [line["kind"] for line in news.tape] == ["renewed"]
    assert (news.rows, [row.ends for row in news.renewed]) == ([], [111])


def test_nothing_is_sent_for_a_lock_that_only_grows_older(board: Board) -> None:
    board.update(snapshot(100, lock(ttl=10)))
    news = board.update(snapshot(101, lock(ttl=9, since=2)))
    assert (news.rows, news.renewed, news.gone, news.tape) == ([], [], [], [])


def test_first_waiter_is_contention(board: Board) -> None:
    assert told(board, snapshot(100, lock()), snapshot(101, lock(ttl=9, waiters=2))) == [("contended", "orders")]


def test_contention_is_reported_once_while_it_lasts(board: Board) -> None:
    before, after = lock(waiters=2), lock(owner="bob", token=8, since=0.5, waiters=1)
    assert told(board, snapshot(100, before), snapshot(101, after)) == [("acquired", "orders")]


def test_vote_that_returns_is_healed(board: Board) -> None:
    before, after = lock(votes="yyn"), lock(ttl=9, votes="yyy")
    assert told(board, snapshot(100, before), snapshot(101, after)) == [("healed", "orders")]
    assert board.rows["orders"].shown()[8] == "yyy"


def test_vote_of_a_node_that_did_not_answer_is_not_healed(board: Board) -> None:
    assert told(board, snapshot(100, lock(votes="yye")), snapshot(101, lock(ttl=9))) == []


def test_node_that_goes_and_returns_is_reported(board: Board) -> None:
    gone = snapshot(101, lock(ttl=9, votes="yye"), faults={"redis://c": "connection refused"})
    assert told(board, snapshot(100, lock()), gone) == [("node down", "redis://c")]
    assert told(board, snapshot(102, lock(ttl=8))) == [("node up", "redis://c")]


def test_locks_stay_as_they_were_while_too_few_nodes_answer(board: Board) -> None:
    faults = dict.fromkeys(NODES[:2], "connection refused")
    lines = told(board, snapshot(100, lock()), snapshot(101, faults=faults, readable=False))
    assert {kind for kind, _ in lines} == {"node down"}
    assert list(board.rows) == ["orders"]


def test_wait_of_a_waiter_that_was_seen_is_measured(board: Board) -> None:
    waiting = {"orders": {"bob": 98.0}}
    board.update(snapshot(100, lock(waiters=1), waiters=waiting))
    board.update(snapshot(101, lock(owner="bob", token=8, since=0.5)))
    assert board.statistics()["wait"] == {"n": 1, "p50": 2.5, "p95": 2.5, "p99": 2.5}
    assert board.statistics()["hold"]["p50"] == 1.5


def test_many_lines_of_a_kind_become_one(board: Board) -> None:
    board.update(snapshot(100))
    news = board.update(snapshot(101, *(lock(name=f"orders:{i}") for i in range(LINES + 3))))
    assert len(news.tape) == LINES + 1
    assert news.tape[-1]["text"] == "3 more"


def test_quarantine_and_its_end_are_reported_once(board: Board) -> None:
    def examined(level: str) -> list[tuple[str, str]]:
        board.examined([Check("redis://c", "guard", level, "in quarantine for another 3 s")], 100)  # type: ignore[arg-type]
        return told(board, snapshot(100))

    assert examined("ok") == []
    assert examined("warn") == [("quarantined", "redis://c")]
    assert examined("warn") == []
    board.examined([Check("redis://c", "reachable", "bad", "connection refused")], 100)
    assert examined("ok") == [("votes again", "redis://c")]


def test_clients_tell_what_no_snapshot_shows(board: Board) -> None:
    events = [
        Event("lost", "orders", "", 1.0, "its key is gone", token=7),
        Event("waiting_ended", "orders", "MainThread", 0.25, "acquired"),
        Event("acquired", "orders", "MainThread", 0.25, token=8),
    ]
    board.heard([(100.0, event) for event in events])
    assert told(board, snapshot(100)) == [("lost", "orders")]
    assert board.statistics()["wait"]["p50"] == 0.25


def test_token_survives_javascript(board: Board) -> None:
    board.update(snapshot(100, lock(token=2**53 + 1)))
    assert board.rows["orders"].shown()[3] == "9007199254740993"
