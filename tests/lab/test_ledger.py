"""The score follows from the events and the database: overlaps, standstills, sold and lost orders."""

from __future__ import annotations

from typing import Any

from lab import faults
from lab.ledger import Ledger, Score, longest_gap, overlaps_of, score
from lab.load import Tally
from lab.rung import Scenario

SCENARIO = Scenario("scenario", "title", faults.nothing, "safe", must_be_safe=True)


def _held(ledger: Ledger, order: str, since: float, until: float | None, stripe: int = 0) -> None:
    facts: dict[str, Any] = {"order": order, "stripe": stripe}
    ledger.record("w1", {"what": "held", "t": since, **facts})
    if until is not None:
        ledger.record("w1", {"what": "released", "t": until, **facts})


def _wrote(ledger: Ledger, order: str | None, at: float, left: dict[str, int]) -> None:
    ledger.record("w1", {"what": "wrote", "t": at, "order": order, "left": left})


def _score(ledger: Ledger, left: int, orders: set[str], tally: Tally | None = None) -> Score:
    return score("rung/scenario", SCENARIO, ledger, tally or Tally(began=0.0, ended=2.0), (left, orders), 2.0, [])


def test_simultaneous_holders_overlap_and_consecutive_holders_do_not() -> None:
    ledger = Ledger([5], 0.0)
    _held(ledger, "a", 0.0, 1.0)
    _held(ledger, "b", 1.0, 2.0)
    assert overlaps_of(ledger.holders(3.0)) == []
    _held(ledger, "c", 1.5, 1.8)
    assert overlaps_of(ledger.holders(3.0)) == [(1.5, 1.8)]
    assert [holder.order for holder in ledger.holders(3.0) if holder.overlap] == ["b", "c"]


def test_holder_without_release_overlaps_later_holders() -> None:
    ledger = Ledger([5], 0.0)
    _held(ledger, "a", 0.0, None)
    _held(ledger, "b", 1.0, 1.2)
    _held(ledger, "c", 1.2, 1.5)
    assert overlaps_of(ledger.holders(3.0)) == [(1.0, 1.5)]


def test_holders_of_different_stripes_do_not_overlap() -> None:
    ledger = Ledger([5, 5], 0.0)
    _held(ledger, "a", 0.0, 2.0, stripe=0)
    _held(ledger, "b", 0.5, 1.0, stripe=1)
    assert overlaps_of(ledger.holders(3.0)) == []


def test_dead_process_holds_nothing() -> None:
    ledger = Ledger([5], 0.0)
    _held(ledger, "a", 0.0, None)
    ledger.killed("w1", 0.5)
    (holder,) = ledger.holders(3.0)
    assert (holder.end, holder.until) == ("killed", 0.5)


def test_orders_beyond_stock_are_oversold() -> None:
    ledger = Ledger([2], 0.0)
    for at, order in enumerate("abc"):
        _wrote(ledger, order, float(at), {"0": 0})
    found = _score(ledger, 0, {"a", "b", "c"})
    assert (found.sold, found.oversold, found.verdict, found.broken) == (3, 1, "oversold", True)


def test_restored_stock_counts_as_oversold() -> None:
    ledger = Ledger([3], 0.0)
    _wrote(ledger, "a", 0.1, {"0": 2})
    _wrote(ledger, "b", 0.2, {"0": 1})
    _wrote(ledger, "late", 0.3, {"0": 2})
    assert ledger.oversold == 2
    assert _score(ledger, 2, {"a", "b", "late"}).oversold == 2
    assert [left for _, left in ledger.stock_line] == [3, 2, 1, 2]


def test_shop_without_sales_and_with_stock_is_stuck() -> None:
    ledger = Ledger([5], 0.0)
    _wrote(ledger, "a", 0.1, {"0": 4})
    found = _score(ledger, 4, {"a"})
    assert (found.verdict, found.stuck) == ("stuck", 1.9)


def test_sold_out_shop_is_not_stuck() -> None:
    ledger = Ledger([1], 0.0)
    _wrote(ledger, "a", 0.1, {"0": 0})
    found = _score(ledger, 0, {"a"})
    assert (found.verdict, found.stuck) == ("safe", 0.1)


def test_lost_orders_are_confirmed_or_killed_and_not_in_database() -> None:
    ledger, tally = Ledger([5], 0.0), Tally(began=0.0, ended=1.0)
    for order in ("killed after its write", "killed before it"):
        _held(ledger, order, 0.1, None)
    ledger.killed("w1", 0.2)
    _held(ledger, "wrote nothing and said so too late", 0.3, 0.4)
    tally.count("wrote nothing and said so too late", 504, 0.1)
    tally.count("never got in", None, 0.1)
    tally.count("promised and gone", 200, 0.1)
    assert _score(ledger, 4, {"killed after its write"}, tally).lost == 2


def test_changed_scenario_breaks_no_promise() -> None:
    ledger = Ledger([1], 0.0)
    for order in "ab":
        _wrote(ledger, order, 0.1, {"0": 0})
    facts = SCENARIO, ledger, Tally(began=0.0, ended=2.0), (0, {"a", "b"}), 2.0, []
    assert score("rung/scenario", *facts).broken
    assert not score("rung/scenario", *facts, free=True).broken
    assert not score("rung/scenario", *facts, injected=True).broken
    assert not score("rung/scenario", *facts, stopped=True).broken


def test_longest_gap_includes_start_and_end() -> None:
    assert longest_gap([], 1.0, 3.0) == 2.0
    assert longest_gap([1.5, 1.6], 1.0, 3.0) == 3.0 - 1.6
    assert longest_gap([0.5, 2.9], 1.0, 3.0) == 2.9 - 1.0
