"""Tokens stay in order while only a minority of the nodes forgets: the seed that found the defect."""

from __future__ import annotations

from tests.support.programs import defect


@defect("the simulator finds tokens out of order after a durable restart, a flush and a partition")
def test_simulated_durable_restart_keeps_tokens_in_order() -> None:
    from sim import run
    from sim.__main__ import report

    outcome = run(7300409)
    assert outcome.violation is None, report(outcome)
