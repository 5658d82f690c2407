"""A transfer that locks two accounts at once: all or none, so transfers in opposite directions cannot deadlock."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor

import handfast

accounts = {"ann": 100, "bob": 100, "cleo": 100}


def transfer(client: handfast.Client, source: str, target: str, amount: int) -> bool:
    """Move money. Returns False if the source has too little."""
    with client.lock([f"account:{source}", f"account:{target}"], wait=30.0) as lease:
        before = accounts[source], accounts[target]
        if before[0] < amount:
            return False
        time.sleep(0.001)  # without the locks another process could change the accounts here
        lease.check(need=0.1)
        accounts[source], accounts[target] = before[0] - amount, before[1] + amount
        return True


def main() -> None:
    orders = [(*random.sample(sorted(accounts), 2), random.randint(1, 60)) for _ in range(60)]
    with handfast.connect() as client, ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda order: transfer(client, *order), orders))
    print(len(done), "orders, all handled;", "the total is", sum(accounts.values()))


if __name__ == "__main__":
    main()
