"""Redlock: five independent masters, and who has the key on three of them within its time has the lock.

But a node that crashes and comes back empty has forgotten its vote, and votes again. The first holder has n1, n2, n3;
n3 restarts; the second gets n3, n4, n5. Two majorities, two winners.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import redis

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.rungs.r07_lua import DELETE_IF_MINE, KEY
from lab.shop import Answer, Order, Shop, redis_client

PATIENCE = 0.1
"""Seconds for a node to answer: a dead one must not use up the ttl."""


class Redlock(Rung):
    name = "redlock"
    title = "Redlock on five nodes"
    servers = "quorum"
    scenarios = shown_by(
        Scenario("node-forgets", "a node restarts empty", faults.node_forgets, "oversold", ttl=20.0, cut=("n4", "n5"))
    )

    def open(self, shop: Shop) -> None:
        self.nodes = [redis_client(url, PATIENCE) for url in shop.nodes]

    def sell(self, shop: Shop, order: Order) -> Answer:
        mine = uuid.uuid4().hex
        if not shop.wait_for(lambda: self.lock(mine, shop.ttl), every=0.03):
            return "busy"
        try:
            with order.holding():
                return shop.take_one(order)
        finally:
            self.unlock(mine)

    def lock(self, mine: str, ttl: float) -> bool:
        began = time.monotonic()
        votes = refusals = 0
        for node in self.nodes:
            if says_yes(node.set, KEY, mine, nx=True, px=int(ttl * 1000)):
                votes += 1
            else:
                refusals += 1
            if refusals > len(self.nodes) // 2:
                break  # lost already: the others' votes would only be in the way of whoever wins
        if votes > len(self.nodes) // 2 and time.monotonic() - began < ttl:
            return True
        self.unlock(mine)
        return False

    def unlock(self, mine: str) -> None:
        for node in self.nodes:
            says_yes(node.eval, DELETE_IF_MINE, 1, KEY, mine)


def says_yes(ask: Callable[..., object], *args: object, **options: object) -> bool:
    """A node that cannot be reached does not."""
    try:
        return bool(ask(*args, **options))
    except (redis.ConnectionError, redis.TimeoutError):
        return False
