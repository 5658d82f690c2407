"""SETNX: the process that creates the key has the lock. DEL releases it.

But a process that is killed deletes nothing. The key stays, and the shop sells nothing until someone deletes it by hand.
"""

from __future__ import annotations

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop

KEY = "redis_lock"


class Setnx(Rung):
    name = "setnx"
    title = "SETNX"
    scenarios = shown_by(Scenario("killed", "the holder is killed", faults.killed_while_writing, "stuck"))

    def sell(self, shop: Shop, order: Order) -> Answer:
        if not shop.wait_for(lambda: shop.redis.setnx(KEY, 1)):
            return "busy"
        try:
            with order.holding():
                return shop.take_one(order)
        finally:
            shop.redis.delete(KEY)
