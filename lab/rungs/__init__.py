"""The ladder, from no lock at all to a lock whose token the database checks. One file per rung; read them in order."""

from __future__ import annotations

from typing import Final

from lab.rung import Rung, Scenario
from lab.rungs import (
    r01_no_lock,
    r02_mutex,
    r03_setnx,
    r04_setnx_expire,
    r05_set_nx_ex,
    r06_get_then_del,
    r07_lua,
    r08_watchdog,
    r09_failover,
    r10_redlock,
    r11_guarded,
    r12_fenced,
    r13_segments,
    r14_cohort,
)

__all__ = ["RUNGS", "scenarios_of", "rung_named"]

RUNGS: Final[tuple[type[Rung], ...]] = (
    r01_no_lock.NoLock,
    r02_mutex.Mutex,
    r03_setnx.Setnx,
    r04_setnx_expire.SetnxExpire,
    r05_set_nx_ex.SetNxEx,
    r06_get_then_del.GetThenDel,
    r07_lua.Lua,
    r08_watchdog.Watchdog,
    r09_failover.Failover,
    r10_redlock.Redlock,
    r11_guarded.Guarded,
    r12_fenced.Fenced,
    r13_segments.Segments,
    r14_cohort.Cohort,
)


def rung_named(name: str) -> type[Rung]:
    for rung in RUNGS:
        if rung.name == name:
            return rung
    raise KeyError(name)


def scenarios_of(name: str) -> list[tuple[type[Rung], Scenario]]:
    """The scenarios that `name` selects: "all", a rung's name, or "rung/scenario". KeyError if there is none."""
    found: list[tuple[type[Rung], Scenario]] = [
        (rung, scenario)
        for rung in RUNGS
        for scenario in rung.scenarios
        if name in ("all", rung.name, f"{rung.name}/{scenario.name}")
    ]
    if not found:
        raise KeyError(name)
    return found
