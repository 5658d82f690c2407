"""A deterministic simulation of clients, servers, clocks and network, under the very core that production runs.

  world     scheduler, clocks, tasks, the notebook      net       connections, delay, loss, partitions
  store     a server's data                             scripts   the Lua transitions
  node      a server: bytes in, bytes out               lane      Effects and Lobby over all that
  client    a process: keeper and watchdog              user      what processes do with locks
  plan      what a seed decides, and what is owed then  storm     how faults strike (rare: one that chance never would)
  faults    SAFETY.md's faults, by number               register  the resources that locks protect
  observer  the invariants                              ledger    what was sent for whom
  scenario  one seed from beginning to end

`python -m sim --seeds 1000` runs seeds, `--seed N --trace` replays one.
"""

from sim.observer import Violation
from sim.scenario import Outcome, run

__all__ = ["Outcome", "Violation", "run"]
