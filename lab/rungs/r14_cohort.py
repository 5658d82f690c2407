"""For throughput: `cohort=64` lets a process pass a held lock to its own next waiter, up to 64 times, without a word to
the servers.

Every holder still gets a token of its own, larger than the one before, so the fence holds as always.
"""

from __future__ import annotations

from lab import faults
from lab.rung import Scenario, shown_by
from lab.rungs.r12_fenced import Fenced


class Cohort(Fenced):
    name = "cohort"
    title = "handfast, passed on within a process"
    scenarios = shown_by(Scenario("sale", "throughput", faults.nothing, "safe", must_be_safe=True))

    cohort = 64
