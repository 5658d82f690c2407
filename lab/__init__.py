"""The flash sale: a shop sells limited stock to many buyers, under one lock after another, while faults happen.

A *rung* (`rungs/`) is one way to guard the sale. A *scenario* is one sale under that rung, with one fault (`faults`).
Worker processes (`worker`) run the shop (`shop`, `database`) behind nginx or `balancer` (`frontend`). A crowd of buyers
(`load`) sends the orders. The `runner` starts all of these (`environment`, `process`), runs the scenarios (`run`) and
scores each of them from the database and the events (`ledger`). `main` is the whole program; `terminal`, `report` and
`server` show the results. Everything is real: processes, servers, database, signals. Nothing outlives the lab.
"""

from __future__ import annotations

__all__ = ["LabError"]


class LabError(Exception):
    """An error that the user sees as one line."""
