"""A deterministic simulation of clients, servers, clocks and network, under the very core that production runs.

  world     scheduler, clocks, tasks, the notebook      net       connections, delay, loss, partitions
  store     a server's data                             scripts   the Lua transitions
  node      a server: bytes in, bytes out               lane      Effects and Lobby over all that
  client    a process: keeper and watchdog              user      what processes do with locks
  faults    what goes wrong, and what is owed then      observer  the invariants
  scenario  one seed from beginning to end

`python -m handfast.testing.sim --seeds 1000` runs seeds, `--seed N --trace` replays one.
"""

from handfast.testing.sim.observer import Violation
from handfast.testing.sim.scenario import Outcome, run

__all__ = ["Outcome", "Violation", "run"]
