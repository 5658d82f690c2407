"""Check the model of the wait queue with spin: the right rules in several configurations, and each rule left out.

  python spec/check.py                 all of it: about ten minutes on one core, at most 3 GB
  python spec/check.py --quick         small configurations and the twelve rules of the design: under 40 seconds
  python spec/check.py --only NAME     one configuration or mutant
  python spec/check.py --trace NAME    the shortest counterexample of a mutant, in words
  python spec/check.py --list          names and options

The exit code is 0 if the right model is clean in every configuration and every mutant is caught. Without spin or a C compiler
nothing is checked: the output says so, and the exit code is 0. README.md explains the model and the options.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("queue.pml")
MEMORY_MB = 3000
DEPTH = 10_000
"""Steps of one run; the deepest has about a hundred."""

CLEAN = "clean"
TWO_HOLDERS = "two holders"
DEADLOCK = "deadlock"
LIVELOCK = "livelock"
OVERTAKEN = "overtaken"
OUT_OF_ORDER = "out of order"

EXACT = "exact"
"""Every state is stored: the search is exhaustive."""
BITSTATE = "bitstate"
"""A state is two bits of a table: some states may be left out, and none is reported wrongly."""
CYCLES = "cycles"
"""Exhaustive, and a cycle of steps is an error too. All steps make progress, so a run that never ends is a livelock."""
SHORTEST = "shortest"
"""Exhaustive and breadth first."""

VERDICTS = (
    (r"assertion violated \(number<=1\)", TWO_HOLDERS),
    (r"assertion violated .*overtaken", OVERTAKEN),
    (r"assertion violated .*arrival", OUT_OF_ORDER),
    (r"assertion violated .*stamp", LIVELOCK),
    (r"non-progress cycle", LIVELOCK),
    (r"invalid end state", DEADLOCK),
    (r"block in d_step seq", "channel too small: raise ROOM"),
    (r"assertion violated", "another assertion"),
)
"""What the verifier says, and what it means."""

INCOMPLETE = r"max search depth too small|reached -DMEMLIM bound|out of memory|Search not completed"


@dataclass(frozen=True)
class Check:
    """The model with some options, and what the verifier must report."""

    name: str
    options: str
    """Options of the model, without the -D."""
    expected: str = CLEAN
    search: str = EXACT
    quick: bool = False

    @property
    def defines(self) -> list[str]:
        return [f"-D{option}" for option in self.options.split()]


@dataclass(frozen=True)
class Outcome:
    verdict: str
    states: int
    depth: int
    seconds: float
    """Processor time of the search, without the compiler."""


class Trouble(Exception):
    """A tool failed: nothing is known about the model."""


CONFIGURATIONS: tuple[Check, ...] = ()
MUTANTS: tuple[Check, ...] = ()


COMPILE = {
    EXACT: ["-O2", "-DSAFETY", "-DCOLLAPSE", "-DSEPQS", "-DJOINPROCS"],
    BITSTATE: ["-O2", "-DSAFETY", "-DBITSTATE"],
    CYCLES: ["-O2", "-DNP", "-DNOFAIR", "-DCOLLAPSE", "-DSEPQS", "-DJOINPROCS"],
    SHORTEST: ["-O2", "-DSAFETY", "-DCOLLAPSE", "-DBFS"],
}
RUN = {EXACT: [], BITSTATE: ["-w34", "-k3"], CYCLES: ["-l"], SHORTEST: []}
