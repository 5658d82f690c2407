"""What many distinct names leave on a server: memory and keys while they are locked once each, and afterwards.

python -m bench.names 10000000
"""

from __future__ import annotations

import asyncio
import sys
import time

import handfast.aio
from bench.servers import find_server
from handfast.testing import Server

TOKEN_MEMORY = 5
"""Seconds for which a counter is kept: the default of a week would take a week to measure."""
TASKS = 500
EVERY = 20.0
"""Seconds between two lines."""


def state(server: Server) -> str:
    keys = server.command("DBSIZE")
    return f"{server.info('used_memory_human')} now, {server.info('used_memory_peak_human')} at most, {keys} keys"


async def lock_each(server: Server, names: int) -> None:
    async with handfast.aio.connect(server.url, token_memory=TOKEN_MEMORY) as client:
        left = iter(range(names))

        async def work() -> None:
            for number in left:
                async with client.lock(f"export:user:{number}"):
                    pass

        async def report() -> None:
            while True:
                await asyncio.sleep(EVERY)
                print(state(server), flush=True)

        began = time.monotonic()
        reporting = asyncio.create_task(report())
        await asyncio.gather(*[work() for _ in range(TASKS)])
        reporting.cancel()
        print(f"{names} names in {time.monotonic() - began:.0f} s: {state(server)}")
        await asyncio.sleep(TOKEN_MEMORY + 4)
        print(f"after {TOKEN_MEMORY + 4} s: {state(server)}")


if __name__ == "__main__":
    with Server(find_server()) as server:
        asyncio.run(lock_each(server, int(sys.argv[1]) if len(sys.argv) > 1 else 10_000_000))
