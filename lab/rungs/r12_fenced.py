"""handfast, and the database checks the token. Every lease has a token: a number larger than those of all earlier
leases. The database refuses a token that is smaller than the largest one it has seen.

Now no pause, crash or forgotten vote can do harm: the database refuses the late write and changes nothing.
"""

from __future__ import annotations

import handfast
from handfast.fenced import SqlFence
from lab import faults
from lab.database import Database, Fence
from lab.rung import Scenario, shown_by
from lab.rungs.r11_guarded import Guarded
from lab.shop import Answer, Order, Shop


class Fenced(Guarded):
    name = "fenced"
    title = "handfast, fenced at the database"
    scenarios = shown_by(
        Scenario(
            "all-faults",
            "paused, killed, forgotten, cut off: all at once",
            faults.everything,
            "safe",
            must_be_safe=True,
            cut=("n4", "n5"),
        ),
        Scenario("sale", "throughput, to compare", faults.nothing, "safe", must_be_safe=True),
    )

    def prepare(self, database: Database, stock: int) -> None:
        super().prepare(database, stock)
        with database.engine.begin() as connection:
            SqlFence(database.fence_table).create(connection)

    def open(self, shop: Shop) -> None:
        super().open(shop)
        self.fence = SqlFence(shop.database.fence_table)

    def sell(self, shop: Shop, order: Order) -> Answer:
        with self.client.lock("stock") as lease, order.holding():
            return shop.take_one(order, fence=self.fence_of(lease))

    def fence_of(self, lease: handfast.Lease) -> Fence:
        """The check that runs in the transactions of the read and of the write."""
        return lambda connection: self.fence.check(connection, lease)
