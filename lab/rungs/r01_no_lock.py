"""Nothing separates two orders. Both read "100 left" and both write "99 left": one piece is sold twice.

The busier the shop, the more often this happens, between threads of one process as well as between processes.
"""

from __future__ import annotations

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop


class NoLock(Rung):
    name = "no-lock"
    title = "No lock"
    scenarios = shown_by(Scenario("race", "two orders at once", faults.two_at_once, "oversold"))

    def sell(self, shop: Shop, order: Order) -> Answer:
        with order.holding():
            return shop.take_one(order)
