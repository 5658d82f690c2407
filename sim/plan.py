"""What a seed decides beforehand: a deployment, its use, its faults, and the guarantees that hold nevertheless.

Swarm testing: each seed draws a random subset of the faults, so that no fault hides behind another in every run.

The guarantees follow from the plan alone. A1 to A5 are the assumptions in docs/evidence.md:
exclusion     unless clock rates differ by more than `drift` (A1), a node's clock steps forward (A2), a node without a
              guard loses its data (A3), or an operator breaks a lock. The schedule keeps A5: no node loses its data
              while M - 1 nodes are suspect;
uniqueness    if counters survive, or a guard repairs a minority of them. A single node takes tokens from its clock;
order         as uniqueness; the tokens of a cohort are in order only while exclusion holds;
fairness      unless the lock is unfair, or the nodes' clocks, which give the tickets, disagree;
liveness      unless a clock was set back and no client may cut a lease that has become too long, or a clock is so wrong
              that the guard suspects every node, or a client with another max_ttl may have written the markers of a
              majority;
stays open    a majority of nodes votes all the time, unless nodes lose their data or their clocks step. One client whose
              clock stands still again and again does not change that.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, Final, NamedTuple, cast

from handfast.option_types import ClientOptions
from sim.observer import ExpectedGuarantees

__all__ = ["BEYOND", "BREAK", "DEAD_VOTES", "DRIFT", "FAULTS", "Plan", "draw"]

FAULTS: Final = (
    "slow network",
    "loss",
    "distance",
    "partition",
    "one-way partition",
    "reset",
    "stopped client",
    "stop where it hurts",
    "blocked loop",
    "crash",
    "power cut",
    "stopped node",
    "restart",
    "durable restart",
    "rolled-back restart",
    "rolling restart",
    "flush",
    "majority restart",
    "slow clock forgets",
    "forgets after voting",
    "dies with its vote",
    "drift",
    "wild drift",
    "step forward",
    "majority step",
    "step after restart",
    "step back",
    "wrong wall clocks",
    "another max_ttl",
    "cancel",
    "extend",
    "slow writer",
    "release while renewing",
    "crowd",
    "scripts lost",
    "moods",
    "no tracking",
    "most drift",
    "dropped lease",
    "stop at a hand-over",
    "lost raise",
)
BEYOND: Final = frozenset({"wild drift", "step forward", "majority step", "step after restart", "majority restart"})
"""Beyond the assumptions: drawn less often, because fewer guarantees hold with them."""
FORGETTING: Final = frozenset(
    {
        "restart",
        "rolled-back restart",
        "rolling restart",
        "flush",
        "majority restart",
        "slow clock forgets",
        "forgets after voting",
        "dies with its vote",
        "step after restart",
    }
)
STANDSTILLS: Final = "standstills"
"""Drawn in a theme of its own, see `draw`: it breaks A1 for one client."""
BREAK: Final = "broken lock"
"""Never drawn: an operator may break any rule. tests/sim has plans with it."""
STEPS: Final = frozenset({"step forward", "majority step", "step after restart"})
CLOSING: Final = FORGETTING | STEPS | {"durable restart", "power cut", "step back", "wild drift", "another max_ttl"}
"""Faults after which a node may have to wait for its quarantine."""
SET_BACK: Final = 86400.0
"""The most seconds by which all set-backs of a clock together move it."""
DRIFT: Final = 0.0045
"""The largest error of a clock's rate: two clocks differ by less than 1 % from each other."""


STANDSTILL_CHANCE: Final = 0.04
DEAD_VOTES_CHANCE: Final = 0.06


