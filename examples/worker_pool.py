"""Workers that take jobs from a queue, as Celery's do. Jobs of one customer run one at a time, on any number of hosts.

One client serves all threads. A job whose lock is taken goes back to the queue, so that no worker is kept waiting.
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import handfast

WORKERS = 8


class Job(NamedTuple):
    customer: str
    amount: int


def handle(job: Job, balances: dict[str, int]) -> None:
    """Read, think, write: two jobs of one customer at the same time would lose an update."""
    balance = balances.get(job.customer, 0)
    time.sleep(0.005)
    balances[job.customer] = balance + job.amount


def work(client: handfast.Client, jobs: queue.Queue[Job], balances: dict[str, int]) -> None:
    while True:
        try:
            job = jobs.get_nowait()
        except queue.Empty:
            return
        try:
            # max_hold ends the renewal of a worker that hangs; another one then gets the lock.
            with client.lock(f"customer:{job.customer}", wait=0.1, max_hold=60.0):
                handle(job, balances)
        except handfast.NotAcquired:
            jobs.put(job)


def main() -> None:
    jobs: queue.Queue[Job] = queue.Queue()
    for i in range(40):
        jobs.put(Job(["ann", "bob", "cleo"][i % 3], 1))
    balances: dict[str, int] = {}
    with handfast.connect() as client, ThreadPoolExecutor(WORKERS) as pool:
        for worker in [pool.submit(work, client, jobs, balances) for _ in range(WORKERS)]:
            worker.result()
    print(dict(sorted(balances.items())), "in total", sum(balances.values()))


if __name__ == "__main__":
    main()
