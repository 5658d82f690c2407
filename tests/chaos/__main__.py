"""Run the scenarios: `python -m tests.chaos [--only words] [--seconds s] [--json file] [--docs file] [--peers]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from handfast.testing import Server
from tests.chaos import report
from tests.chaos.catalogue import SCENARIOS
from tests.chaos.environment import OURS
from tests.chaos.peers import KINDS, missing
from tests.chaos.scenario import Outcome, Scenario, play


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios whose name contains this, or that have this fault number")
    parser.add_argument("--seconds", type=float, default=2.0, help="the length of each phase of a scenario (default: 2)")
    parser.add_argument("--json", type=Path, help="write the outcomes there as well")
    parser.add_argument("--peers", action="store_true", help="the other libraries too, side by side")
    parser.add_argument("--locks", default="", help="with --peers: only these, separated by commas")
    parser.add_argument("--docs", type=Path, help="put the table in this document, where docs/evidence.md has its place")
    options = parser.parse_args(argv)
    chosen = [each for each in SCENARIOS.values() if _chosen(each, options.only)]
    if not chosen:
        print(f"no scenario is called {options.only!r}; there are: {', '.join(SCENARIOS)}", file=sys.stderr)
        return 2
    began = time.monotonic()
    outcomes = list(_all(chosen, _locks(options.peers, options.locks), options.seconds))
    if options.json:
        options.json.write_text(json.dumps([each.as_json() for each in outcomes], indent=1))
    summary = report.summary(outcomes, time.monotonic() - began)
    table = report.peers_table(outcomes) if options.peers else report.chaos_table(outcomes, SCENARIOS)
    if options.peers:
        print(f"\n{table}\n")
    print(summary)
    if options.docs:
        report.insert(options.docs, "peers" if options.peers else "chaos", f"{table}\n\n{summary}")
    return 1 if any(each.bad for each in outcomes) else 0


def _chosen(each: Scenario, only: str) -> bool:
    return int(only) in each.faults if only.isdigit() else only in each.name


def _locks(peers: bool, some: str) -> list[str]:
    if not peers:
        return [OURS]
    locks = [OURS]
    for kind in KINDS:
        if some and kind not in some.split(","):
            continue
        if reason := missing(kind):
            print(f"{kind} is left out: {reason}")
        else:
            locks.append(kind)
    return locks


def _all(chosen: Sequence[Scenario], locks: Sequence[str], seconds: float) -> Iterator[Outcome]:
    with Server() as registers:
        print(report.HEADER, flush=True)
        for what in chosen:
            if len(locks) > 1 and not what.peers:
                continue
            for lock in locks:
                if reason := what.inapplicable(lock):
                    if lock == OURS:
                        print(f"{what.name}: skipped: {reason}", flush=True)
                    continue
                outcome = play(what, lock, registers, seconds)
                print(report.line(outcome, what), flush=True)
                yield outcome


if __name__ == "__main__":
    sys.exit(main())
