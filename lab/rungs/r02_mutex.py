"""A mutex of the programming language separates the threads of one process. With one process it is correct.

With a second process behind the balancer, each process has its own mutex, and neither sees the other's.
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
