"""Check the model of the wait queue with spin: the right rules in several configurations, and each rule left out.

  python spec/check.py                 all checks: about ten minutes on one core, at most 3 GB
  python spec/check.py --quick         small configurations and the most important mutants: under 40 seconds
  python spec/check.py --long          larger configurations too: about an hour
  python spec/check.py --only NAME     one check; --only can be given several times
  python spec/check.py --trace NAME    the shortest counterexample of a mutant, in words
  python spec/check.py --list          names and options

The exit code is 0 if the right model is clean in every configuration and every mutant is caught. Without spin or gcc,
nothing is checked: the output says so, and the exit code is 0. README.md explains the model and its options.
"""

from __future__ import annotations

import argparse
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MODEL = Path(__file__).with_name("queue.pml")
MEMORY_MB = 3000
DEPTH = 100_000
"""Steps of one run. The deepest run has about a hundred; the verifier says if that is not enough."""

CLEAN = "clean"
TWO_HOLDERS = "two holders"
DEADLOCK = "deadlock"
LIVELOCK = "livelock"
OVERTAKEN = "overtaken"

VERDICTS = (
    (r"assertion violated \(number<=1\)", TWO_HOLDERS),
    (r"invalid end state", DEADLOCK),
    (r"non-progress cycle", LIVELOCK),
    (r"assertion violated \(stamp", LIVELOCK),
    (r"assertion violated \(overtaken", OVERTAKEN),
    (r"assertion violated .*arrival", "out of order"),
    (r"assertion violated", "another assertion"),
    (r"block in d_step seq", "more messages in flight than ROOM"),
    (r"max search depth too small", "more steps than DEPTH"),
)
"""What the verifier prints, and what it means; the first that fits."""

EXACT = "exact"
"""Stores every state: the search is exhaustive."""
CYCLES = "cycles"
"""Exhaustive, and searches for a run that never ends. Every run of the model should end, so a cycle is a livelock. This
search does not look for deadlocks, so a configuration needs EXACT too."""
BITSTATE = "bitstate"
"""Stores three bits per state: the search can miss states, and cannot report an error that is not there."""
SHORTEST = "shortest"
"""Exhaustive, breadth first: the counterexample is as short as possible."""

BOTH = (EXACT, CYCLES)

COMPRESS = ["-DCOLLAPSE", "-DSEPQS", "-DJOINPROCS"]
COMPILE = {
    EXACT: ["-DSAFETY", *COMPRESS],
    CYCLES: ["-DNP", "-DNOFAIR", *COMPRESS],
    BITSTATE: ["-DSAFETY", "-DBITSTATE"],
    SHORTEST: ["-DSAFETY", "-DCOLLAPSE", "-DBFS"],
}
SEARCH = {EXACT: [], CYCLES: ["-l"], BITSTATE: ["-w34", "-k3"], SHORTEST: []}


@dataclass(frozen=True)
class Check:
    """The model with some options, and what the verifier must report."""

    name: str
    options: str
    """Options of the model, each without its -D."""
    expected: str = CLEAN
    searches: tuple[str, ...] = (EXACT,)
    level: str = "full"
    """When it runs: "quick" always, "full" unless --quick, "long" only with --long."""
    rule: str = ""
    """The rule that a mutant breaks."""

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


class ToolFailedError(Exception):
    """Spin or the compiler failed, or the verifier printed something unknown: nothing is known about the model."""


NO_FAULTS = "OVERTAKING=1 FEW_STAMPS"
"""Two bounds: a waiter that all nodes know is overtaken at most once, and yields a vote at most once per lower ticket."""

