"""handfast on the same five nodes. Its restart guard notices a node that forgot, and does not let it vote until every
lease that it may have forgotten is over: no second winner.

The lock can do no more. A holder that is paused between its last look at the lease and its write still writes too late.
"""

from __future__ import annotations

import handfast
from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop


class Guarded(Rung):
    name = "guarded"
    title = "handfast: a quorum with guard"
    servers = "quorum"
    cohort = 0
    scenarios = shown_by(
        # With a ttl that no busy machine outlasts: this scenario is about votes, not about time.
        Scenario("node-forgets", "a node restarts empty", faults.node_forgets, "safe", True, ttl=20.0, cut=("n4", "n5")),
        Scenario("paused", "the holder is paused beyond the ttl", faults.paused_holder, "oversold"),
    )

    def open(self, shop: Shop) -> None:
        self.client = handfast.connect(shop.nodes, ttl=shop.ttl, wait=shop.patience, cohort=self.cohort)

    def sell(self, shop: Shop, order: Order) -> Answer:
        with self.client.lock("stock") as lease, order.holding():
            return shop.take_one(order, check=lease.check)

    def close(self) -> None:
        self.client.close()
