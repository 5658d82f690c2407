"""A deterministic simulation of clients, servers, clocks and network. The core in it is production's.

world           scheduler, clocks, tasks, the trace
net             TCP connections, delay, loss, partitions
store, lua      a server's data, and production's Lua scripts on it
resp, node      a server: bytes in, bytes out
io              the driver: the core's IO over the simulated network
connection_pool connections for clients with threads
client, user    a process with production's client and watchdog, and what it does with locks
plan            what a seed decides, and which guarantees are expected
faults          the simulated faults, by number
fault_schedule  when faults strike
rare_faults     faults that random draws would never combine
register        the resources that locks protect
observer        the invariants
queue_checks    the invariants about waiters
ledger          the invariants about what clients send
scenario        one seed from beginning to end

`python -m sim --seeds 1000` runs seeds, `--seed N --trace` replays one.
"""

from sim.observer import Violation
from sim.scenario import Outcome, run

__all__ = ["Outcome", "Violation", "run"]