CONFIGURATIONS = (
    # One node: the rules are a plain queue.
    Check("1-node-fifo", "NODES=1 CLIENTS=3 ARRIVAL MOST_STAMPS=1", searches=BOTH, level="quick"),
    Check("1-node-2-faults", "NODES=1 CLIENTS=3 ARRIVAL ALL_FAULTS FAULTS=2"),
    # Three nodes, two clients.
    Check("2-clients", f"CLIENTS=2 {NO_FAULTS}", searches=BOTH, level="quick"),
    Check("2-clients-no-tickets", "CLIENTS=2 TRYERS=3 OVERTAKING=1", searches=BOTH),
    Check("2-clients-no-tickets-queued", "CLIENTS=2 TRYERS=3 TRY_QUEUES OVERTAKING=1"),
    Check("2-clients-crash", "CLIENTS=2 CRASHES FAULTS=1", searches=BOTH, level="quick"),
    Check("2-clients-1-fault", "CLIENTS=2 ALL_FAULTS FAULTS=1", searches=BOTH),
    Check("2-clients-2-faults", "CLIENTS=2 CANCELS CRASHES EXPIRIES BREAKS FAULTS=2"),
    Check(
        "2-clients-1-no-ticket-1-fault",
        "CLIENTS=2 TRYERS=1 ALL_FAULTS FAULTS=1 ROOM=8",
        searches=(BITSTATE,),
        level="long",
    ),
    Check("2-clients-2-faults-of-all", "CLIENTS=2 ALL_FAULTS FAULTS=2", searches=(BITSTATE,), level="long"),
    # Two nodes of three: a majority needs both, so a lost vote or inquiry shows at once.
    Check("2-clients-1-down", "CLIENTS=2 ONE_DOWN TRYERS=3", searches=BOTH, level="quick"),
    Check("2-clients-1-down-1-fault", "CLIENTS=2 ONE_DOWN ALL_FAULTS FAULTS=1", searches=BOTH, level="quick"),
    Check("2-clients-1-down-no-tickets-1-fault", "CLIENTS=2 ONE_DOWN TRYERS=3 ALL_FAULTS FAULTS=1 ROOM=8"),
    Check("2-clients-1-down-2-faults", "CLIENTS=2 ONE_DOWN ALL_FAULTS FAULTS=2 ROOM=7"),
    Check("3-clients-1-down", "CLIENTS=3 ONE_DOWN", searches=BOTH, level="quick"),
    Check("3-clients-1-down-no-tickets", "CLIENTS=3 ONE_DOWN TRYERS=7"),
    Check("3-clients-1-down-1-fault", "CLIENTS=3 ONE_DOWN ALL_FAULTS FAULTS=1"),
    # Three nodes, three clients.
    Check("3-clients", f"CLIENTS=3 {NO_FAULTS}", searches=BOTH),
    Check("3-clients-cancel-or-repeat", "CLIENTS=3 CANCELS REPEATS FAULTS=1"),
    Check("3-clients-1-no-ticket", "CLIENTS=3 TRYERS=2"),
    Check("3-clients-crash", "CLIENTS=3 CRASHES FAULTS=1", searches=(BITSTATE,), level="long"),
    Check("3-clients-1-fault", "CLIENTS=3 ALL_FAULTS FAULTS=1", searches=(BITSTATE,), level="long"),
    # Variants that the rules allow, see README.md.
    Check("push-apart", "CLIENTS=2 ONE_DOWN TRYERS=3 PUSH_APART", searches=BOTH, level="quick"),
    Check("push-apart-remembered", "CLIENTS=2 ONE_DOWN TRYERS=3 PUSH_APART REMEMBER_INQUIRIES NO_LOOK", level="quick"),
    Check("push-apart-remembered-3-clients", "CLIENTS=3 PUSH_APART REMEMBER_INQUIRIES NO_LOOK"),
    Check(
        "push-apart-remembered-1-fault",
        "CLIENTS=2 ONE_DOWN ALL_FAULTS FAULTS=1 PUSH_APART REMEMBER_INQUIRIES ROOM=8",
        searches=BOTH,
    ),
    Check("own-push-first-remembered", "CLIENTS=2 ONE_DOWN BREAKS FAULTS=2 OWN_PUSH_FIRST REMEMBER_INQUIRIES NO_LOOK"),
    Check("remembered-1-fault", "CLIENTS=2 ALL_FAULTS FAULTS=1 OWN_PUSH_FIRST REMEMBER_INQUIRIES", searches=BOTH),
    Check("no-skipping", "CLIENTS=2 ONE_DOWN BREAKS FAULTS=2 NO_SKIPPING", searches=BOTH),
    Check("stamps-start-anew", "CLIENTS=2 RESTARTS FAULTS=1 STAMPS_START_ANEW", searches=BOTH),
    Check("any-command-gives", "CLIENTS=2 ONE_DOWN ALL_FAULTS FAULTS=1 ANY_COMMAND_GIVES", searches=BOTH),
    Check("skipping-drops-the-claim", "CLIENTS=2 ONE_DOWN BREAKS FAULTS=2 SKIPPING_DROPS_THE_CLAIM", searches=BOTH),
)

