"""Each holder writes a unique value, and checks before its DEL that the key is still its own.

But GET and DEL are two steps again. Between them the key can expire and another order can take the lock. The DEL then
deletes that order's key.
"""

from __future__ import annotations

import uuid

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop

KEY = "redis_lock"


class GetThenDel(Rung):
    name = "get-then-del"
    title = "Unique value, GET then DEL"
    scenarios = shown_by(Scenario("late-del", "the race between GET and DEL", faults.late_release, "oversold"))

    def sell(self, shop: Shop, order: Order) -> Answer:
        mine = uuid.uuid4().hex
        if not shop.wait_for(lambda: shop.redis.set(KEY, mine, nx=True, px=int(shop.ttl * 1000))):
            return "busy"
        try:
            with order.holding():
                return shop.take_one(order)
        finally:
            if shop.redis.get(KEY) == mine.encode():
                order.at("releasing")
                shop.redis.delete(KEY)
