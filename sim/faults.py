"""The simulated faults, by number: what switches each on, and which counts prove that it happened.

`World.happened` counts the faults that have struck. A fault with several variants has a count for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["SIMULATED", "Simulated", "missing"]


class Simulated(NamedTuple):
    """One numbered fault."""

    what: str
    switches: tuple[str, ...]
    """Members of plan.FAULTS; each of them can cause it."""
    kinds: tuple[str, ...] = ()
    """The variants that must happen, if there are several."""

    def counts(self, number: int) -> tuple[str, ...]:
        """Its keys in `World.happened`."""
        return tuple(f"{number} {kind}" for kind in self.kinds) or (f"{number}",)


_STOPS: Final = ("stopped client", "stop where it hurts")
_CUTS: Final = ("partition", "one-way partition", "slow network")
ERRORS: Final = ("BUSY", "LOADING", "READONLY", "OOM", "MISCONF", "NOSCRIPT", "NOPERM")

SIMULATED: Final[Mapping[int, Simulated]] = {
    1: Simulated("a client stopped while it acquires, for longer than a ttl", _STOPS),
    2: Simulated("a client stopped in the critical section, then it writes", _STOPS),
    3: Simulated("a client stopped between check and write", ("stop where it hurts",)),
    4: Simulated("replies held for longer than a ttl", _CUTS),
    5: Simulated("an acquisition delivered after its ttl", _CUTS),
    6: Simulated("kill -9 and empty restart of a node that holds a lease", ("restart", "rolling restart")),
    10: Simulated("rolling restart under a long hold", ("rolling restart",)),
    11: Simulated("a majority restarts", ("majority restart",)),
    12: Simulated("two restarts within Q", ("restart", "rolling restart")),
    13: Simulated("FLUSHALL", ("flush", "slow clock forgets")),
    14: Simulated("one node's clock steps forward by a ttl", ("step forward",)),
    15: Simulated("a majority's clocks step forward by a ttl", ("majority step",)),
    16: Simulated("a clock is set back by an hour", ("step back",)),
    17: Simulated("a clock steps just after a restart", ("step after restart",)),
    18: Simulated("clock rates differ by up to 0.9 %", ("drift",)),
    19: Simulated("partition", ("partition",), ("minority", "majority")),
    20: Simulated("partition in one direction only", ("one-way partition",), ("requests", "replies")),
    21: Simulated("half-open connections", ("power cut",)),
    24: Simulated("a node stopped, then a burst of old commands", ("stopped node",)),
    25: Simulated("error replies", ("moods", "scripts lost"), ERRORS),
    30: Simulated("a renewal in flight at release", ("release while renewing",)),
    31: Simulated("a renewal's reply after the deadline", _CUTS),
    32: Simulated("a task cancelled where it waits", ("cancel",), ("while", "after")),
    36: Simulated("fifty waiters at one release", ("crowd",)),
    39: Simulated("counters lost on a minority with a slow clock", ("slow clock forgets",)),
    40: Simulated("a client's wall clock a year ahead", ("wrong wall clocks",)),
    41: Simulated("a client with another max_ttl", ("another max_ttl",)),
}


def missing(happened: Mapping[str, int]) -> list[str]:
    """The counts that are still zero."""
    return [count for number, fault in SIMULATED.items() for count in fault.counts(number) if not happened.get(count)]
