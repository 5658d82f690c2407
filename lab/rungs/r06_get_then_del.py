"""A unique value for each holder, and a look before the DEL: "is it still mine?"

But GET and DEL are two steps again. Between them the key can expire and become another's; the answer is out of date when
the DEL is sent.
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