ONE_DOWN = "CLIENTS=2 ONE_DOWN"
MUTANTS = (
    # Two clients count a majority of unexpired votes.
    Check("no-stamps", "NO_STAMPS CLIENTS=2 REPEATS FAULTS=1", TWO_HOLDERS, level="quick", rule="stamps"),
    Check("yielded-grant-counts", "YIELDED_GRANT_COUNTS CLIENTS=2 REPEATS FAULTS=1", TWO_HOLDERS, rule="client 2"),
    Check(
        "yield-of-any-stamp", "YIELD_OF_ANY_STAMP CLIENTS=3 REPEATS FAULTS=1", TWO_HOLDERS, level="quick", rule="node 4"
    ),
    Check("uncount-after-sending", "UNCOUNT_AFTER_SENDING CLIENTS=2", TWO_HOLDERS, level="quick", rule="client 4"),
    Check("holder-yields", "HOLDER_YIELDS CLIENTS=2", TWO_HOLDERS, level="quick", rule="client 4"),
    Check(
        "expired-grant-counts",
        "EXPIRED_GRANT_COUNTS CLIENTS=2 EXPIRIES FAULTS=1",
        TWO_HOLDERS,
        level="quick",
        rule="client 2",
    ),
    Check("late-vote-stays-counted", "LATE_VOTE_STAYS_COUNTED CLIENTS=2 EXPIRIES FAULTS=2", TWO_HOLDERS, rule="client 5"),
    Check(
        "lease-until-latest-deadline",
        "LEASE_UNTIL_THE_LATEST_DEADLINE CLIENTS=2 EXPIRIES FAULTS=2",
        TWO_HOLDERS,
        level="quick",
        rule="client 3",
    ),
    Check("minority-holds", "MINORITY_HOLDS CLIENTS=2", TWO_HOLDERS, rule="client 3"),
    Check("no-quarantine", "NO_QUARANTINE CLIENTS=2 RESTARTS FAULTS=1", TWO_HOLDERS, rule="node 1"),
    # A live waiter never gets the lock.
    Check("no-inquire", f"NO_INQUIRE {ONE_DOWN}", DEADLOCK, level="quick", rule="node 1, 2"),
    Check("no-inquire-3-clients", "NO_INQUIRE CLIENTS=3", DEADLOCK, rule="node 1, 2"),
    Check("pass-to-the-newest", "PASS_TO_THE_NEWEST CLIENTS=3 ONE_DOWN", DEADLOCK, level="quick", rule="node 3"),
    Check("pass-keeps-the-claim", "PASS_KEEPS_THE_CLAIM CLIENTS=2", DEADLOCK, level="quick", rule="node 3"),
    Check("yield-forgets-the-claim", "YIELD_FORGETS_THE_CLAIM CLIENTS=2", DEADLOCK, level="quick", rule="node 4"),
    Check("no-look-after-a-crash", "NO_LOOK CLIENTS=2 CRASHES FAULTS=1", DEADLOCK, level="quick", rule="client 5"),
    Check("no-look-after-an-expiry", f"NO_LOOK {ONE_DOWN} EXPIRIES FAULTS=1", DEADLOCK, rule="client 5"),
    Check(
        "ticket-only-where-refused",
        f"TICKET_ONLY_WHERE_REFUSED {ONE_DOWN} TRYERS=1",
        DEADLOCK,
        level="quick",
        rule="client 6",
    ),
    Check("no-second-pass", f"NO_SECOND_PASS {ONE_DOWN} BREAKS FAULTS=1", DEADLOCK, rule="client 3"),
    Check(
        "no-claim-on-reconnect",
        f"NO_CLAIM_AFTER_RECONNECTION NO_LOOK {ONE_DOWN} BREAKS FAULTS=1",
        DEADLOCK,
        rule="client 5",
    ),
    Check("inquire-once", f"INQUIRE_ONCE {ONE_DOWN} BREAKS FAULTS=1", DEADLOCK, rule="node 2"),
    Check(
        "no-inquire-of-claimant", f"NO_INQUIRE_OF_A_CLAIMANT INQUIRE_ONCE {ONE_DOWN} TRYERS=3", DEADLOCK, rule="node 1"
    ),
    Check("push-apart-forgotten", f"PUSH_APART NO_LOOK {ONE_DOWN}", DEADLOCK, rule="order of push and reply"),
    Check(
        "own-push-first-forgotten",
        f"OWN_PUSH_FIRST NO_LOOK {ONE_DOWN} BREAKS FAULTS=1",
        DEADLOCK,
        rule="order of push and reply",
    ),
    # Steps go round in a circle.
    Check("no-second-yield", f"NO_SECOND_YIELD {ONE_DOWN} BREAKS FAULTS=1", LIVELOCK, (CYCLES,), rule="client 2"),
    # The bound on overtaking is as low as it can be.
    Check("never-overtaken", "CLIENTS=2 OVERTAKING=0", OVERTAKEN, rule="order"),
)


