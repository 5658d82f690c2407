"""A watchdog thread renews the key while the work lasts, so slow work is no longer a danger.

But the watchdog is part of the same process. If the process is paused for longer than the ttl (by a garbage collector, a
virtual machine, a closed laptop), nothing renews the key. The process resumes, still believes that it holds the lock, and
writes.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.rungs.r07_lua import DELETE_IF_MINE, KEY
from lab.shop import Answer, Order, Shop

RENEW_IF_MINE = (
    'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("pexpire", KEYS[1], ARGV[2]) end return 0'
)


class Watchdog(Rung):
    name = "watchdog"
    title = "With a watchdog"
    scenarios = shown_by(
        Scenario("slow", "work takes longer than the ttl", faults.slow_holder, "safe"),
        Scenario("paused", "the holder is paused beyond the ttl", faults.paused_holder, "oversold"),
    )

    def sell(self, shop: Shop, order: Order) -> Answer:
        mine = uuid.uuid4().hex
        if not shop.wait_for(lambda: shop.redis.set(KEY, mine, nx=True, px=int(shop.ttl * 1000))):
            return "busy"
        try:
            with order.holding(), renewed(shop, mine):
                return shop.take_one(order)
        finally:
            shop.redis.eval(DELETE_IF_MINE, 1, KEY, mine)


@contextmanager
def renewed(shop: Shop, mine: str) -> Iterator[None]:
    done = threading.Event()

    def watch() -> None:
        while not done.wait(shop.ttl / 3):
            shop.redis.eval(RENEW_IF_MINE, 1, KEY, mine, int(shop.ttl * 1000))

    watchdog = threading.Thread(target=watch, daemon=True)
    watchdog.start()
    try:
        yield
    finally:
        done.set()
        watchdog.join()
