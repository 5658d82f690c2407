"""handfast on the same five nodes. Its restart guard notices a node that lost its data. The node does not vote until
every lease that it may have forgotten is over, so there is no second winner.

A lock can do no more than that. A holder that is paused between its last check of the lease and its write still writes
too late.
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
    handfast = True
    cohort = 0
    scenarios = shown_by(
        # The long ttl never ends during the scenario, even on a busy machine: this is about votes, not about time.
        Scenario("node-forgets", "a node restarts empty", faults.node_forgets, "safe", True, ttl=20.0, cut=("n4", "n5")),
        Scenario("paused", "the holder is paused beyond the ttl", faults.paused_holder, "oversold"),
    )

    def open(self, shop: Shop) -> None:
        self.client = handfast.connect(shop.nodes, ttl=shop.ttl, wait=shop.wait, cohort=self.cohort)

    def sell(self, shop: Shop, order: Order) -> Answer:
        with self.client.lock("stock") as lease, order.holding():
            return shop.take_one(order, check=lease.check)

    def close(self) -> None:
        self.client.close()
