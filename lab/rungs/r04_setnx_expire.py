"""SETNX, then EXPIRE: the key of a dead holder expires.

But if the process dies between the two commands, the key has no expiry and stays for ever. Two commands are not atomic.
"""

from __future__ import annotations

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop

KEY = "redis_lock"


class SetnxExpire(Rung):
    name = "setnx-expire"
    title = "SETNX, then EXPIRE"
    scenarios = shown_by(Scenario("killed", "killed between the two", faults.killed_before_expire, "stuck"))

    def sell(self, shop: Shop, order: Order) -> Answer:
        if not shop.wait_for(lambda: shop.redis.setnx(KEY, 1)):
            return "busy"
        with order.holding():
            order.at("between SETNX and EXPIRE")
            shop.redis.pexpire(KEY, int(shop.ttl * 1000))
            try:
                return shop.take_one(order)
            finally:
                shop.redis.delete(KEY)
