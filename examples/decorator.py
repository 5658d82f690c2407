"""A lock around a function, named after its arguments: for threads and for asyncio."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor

import handfast
import handfast.aio

running: dict[int, int] = {}
most = 0


def in_threads() -> None:
    with handfast.connect(wait=30.0) as client:

        @client.locked("report:{user_id}")
        def report(user_id: int, *, pages: int = 1) -> str:
            global most
            running[user_id] = running.get(user_id, 0) + 1
            most = max(most, running[user_id])
            time.sleep(0.01)
            running[user_id] -= 1
            return f"{pages} pages for user {user_id}"

        with ThreadPoolExecutor(6) as pool:
            reports = list(pool.map(lambda i: report(i % 2, pages=3), range(6)))
    print(len(reports), "reports, at most", most, "at a time for each user")


async def in_tasks() -> None:
    async with handfast.aio.connect(wait=30.0) as client:

        @client.locked("mail:{address}")
        async def send(address: str) -> str:
            await asyncio.sleep(0.01)
            return f"sent to {address}"

        print(sorted(await asyncio.gather(send("ann"), send("bob"), send("ann"))))


if __name__ == "__main__":
    in_threads()
    asyncio.run(in_tasks())