class Plan(NamedTuple):
    """Everything that a seed decides beforehand."""

    nodes: int
    guard: bool
    clients: int
    users: int
    names: tuple[str, ...]
    ttl: float
    max_ttl: float
    fence: bool
    renew: bool
    fair: bool
    cohort: int
    work: float
    think: float
    faults: tuple[str, ...]
    max_hold: float | None = None
    together: bool = False
    """Users sometimes take two names at once."""
    owners: bool = False
    """Users have explicit owners."""
    one_owner: bool = False
    """All these users have the same owner, so they hold the lock together."""
    reentrant: bool = False
    """A holder sometimes takes the lock again."""
    fault_seconds: float = 20.0
    """Seconds during which faults strike."""
    every: float = 4.0
    """Seconds between two strikes of one fault, on average."""
    prefix: str = "handfast:"
    """Empty: keys that other programs can share."""
    tries: int | None = None
    token_memory: float = 7 * 86400.0
    """Seconds for which counters are kept."""
    threads: bool = False
    """Users borrow connections, as threads do. Otherwise they share them, as tasks do."""

    def options(self, **changes: float) -> ClientOptions:
        """The options of a client."""
        options: dict[str, Any] = {
            "guard": self.guard,
            "ttl": self.ttl,
            "max_ttl": self.max_ttl,
            "fence": self.fence,
            "renew": self.renew,
            "fair": self.fair,
            "cohort": self.cohort,
            "max_hold": self.max_hold,
            "prefix": self.prefix,
            "tries": self.tries,
            "token_memory": self.token_memory,
            **changes,
        }
        return cast(ClientOptions, options)

    @property
    def published(self) -> bool:
        """The key is the name, and the protocol is the published one, without queues."""
        return not self.prefix and not self.fence

    @property
    def forgetful(self) -> bool:
        return bool(FORGETTING & set(self.faults))

    @property
    def quarantine(self) -> float:
        return self.max_ttl * 1.02 + 0.2

    @property
    def longest_wait(self) -> float:
        """Seconds after the last fault within which every user gets the lock (invariant 11)."""
        everybody = self.clients * self.users * 0.5
        busy = 3 * self.work + 2 * self.ttl  # a holder finishes its work, and may be renewed during it
        return self.max_ttl + 2 * self.quarantine + 8.0 + everybody + self.clients * busy

    @property
    def expected_guarantees(self) -> ExpectedGuarantees:
        faults = set(self.faults)
        guarded = self.guard or not self.forgetful
        # A client whose clock stands still believes in its leases for too long, until it notices.
        exclusive = not faults & {"wild drift", BREAK, STANDSTILLS, *STEPS} and guarded
        backwards = bool(faults & {"step back", "step after restart"})
        if self.nodes == 1:
            # A node with a slow clock still takes tokens from a clock that never goes back.
            unique = not (self.forgetful and (backwards or "wild drift" in faults))
        else:
            unique = guarded and "majority restart" not in faults and not (self.forgetful and "wild drift" in faults)
        # An expired counter does not help when the clock is set back beyond the token's time.
        unique = unique and not (backwards and self.token_memory < SET_BACK)
        stuck = backwards and not (self.guard and self.prefix)
        # A client whose clock is that wrong believes that every node's clock was set, and puts the nodes in quarantine.
        suspected = self.guard and "wild drift" in faults
        # A marker has the max_ttl of a namespace. The first client that connects to a new incarnation writes it. The
        # marker of a node that is in quarantine because of its clock is written again as well.
        rewritten = self.forgetful or backwards or bool(faults & {*STEPS, "durable restart", "power cut"})
        # With a single node, or a majority without data, the setting of the odd client may be the one that remains.
        decisive = self.nodes == 1 or bool(faults & {"majority restart", "majority step"})
        disputed = "another max_ttl" in faults and self.guard and rewritten and decisive
        # A cohort's tokens are as old as its turn: they are in order only if no other client acquired the lock since.
        ordered = unique and (exclusive or not self.cohort)
        lively = not (stuck or suspected or disputed)
        clocks = {"wild drift", "drift", "slow clock forgets", STANDSTILLS, *STEPS} if self.nodes > 1 else set[str]()
        queues = not self.published and self.tries is None
        fair = queues and self.fair and not backwards and not faults & clocks
        open_ = self.guard and self.nodes > 1 and not faults & CLOSING
        return ExpectedGuarantees(
            exclusive=exclusive, ordered=ordered, unique=unique, lively=lively, queues=queues, fair=fair, stays_open=open_
        )


class Theme(NamedTuple):
    """Faults that do harm together, and that a random subset would seldom contain together."""

    faults: tuple[str, ...]
    changes: Mapping[str, Any]


