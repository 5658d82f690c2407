"""SET key 1 NX PX: key and expiry in one atomic step. A dead holder costs the shop one ttl, no more.

But everybody's key looks the same. A slow holder whose key has expired comes to its DEL and deletes the key of the next
holder; then a third one walks in beside the second.
"""

from __future__ import annotations

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop

KEY = "redis_lock"


class SetNxEx(Rung):
    name = "set-nx-ex"
    title = "SET NX EX, same value for all"
    scenarios = shown_by(Scenario("late-del", "a slow holder deletes another's lock", faults.late_release, "oversold"))

    def sell(self, shop: Shop, order: Order) -> Answer:
        if not shop.wait_for(lambda: shop.redis.set(KEY, 1, nx=True, px=int(shop.ttl * 1000))):
            return "busy"
        try:
            with order.holding():
                return shop.take_one(order)
        finally:
            order.at("releasing")
            shop.redis.delete(KEY)
