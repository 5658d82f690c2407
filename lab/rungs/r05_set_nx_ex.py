"""SET key 1 NX PX sets key and expiry in one atomic step. A dead holder blocks the shop for one ttl at most.

But all holders write the same value. A slow holder whose key has expired deletes the key of the next holder with its DEL,
and a third order gets the lock beside the second.
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
