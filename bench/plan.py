"""How much is measured, in a quick run and in a full one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Contended:
    """How much to measure of one contended lock: rounds and their seconds."""

    rounds: int
    seconds: float
    peer_rounds: int
    peer_seconds: float
    """Long enough for a candidate that polls every 0.1 s."""
    details_seconds: float


@dataclass(frozen=True)
class Plan:
    """How much to measure. Floors and handfast do the same number of pairs; slow peers stop after `peer_seconds`."""

    rounds: int
    sync_pairs: int
    pairs_per_task: dict[int, int]
    """By the number of nodes, so that a round takes about as long on one node as on five."""
    peer_rounds: int
    peer_seconds: float
    budget: float
    """Seconds for the whole run. Cases that are late drop rounds, but keep at least LEAST_ROUNDS."""
    contended: Contended
    node_timeout: float | None = None
    """handfast's timeout of one round trip; None means its default, which most users have."""


QUICK = Plan(
    rounds=8,
    sync_pairs=300,
    pairs_per_task={1: 10, 5: 4},
    peer_rounds=2,
    peer_seconds=0.15,
    budget=43,
    contended=Contended(rounds=8, seconds=0.15, peer_rounds=1, peer_seconds=0.4, details_seconds=0.2),
)
FULL = Plan(
    rounds=25,
    sync_pairs=1000,
    pairs_per_task={1: 20, 5: 8},
    peer_rounds=5,
    peer_seconds=1.0,
    budget=400,
    contended=Contended(rounds=10, seconds=1.0, peer_rounds=3, peer_seconds=1.0, details_seconds=1.0),
)
