"""Redlock: five independent masters. An order that sets the key on three of them in less than the ttl has the lock.

But a node that crashes and restarts empty has forgotten its vote, and votes again. The first holder has n1, n2 and n3;
n3 restarts; the second holder gets n3, n4 and n5. Two majorities, two winners.
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

NODE_TIMEOUT = 0.1
"""Seconds for a node to answer. A dead node must not use up the ttl."""


class Redlock(Rung):
    name = "redlock"
    title = "Redlock on five nodes"
    servers = "quorum"
    scenarios = shown_by(
        Scenario("node-forgets", "a node restarts empty", faults.node_forgets, "oversold", ttl=20.0, cut=("n4", "n5"))
    )

    def open(self, shop: Shop) -> None:
        self.nodes = [redis_client(url, NODE_TIMEOUT) for url in shop.nodes]

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
                break  # lost already: further votes would only block the winner
        if votes > len(self.nodes) // 2 and time.monotonic() - began < ttl:
            return True
        self.unlock(mine)
        return False

    def unlock(self, mine: str) -> None:
        for node in self.nodes:
            says_yes(node.eval, DELETE_IF_MINE, 1, KEY, mine)


def says_yes(ask: Callable[..., object], *args: object, **options: object) -> bool:
    """False also if the node cannot be reached."""
    try:
        return bool(ask(*args, **options))
    except (redis.ConnectionError, redis.TimeoutError):
        return False
