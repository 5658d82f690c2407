"""A Lua script compares and deletes in one step: no holder can delete another's key any more.

But if the work takes longer than the ttl, the key expires while its holder still works. Then there are two holders, and
the slow one writes stock that it computed from an old read: sold pieces are for sale again.
"""

from __future__ import annotations

import uuid

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop

KEY = "redis_lock"
DELETE_IF_MINE = 'if redis.call("get", KEYS[1]) == ARGV[1] then return redis.call("del", KEYS[1]) end return 0'


class Lua(Rung):
    name = "lua"
    title = "Compare and delete in Lua"
    scenarios = shown_by(Scenario("slow", "work takes longer than the ttl", faults.slow_holder, "oversold"))

    def sell(self, shop: Shop, order: Order) -> Answer:
        mine = uuid.uuid4().hex
        if not shop.wait_for(lambda: shop.redis.set(KEY, mine, nx=True, px=int(shop.ttl * 1000))):
            return "busy"
        try:
            with order.holding():
                return shop.take_one(order)
        finally:
            shop.redis.eval(DELETE_IF_MINE, 1, KEY, mine)
