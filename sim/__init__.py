"""A deterministic simulation of clients, servers, clocks and network, under the very core that production runs.

world           scheduler, clocks, tasks, the trace
net             TCP connections, delay, loss, partitions
store, lua      a server's data, and production's Lua scripts on it
resp, node      a server: bytes in, bytes out
io              the driver: the core's IO over all that
lanes           connections as threads borrow them
client, user    a process with production's client and watchdog, and what it does with locks
plan            what a seed decides, and which guarantees are expected
faults          SAFETY.md's faults, by number
fault_schedule  when faults strike
rare_faults     faults that chance would never combine
register        the resources that locks protect
observer        the invariants
queue_checks    those about waiters
ledger          those about what was sent for whom
scenario        one seed from beginning to end

`python -m sim --seeds 1000` runs seeds, `--seed N --trace` replays one.
"""

from sim.observer import Violation
from sim.scenario import Outcome, run

__all__ = ["Outcome", "Violation", "run"]