_TOKENS: Final[Mapping[str, Any]] = {
    "guard": True, "fence": True, "cohort": 0, "clients": 4, "users": 1, "max_ttl": 1.0, "work": 0.1,
    "together": False, "owners": False, "every": 2.0, "fault_seconds": 30.0,
}  # fmt: skip
_QUEUE: Final[Mapping[str, Any]] = {
    "fair": True, "clients": 4, "names": ("a",), "owners": False, "together": False, "prefix": "handfast:", "tries": None,
    "think": 0.3, "work": 0.1, "every": 3.0,
}  # fmt: skip
THEMES: Final = (
    # Nodes that lose their data one after the other, while names are unused and clients disagree about the date.
    Theme(
        ("partition", "restart", "flush", "wrong wall clocks"),
        {**_TOKENS, "nodes": 3, "ttl": 0.4, "names": tuple("abcdefgh"), "think": 2.0},
    ),
    Theme(
        ("partition", "restart", "flush", "wrong wall clocks"),
        {**_TOKENS, "nodes": 3, "ttl": 1.0, "names": tuple("abcdefgh"), "think": 2.0, "every": 1.5},
    ),
    # A vote may be the last thing that a node remembers, while the others have not voted yet.
    Theme(
        ("dies with its vote", "forgets after voting"),
        {**_TOKENS, "nodes": 5, "ttl": 1.0, "names": ("a", "b"), "think": 2.0},
    ),
    # Hand-overs whose pushes are late.
    Theme(
        ("slow network", "one-way partition", "stopped client", "power cut"),
        {"nodes": 1, "guard": False, "fair": True, "clients": 4, "names": ("a",), "owners": False, "together": False},
    ),
    # The same on a quorum: waiters die, hang and give up, connections are cut, nodes restart in the middle of it.
    Theme(
        ("slow network", "reset", "stopped client", "crash", "cancel", "restart"),
        {**_QUEUE, "nodes": 3, "guard": True},
    ),
    Theme(("reset", "one-way partition", "cancel", "durable restart", "distance"), {**_QUEUE, "nodes": 5, "guard": True}),
    # Contention alone: tickets of the same time, and claims that arrive in different orders.
    Theme(("distance",), {**_QUEUE, "nodes": 3, "guard": True, "think": 0.02, "work": 0.01, "fault_seconds": 3.0}),
    Theme(("cancel",), {**_QUEUE, "nodes": 5, "guard": True, "think": 0.1, "work": 0.1, "fault_seconds": 10.0}),
    # Claims that are repeated before their replies, so that replies come after the vote was yielded.
    Theme(
        ("slow network", "distance", "stopped node"),
        {**_QUEUE, "nodes": 3, "guard": True, "ttl": 0.4, "think": 0.05, "work": 0.02, "fault_seconds": 8.0},
    ),
    # Counters that expire, and clocks that are set back.
    Theme(
        ("wrong wall clocks", "partition", "restart"),
        {**_QUEUE, "names": ("a", "b"), "fence": True, "token_memory": 1.0, "think": 2.0, "fault_seconds": 30.0},
    ),
    Theme(("step back", "wrong wall clocks", "partition"), {**_QUEUE, "names": ("a", "b"), "fence": True, "guard": True}),
    # An owner that several clients share, and nodes that get its votes back.
    Theme(
        ("partition", "slow network", "reset"),
        {**_QUEUE, "owners": True, "one_owner": True, "nodes": 3, "users": 2, "cohort": 0, "fence": True, "think": 1.0},
    ),
    # Explicit owners, in one life of a process after another.
    Theme(
        ("crash", "partition", "slow network", "cancel"),
        {**_QUEUE, "owners": True, "names": ("a",), "users": 2, "cohort": 0},
    ),
    # Renewals that are almost late.
    Theme(
        ("slow network", "partition", "reset", "stopped node"),
        {"renew": True, "work": 1.0, "think": 0.3, "max_hold": None},
    ),
    # A process that keeps a lock to itself.
    Theme(
        ("wrong wall clocks", "stopped client", "one-way partition"),
        {"nodes": 3, "guard": True, "cohort": 3, "users": 3, "owners": False, "think": 0.3, "fence": True},
    ),
    Theme(
        ("stop at a hand-over",),
        {**_QUEUE, "cohort": 3, "users": 3, "clients": 2, "ttl": 0.4, "think": 0.05, "work": 0.05, "fault_seconds": 10.0},
    ),
    # Clocks whose rates differ by the largest allowed drift, and waits of a ttl: a hand-over must allow for both.
    Theme(
        ("most drift",),
        {**_QUEUE, "clients": 3, "users": 1, "ttl": 2.0, "max_ttl": 3.0, "think": 0.1, "work": 1.5, "renew": True},
    ),
    # Counters that differ from node to node, and raises that are lost.
    Theme(
        ("lost raise", "partition", "wrong wall clocks"),
        {**_TOKENS, "nodes": 3, "ttl": 0.4, "names": ("a", "b"), "think": 0.5, "every": 1.0, "fault_seconds": 20.0},
    ),
    # Leases that are dropped without a release.
    Theme(
        ("dropped lease", "reset", "cancel", "slow network"),
        {"renew": True, "think": 0.3, "work": 0.1, "names": ("a",), "together": False},
    ),
    # Keys that other programs can share: no queues, and the waiters look again when a key changes.
    Theme(
        ("distance", "cancel", "restart"),
        {
            "prefix": "",
            "fence": False,
            "nodes": 3,
            "guard": True,
            "names": ("a",),
            "together": False,
            "tries": None,
            "clients": 4,
            "users": 1,
            "think": 0.1,
            "work": 0.1,
            "fault_seconds": 10.0,
        },
    ),
    # Extensions to a shorter ttl whose replies are late. Only an explicit owner's vote can become shorter on a node.
    Theme(
        ("extend", "slow network", "one-way partition"),
        {**_QUEUE, "owners": True, "users": 1, "cohort": 0, "renew": True, "work": 1.0, "max_ttl": 3.0, "ttl": 2.0},
    ),
)


