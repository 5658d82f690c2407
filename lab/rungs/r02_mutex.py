"""A mutex of the programming language keeps the threads of one process apart: right as long as there is one process.

Put a second process behind the balancer, and each has a mutex of its own: they no longer know of each other.
"""

from __future__ import annotations

import threading

from lab import faults
from lab.rung import Rung, Scenario, shown_by
from lab.shop import Answer, Order, Shop


class Mutex(Rung):
    name = "mutex"
    title = "A mutex in the process"
    scenarios = shown_by(
        Scenario("one-process", "one process", faults.nothing, "safe", one_worker=True),
        Scenario("more", "several processes", faults.two_at_once, "oversold"),
    )

    def __init__(self) -> None:
        self.mutex = threading.Lock()

    def sell(self, shop: Shop, order: Order) -> Answer:
        with self.mutex, order.holding():
            return shop.take_one(order)
