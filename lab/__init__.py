"""The flash sale: a shop with limited stock, hammered by buyers, under every lock of the ladder, while things go wrong.

General layout. A *rung* (`rungs/`) is a way to guard the sale; an *act* is one sale under it with one fault (`faults`).
Worker processes (`worker`) run the shop (`shop`, `books`) behind nginx or `balancer` (`front`); a crowd (`load`) buys.
The conductor (`conductor`) has them all on a stage (`stage`, `process`), plays the acts (`run`), does the faults at exact
points, and scores what the books and the workers' events say (`ledger`). `play` is the whole evening; `terminal`,
`report` and `server` show it. Everything is real: processes, servers, database, signals. Nothing outlives it.
"""

from __future__ import annotations

__all__ = ["LabError"]


class LabError(Exception):
    """What went wrong, in one line for the user."""
