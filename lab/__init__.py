"""The flash sale: a shop with limited stock, hammered by buyers, under every lock of the ladder, while things go wrong.

A *rung* (`rungs/`) is a way to guard the sale; a *scenario* is one sale under it with one fault (`faults`). Worker
processes (`worker`) run the shop (`shop`, `database`) behind nginx or `balancer` (`frontend`); a crowd (`load`) buys. The
`runner` has them all in an environment (`environment`, `process`), runs the scenarios (`run`), makes the faults happen at
exact points, and scores the database and the events (`ledger`). `main` is the whole program; `terminal`,
`report` and `server` show it. Everything is real: processes, servers, database, signals. Nothing outlives it.
"""

from __future__ import annotations

__all__ = ["LabError"]


class LabError(Exception):
    """What went wrong, in one line for the user."""
