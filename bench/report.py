"""The outcome of a run as one JSON object, or as a table to read."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import asdict

from bench.outcome import Outcome, Row

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
        "ratios": {name: ratio for case, out in outcomes.items() for name, ratio in out.headline(case).items()},
        "ratios_paired": {case: outcome.paired.get(outcome.own_row) for case, outcome in outcomes.items()},
        "rows": rows,
        "floors": floors,
        "skipped": skipped,
        "machine": machine,
    }


def as_table(outcomes: Outcomes, machine: dict[str, object]) -> Iterator[str]:
    yield " ".join(f"{key} {value}" for key, value in machine.items())
    for case, outcome in outcomes.items():
        means = "time" if outcome.better == "lower" else "throughput"
        yield f"\n{case} (ratio of {means}, {outcome.better} is better)"
        lines = [*outcome.floors.items(), *outcome.rows.items()]
        yield from _lines(outcome, lines) if lines else ()
        for what, why in outcome.skipped.items():
            yield f"  {what:30}  not measured: {why}"
        for name, ratio in outcome.named.items():
            yield f"  {name:30}  {'not measured' if ratio is None else ratio}"


def _lines(outcome: Outcome, lines: list[tuple[str, Row]]) -> Iterator[str]:
    headings = [*lines[0][1].cells(), "to floor", "paired"]
    widths = [max(9, len(heading)) + 1 for heading in headings]
    yield " " * 32 + "".join(f"{heading:>{width}}" for heading, width in zip(headings, widths, strict=True))
    for what, figure in lines:
        is_floor = outcome.floor is not None and what == outcome.floor[0]
        ratios = [1.0 if is_floor else outcome.ratios.get(what), outcome.paired.get(what)]
        cells = [*figure.cells().values(), *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios)]
        yield f"  {what:30}" + "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
