"""A long job in a thread that stops when its lease is lost.

The watchdog renews the lease while the job runs. If no server can be reached, the lease still ends on time: the
event `lease.lost` is set, and another host may begin. With asyncio nothing of this is needed: the body of an `async with`
is cancelled.
"""

from __future__ import annotations

import sys

import handfast

STEPS = 1000


def step(number: int, lease: handfast.Lease) -> None:
    """One piece of work. It waits on the event in place of sleeping, so a loss ends it early."""
    lease.lost.wait(0.05)
    lease.check(need=0.2)  # enough time for the write that follows, or LeaseLost
    print("step", number, flush=True)


def main() -> None:
    with handfast.connect(ttl=3.0) as client:
        try:
            with client.lock("index:rebuild") as lease:
                for number in range(STEPS):
                    step(number, lease)
        except handfast.LeaseLost:
            print("stopped: the lease is lost", flush=True)
            sys.exit(3)
    print("finished")


if __name__ == "__main__":
    main()