def run(command: Sequence[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    if done.returncode != 0:
        raise ToolFailedError(f"{' '.join(command)}: exit code {done.returncode}\n{text[-2000:]}")
    return text


def build(check: Check, search: str, folder: Path) -> None:
    """Make the verifier `pan` in `folder`."""
    shutil.copy(MODEL, folder)
    run(["spin", *check.defines, "-a", MODEL.name], folder)
    # A small search ends before a better compiled verifier would pay.
    effort = "-O2" if check.expected == CLEAN and check.level != "quick" else "-O0"
    flags = [effort, "-w", f"-DMEMLIM={MEMORY_MB}", "-DVECTORSZ=2048", *COMPILE[search]]
    run(["gcc", *flags, "-o", "pan", "pan.c"], folder)


def verify(search: str, folder: Path) -> Outcome:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    text = run(["./pan", f"-m{DEPTH}", "-n", *SEARCH[search]], folder)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return read_output(text, seconds)


def read_output(text: str, seconds: float) -> Outcome:
    summary = re.search(r"depth reached (\d+).*errors: (\d+)", text)
    states = re.search(r"([\d.e+]+) states, stored", text)
    if summary is None or states is None:
        raise ToolFailedError(f"the verifier printed no summary\n{text}")
    found = "\n".join(re.findall(r"^(?:pan:\d+:|error:).*", text, re.MULTILINE))
    verdict = next((meaning for pattern, meaning in VERDICTS if re.search(pattern, found)), CLEAN)
    if verdict == CLEAN and "Search not completed" in text:
        verdict = f"not finished: more than {MEMORY_MB} MB"
    elif (verdict == CLEAN) != (summary[2] == "0"):
        raise ToolFailedError(f"the verifier reports {summary[2]} errors, and the reason is unknown\n{text}")
    return Outcome(verdict, int(float(states[1])), int(summary[1]), seconds)


def examine(check: Check, search: str) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="handfast-spec-") as name:
        folder = Path(name)
        build(check, search, folder)
        return verify(search, folder)


def trace(check: Check) -> None:
    """Print the shortest counterexample. A livelock is an exception: breadth-first search finds no cycles."""
    search = CYCLES if check.expected == LIVELOCK else SHORTEST
    with tempfile.TemporaryDirectory(prefix="handfast-spec-") as name:
        folder = Path(name)
        build(check, search, folder)
        print(f"{check.name}: {verify(search, folder).verdict}")
        print(run(["spin", *check.defines, "-t", "-B", "-T", MODEL.name], folder))


def report(check: Check, search: str) -> bool:
    """Run one search and print its line."""
    print(f"{check.name:<36} {search:<9}", end="", flush=True)
    outcome = examine(check, search)
    good = outcome.verdict == check.expected
    words = outcome.verdict if check.expected == CLEAN else f"{outcome.verdict} (without the rule: {check.rule})"
    wrong = "" if good else f"   WRONG, expected: {check.expected}"
    print(f"{outcome.states:>12,} states {outcome.depth:>5} steps {outcome.seconds:>7.1f} s   {words}{wrong}", flush=True)
    return good


def missing_tool() -> str | None:
    if shutil.which("spin") is None:
        return "spin is not installed (Debian package: spin)"
    if shutil.which("gcc") is None:
        return "gcc is not installed; spin uses it as its preprocessor"
    return None


def chosen(arguments: argparse.Namespace) -> list[Check]:
    checks = [*CONFIGURATIONS, *MUTANTS]
    names = arguments.only or ([arguments.trace] if arguments.trace else [])
    for name in names:
        if not any(check.name == name for check in checks):
            raise SystemExit(f"no check is called {name!r}; --list prints the names")
    if names:
        return [check for check in checks if check.name in names]
    levels = {"quick"} if arguments.quick else {"quick", "full", "long"} if arguments.long else {"quick", "full"}
    return [check for check in checks if check.level in levels]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Check the model of the wait queue with spin.")
    parser.add_argument("--quick", action="store_true", help="small configurations and the most important mutants")
    parser.add_argument("--long", action="store_true", help="also what takes long")
    parser.add_argument("--only", metavar="NAME", action="append", help="run this check; can be repeated")
    parser.add_argument("--trace", metavar="NAME", help="print the shortest counterexample of a mutant")
    parser.add_argument("--list", action="store_true", help="print the names and options of all checks")
    arguments = parser.parse_args(argv)
    if arguments.list:
        for check in (*CONFIGURATIONS, *MUTANTS):
            print(f"{check.name:<36} {check.level:<6} {check.expected:<12} {check.options}")
        return 0
    missing = missing_tool()
    if missing is not None:
        print(f"SKIPPED: the model of the wait queue is not checked, because {missing}")
        return 0
    checks = chosen(arguments)
    if arguments.trace:
        trace(checks[0])
        return 0
    try:
        wrong = [check.name for check in checks for search in check.searches if not report(check, search)]
    except ToolFailedError as error:
        print(f"FAILED, nothing is known: {error}")
        return 2
    mutants = sum(check.expected != CLEAN for check in checks)
    print(f"{len(checks) - mutants} configurations and {mutants} mutants: {len(wrong)} wrong {' '.join(wrong)}".rstrip())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
