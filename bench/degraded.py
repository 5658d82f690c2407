"""`python -m bench.degraded`: hand-overs on five nodes, with all nodes well and with one dead and one silent node.

The dead node is killed, so that it refuses connections. The silent node is stopped: it accepts bytes and connections, and
never answers, like a node behind a network that drops everything. Eight processes hand one lock over, with default
options. Both kinds of rounds run on servers of their own, in turns.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
from functools import partial

from bench import handfast_adapter, servers
from bench.handoff_figures import Round
from bench.waiting_candidates import handfast_lock
from bench.worker import WaitingCandidate
from bench.workers import Workers
from handfast.testing import Servers

PROCESSES = 8
ROUNDS = 6
SECONDS = 2.0
NODES = 5


def workers(stack: contextlib.ExitStack, nodes: Servers) -> Workers:
    handfast_adapter.prepare(nodes.urls)
    candidate = WaitingCandidate("handfast", partial(handfast_lock, options={}, node_timeout=None), peer=False)
    return stack.enter_context(Workers(candidate, PROCESSES, " ".join(nodes.urls), "bench:degraded"))


def main() -> int:
    with contextlib.ExitStack() as stack:
        well, hurt = (stack.enter_context(servers.running(NODES, pin=False)) for _ in range(2))
        teams = {"all well": workers(stack, well), "one dead, one silent": workers(stack, hurt)}
        for team in teams.values():
            team.work(SECONDS / 2, 0.0)
        hurt[3].kill()
        hurt[4].pause()
        stack.callback(hurt[4].resume)
        rates: dict[str, list[float]] = {what: [] for what in teams}
        jains: dict[str, list[float]] = {what: [] for what in teams}
        for _ in range(ROUNDS):
            for what, team in teams.items():
                result = Round.of(*team.work(SECONDS, 0.0))
                rates[what].append(result.handoffs_per_s)
                jains[what].append(result.jain)
        medians = {what: statistics.median(each) for what, each in rates.items()}
        for what, rate in medians.items():
            rounds = [round(each) for each in rates[what]]
            print(f"{what:24}{rate:8,.0f} hand-overs/s, Jain {min(jains[what]):.4f}, rounds {rounds}")
        before, after = medians.values()
        print(f"ratio {after / before:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