_NEAR_AND_FAR: Final[Mapping[str, Any]] = {
    "guard": True, "max_ttl": 3.0, "think": 0.05, "work": 0.05, "every": 1.0, "max_hold": None,
}  # fmt: skip
"""Clients that read the nodes' clocks often. Q is long, so the quarantines of several standstills overlap."""
DEAD_VOTES: Final = Theme(
    ("dies with its vote", "no tracking"),
    {
        **_TOKENS, "nodes": 5, "ttl": 1.0, "names": ("a", "b"), "think": 2.0, "prefix": "handfast:", "threads": False,
    },
)  # fmt: skip
"""A vote is the last thing that a node remembers. The node refuses client tracking, so its connections survive, and the
next survey starts its quarantine before the other nodes have voted. See rare_faults.py. Without threads, because a client
that lends its connections to threads would first have to connect."""


def draw(rng: Random) -> Plan:
    """Half of all plans are drawn at random, half have a theme. A few of them become plans with standstills or dead
    votes."""
    plan = _draw(rng)
    if rng.random() >= 0.5:
        theme = rng.choice(THEMES)
        chosen = {*theme.faults, *rng.sample(plan.faults, len(plan.faults) // 3)} - BEYOND
        plan = plan._replace(**theme.changes, faults=tuple(fault for fault in FAULTS if fault in chosen))
    # Draw these last, and new ones behind them: the plans of all other seeds stay what they were.
    if rng.random() < STANDSTILL_CHANCE:
        faults = {*rng.sample(plan.faults, len(plan.faults) // 3), "distance"} - CLOSING
        plan = plan._replace(**_NEAR_AND_FAR, nodes=rng.choice((3, 3, 5, 5, 4)))
        plan = plan._replace(faults=(*(fault for fault in FAULTS if fault in faults), STANDSTILLS))
    if rng.random() < DEAD_VOTES_CHANCE:
        # Another fault that closes nodes would leave too few of them for this history.
        faults = {*rng.sample(plan.faults, len(plan.faults) // 3)} - CLOSING | {*DEAD_VOTES.faults}
        plan = plan._replace(**DEAD_VOTES.changes, faults=tuple(fault for fault in FAULTS if fault in faults))
    return plan


def _draw(rng: Random) -> Plan:
    nodes = rng.choice((1, 1, 3, 3, 3, 5, 5, 4))
    ttl = rng.choice((0.4, 1.0, 2.0))
    chance = rng.choice((0.1, 0.2, 0.4))
    faults = tuple(fault for fault in FAULTS if rng.random() < chance * (0.3 if fault in BEYOND else 1.0))
    fair = rng.random() < 0.8
    names = rng.choice((("a",), ("a",), ("a", "b"), ("a", "b", "c", "d")))
    cohort = rng.choice((0, 0, 3))
    return Plan(
        nodes=nodes,
        guard=rng.random() < (0.3 if nodes == 1 else 0.85),
        clients=rng.randint(2, 4),
        users=rng.choice((1, 1, 2)),
        # With many names some are unused for long: a node that lost its data must get their counters from others.
        names=names,
        ttl=ttl,
        max_ttl=max(ttl, rng.choice((1.0, 2.0, 3.0))),
        fence=rng.random() < 0.85,
        renew=rng.random() < 0.85,
        fair=fair,
        cohort=cohort,
        work=rng.choice((0.1, 0.5, ttl)),
        think=rng.choice((0.3, 1.0)),
        faults=faults,
        max_hold=rng.choice((None, None, None, 1.5 * ttl)),
        together=len(names) > 1 and rng.random() < 0.4,
        owners=rng.random() < 0.15,
        reentrant=rng.random() < 0.2,
        prefix="" if rng.random() < 0.1 else "handfast:",
        tries=5 if rng.random() < 0.05 else None,
        token_memory=rng.choice((7 * 86400.0, 7 * 86400.0, 1.0, 5.0)),
        threads=rng.random() < 0.3,
    )
