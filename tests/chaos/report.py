"""The report of a run: a line per scenario, tables for docs/evidence.md, a last line."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.environment import OURS
from tests.chaos.scenario import TOKENS, Outcome, Scenario

__all__ = ["HEADER", "chaos_table", "insert", "line", "peers_table", "summary"]

HEADER: Final = (
    f"{'scenario':58}{'numbers':>8}{'injected':>9}{'ops':>7}{'violations':>11}{'overlaps':>9}{'lost':>6}{'refused':>8}"
    f"{'idle s':>8}  verdict"
)
"""`overlaps` and `lost` count what happens to users who ignore tokens; `violations` counts what must not happen."""


def line(outcome: Outcome, what: Scenario) -> str:
    name = outcome.scenario if outcome.lock == OURS else f"    {outcome.lock}"
    numbers = ",".join(map(str, what.faults))
    text = (
        f"{name:58}{numbers:>8}{outcome.injected:9}{outcome.operations:7}{len(outcome.bad):11}{outcome.overlaps:9}"
        f"{outcome.lost:6}{outcome.refused:8}{outcome.unavailable:8.2f}  {_verdict(outcome)}"
    )
    more = outcome.bad if outcome.lock == OURS else [outcome.aborted] * bool(outcome.aborted)
    return "\n".join([text, *(f"        {each[:300]}" for each in more)])


def _verdict(outcome: Outcome) -> str:
    if outcome.lock != OURS:
        return "stuck" if outcome.stuck else ""
    promised = "tokens" if outcome.promise == TOKENS else "exclusion and tokens"
    return "FAILED" if outcome.bad else f"kept: {promised}"


def chaos_table(outcomes: Sequence[Outcome], scenarios: dict[str, Scenario]) -> str:
    """The table of handfast's scenarios, for the docs."""
    rows = [
        "| scenario | faults | injected | operations | promised | violations | without tokens | idle |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        numbers = ", ".join(map(str, scenarios[each.scenario].faults))
        plain = f"{each.overlaps} overlaps, {each.lost} lost" if each.overlaps or each.lost else "-"
        idle = f"{each.unavailable:.2f} s" if each.unavailable else "-"
        promised = "tokens" if each.promise == TOKENS else "exclusion, tokens"
        cells = [each.scenario, numbers, each.injected, each.operations, promised, len(each.bad), plain, idle]
        rows.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def peers_table(outcomes: Sequence[Outcome]) -> str:
    """A row per scenario, a column per lock, and the sums."""
    locks = list(dict.fromkeys(each.lock for each in outcomes))
    rows = [f"| scenario | {' | '.join(locks)} |", f"|---|{'---|' * len(locks)}"]
    for name in dict.fromkeys(each.scenario for each in outcomes):
        cells = {each.lock: _cell(each) for each in outcomes if each.scenario == name}
        rows.append(f"| {name} | {' | '.join(cells.get(lock, '') for lock in locks)} |")
    for what, total in TOTALS.items():
        sums = [total([each for each in outcomes if each.lock == lock]) for lock in locks]
        rows.append(f"| **{what}** | {' | '.join(sums)} |")
    return "\n".join(rows)


def _cell(outcome: Outcome) -> str:
    words = [f"{outcome.overlaps} overlaps"] * bool(outcome.overlaps)
    words += [f"{outcome.lost} lost"] * bool(outcome.lost)
    words += ["stuck"] * bool(outcome.stuck)
    words += [f"{outcome.unavailable:.1f} s"] * bool(outcome.unavailable)
    return ", ".join(words) or "-"


TOTALS: Final[dict[str, Callable[[Sequence[Outcome]], str]]] = {
    "scenarios": lambda some: str(len(some)),
    "overlaps": lambda some: str(sum(each.overlaps for each in some)),
    "lost updates, no tokens used": lambda some: str(sum(each.lost for each in some)),
    "lost updates, tokens used": lambda some: _with_tokens(some),
    "stuck locks": lambda some: str(sum(len(each.stuck) for each in some)),
    "unavailable, s": lambda some: f"{sum(each.unavailable for each in some):.1f}",
}


def _with_tokens(some: Sequence[Outcome]) -> str:
    return str(sum(each.fenced for each in some)) if some and some[0].lock == OURS else "has none"


def insert(path: Path, block: str, text: str) -> None:
    """Replace the text between two comments in a document."""
    begin, end = f"<!-- {block} -->", f"<!-- /{block} -->"
    document = path.read_text()
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not pattern.search(document):
        raise ValueError(f"{path} has no place for {block}: {begin} ... {end}")
    path.write_text(pattern.sub(lambda _: f"{begin}\n{text}\n{end}", document))


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    ours = [each for each in outcomes if each.lock == OURS]
    injected, operations = sum(each.injected for each in ours), sum(each.operations for each in ours)
    bad = [each.scenario for each in ours if each.bad]
    verdict = f"FAILED: {', '.join(bad)}" if bad else "nothing that was promised was broken"
    return (
        f"handfast: {len(ours)} scenarios, {injected} faults, {operations} operations; {verdict}. {seconds:.0f} s in all."
    )
