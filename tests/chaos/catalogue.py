"""All scenarios, in the order in which they run."""

from __future__ import annotations

from tests.chaos import (  # noqa: F401  each brings its scenarios along
    client_faults,
    clock_faults,
    network_faults,
    node_faults,
    refusals,
    replication_faults,
)
from tests.chaos.scenario import SCENARIOS

__all__ = ["SCENARIOS"]
