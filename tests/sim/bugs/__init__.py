"""The list of deliberate bugs: see mutants.py."""

from __future__ import annotations

from tests.sim.bugs.bug import Bug, Change
from tests.sim.bugs.leases import LEASES
from tests.sim.bugs.queues import QUEUES
from tests.sim.bugs.votes import GUARD, TOKENS, VOTES

__all__ = ["BUGS", "Bug", "Change"]

BUGS: tuple[Bug, ...] = LEASES + VOTES + GUARD + TOKENS + QUEUES
