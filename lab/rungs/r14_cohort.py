"""For throughput: with `cohort=64` a process hands the lock to its own next waiter, up to 64 times in a row, without
asking the servers.

Every holder still has its own token, larger than the one before, so the fence works as before.
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
