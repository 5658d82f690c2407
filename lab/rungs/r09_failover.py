"""The same lock on a master with a replica, so that the shop survives the loss of a server.

But replication is asynchronous. The master grants the lock and dies before the replica has received the key. The replica
is promoted and grants the same lock again.
"""

from __future__ import annotations

from lab import faults
from lab.rung import Scenario, shown_by
from lab.rungs.r08_watchdog import Watchdog


class Failover(Watchdog):
    name = "failover"
    title = "Master and replica"
    servers = "replicated"
    scenarios = shown_by(
        Scenario("failover", "the master dies before it has replicated", faults.failover, "oversold", ttl=5.0)
    )
