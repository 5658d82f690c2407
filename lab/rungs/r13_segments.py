"""For throughput: the stock is divided into eight stripes with a lock each, so the shop serves eight orders at a time.

When a stripe is empty, half of the fullest stripe is moved to it, under the locks of both. The sale is sold out when all
stripes are empty.
"""

from __future__ import annotations

import zlib

from lab import faults
from lab.rung import Scenario, shown_by
from lab.rungs.r12_fenced import Fenced
from lab.shop import Answer, Order, Shop


class Segments(Fenced):
    name = "segments"
    title = "handfast, stock in eight stripes"
    stripes = 8
    scenarios = shown_by(Scenario("sale", "throughput", faults.nothing, "safe", must_be_safe=True))

    def sell(self, shop: Shop, order: Order) -> Answer:
        stripe = zlib.crc32(order.id.encode()) % self.stripes
        while True:
            with self.client.lock(f"stock:{stripe}") as lease, order.holding(stripe):
                answer = shop.take_one(order, stripe=stripe, fence=self.fence_of(lease))
            if answer == "sold" or not self.refill(shop, order, stripe):
                return answer

    def refill(self, shop: Shop, order: Order, stripe: int) -> bool:
        """Move stock to an empty stripe. False if all stripes are empty."""
        left = shop.database.left()
        fullest = left.index(max(left))
        if left[fullest] == 0 or fullest == stripe:
            return left[fullest] > 0
        with (
            self.client.lock([f"stock:{stripe}", f"stock:{fullest}"]) as lease,
            order.holding(stripe),
            order.holding(fullest),
        ):
            left = shop.database.left(self.fence_of(lease))
            both = left[stripe] + left[fullest]
            shop.write({stripe: both - both // 2, fullest: both // 2}, None, self.fence_of(lease))
        return True
