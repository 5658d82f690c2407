"""The outcome of a run as one JSON object, or as a table to read."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict

from bench.cases import Outcome
from bench.ours import NAME

Outcomes = dict[str, Outcome]


def machine(server: str, seconds: float, **settings: object) -> dict[str, object]:
    return {
        "python": platform.python_version(),
        "server": server,
        "cores": os.cpu_count(),
        "seconds": round(seconds, 1),
        **settings,
    }


def as_json(outcomes: Outcomes, machine: dict[str, object]) -> dict[str, object]:
    rows, floors, skipped = [], {}, []
    for case, outcome in outcomes.items():
        for what, figure in outcome.rows.items():
            ratios = {"ratio_to_floor": outcome.ratios.get(what), "ratio_paired": outcome.paired.get(what)}
            rows.append({"what": what, "case": case, **asdict(figure), **ratios})
        if outcome.floor:
            kind, figure = outcome.floor
            tried = {what: asdict(other) for what, other in outcome.floors.items() if what != kind}
            floors[case] = {"kind": kind, **asdict(figure), "also_tried": tried}
        skipped += [{"what": what, "case": case, "reason": why} for what, why in outcome.skipped.items()]
    return {
        "ratios": {case: outcome.ratio for case, outcome in outcomes.items()},
        "ratios_paired": {case: outcome.paired.get(NAME) for case, outcome in outcomes.items()},
        "rows": rows,
        "floors": floors,
        "skipped": skipped,
        "machine": machine,
    }


def as_table(outcomes: Outcomes, machine: dict[str, object]) -> Iterator[str]:
    yield " ".join(f"{key} {value}" for key, value in machine.items())
    yield f"{'':32}{'p50 µs':>10}{'p99 µs':>10}{'pairs/s':>10}{'to floor':>10}{'paired':>8}"
    for case, outcome in outcomes.items():
        means = "time" if outcome.better == "lower" else "throughput"
        yield f"\n{case} (ratio of {means}, {outcome.better} is better)"
        for what, figure in [*outcome.floors.items(), *outcome.rows.items()]:
            is_floor = outcome.floor is not None and what == outcome.floor[0]
            ratio = 1.0 if is_floor else outcome.ratios.get(what)
            shown = "" if ratio is None else f"{ratio:.2f}"
            figures = f"{figure.p50_us:10.0f}{figure.p99_us:10.0f}{figure.pairs_per_s:10.0f}"
            paired = f"{outcome.paired[what]:8.2f}" if what in outcome.paired else ""
            yield f"  {what:30}{figures}{shown:>10}{paired}"
        for what, why in outcome.skipped.items():
            yield f"  {what:30}  not measured: {why}"
