"""Sees the whole simulation and checks the invariants, by number.

No simulated process can read it. It checks when a hold is granted, when a caller gets it, when something is sent or
written, and periodically. For a client's deadlines it uses that client's own clock.

Which invariants are guaranteed depends on the faults: mutual exclusion (1, 5) only within A1-A5, order and uniqueness of
tokens (2; 3 and with it 4) wherever counters survive, see plan.py. The others always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from handfast.core.guard import MARGIN
from handfast.core.hold import HELD, LOST, RELEASED, RELEASING, Hold
from handfast.core.local_queue import Acquisition
from handfast.protocol.commands import NO_GENERATION, Identity
from sim.ledger import Acquirer, Ledger, acquirer
from sim.net import TcpConnection
from sim.node import Node
from sim.queue_checks import QueueChecks
from sim.register import Register
from sim.world import World

if TYPE_CHECKING:
    from sim.client import Client

__all__ = ["INVARIANTS", "Observer", "ExpectedGuarantees", "Violation"]

INVARIANTS: Final = {
    1: ("validity intervals of one name never overlap", ("observer._no_two_valid", "observer.write_plain")),
    2: ("tokens are in order", ("observer.returned",)),
    3: ("tokens are unique per name", ("observer.returned",)),
    4: ("no update of a fenced register is lost", ("observer.write",)),
    5: ("a hold that is valid is held on M nodes until its deadline", ("observer._held_on_a_majority",)),
    6: (
        "no hold is valid after its deadline, and its loss is reported",
        ("observer.granted", "observer.renewed", "observer._lost_in_time"),
    ),
    7: ("LOST and RELEASED are final, and nothing is sent for such a hold", ("observer.audit", "ledger._still_held")),
    8: ("no acquisition changes the key of another", ("store._check",)),
    9: ("a failed or cancelled acquisition leaves nothing behind", ("ledger._check", "observer.at_rest")),
    10: ("no vote from an incarnation younger than Q", ("observer._no_young_votes",)),
    11: (
        "a waiter gets the lock in time",
        (
            "user._failed",
            "observer._majority_votes",
            "observer._free_lock_is_taken",
            "observer._handed_over_hold_is_taken",
            "queue_checks.handed_over",
        ),
    ),
    12: ("counters never fall within an incarnation", ("store._set",)),
    13: ("no task and no waiter is left", ("observer.at_rest",)),
    16: ("no waiter is overtaken by many later claims while a majority knows of it", ("queue_checks.overtakes",)),
    17: ("votes that are split among waiters soon go to one of them", ("queue_checks.splits_end",)),
    18: ("a lease is valid when the caller gets it", ("observer.returned",)),
}
"""By number: the invariant, and where it is checked. `World.digest` serves 14, that a seed is one history."""

LOSS_IS_LATE: Final = 0.05
"""Seconds after its deadline within which a running watchdog declares a hold lost."""
ROUNDING: Final = 0.005
FREE_TOO_LONG: Final = 0.6
"""Seconds for which a lock with waiters may be free while there is no fault: twice the longest pause."""
FOREVER: Final = float("inf")


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


class ExpectedGuarantees:
    """Which of the invariants that depend on the faults are guaranteed."""

    def __init__(
        self, *, exclusive: bool, ordered: bool, unique: bool, lively: bool, queues: bool, fair: bool, stays_open: bool
    ) -> None:
        self.exclusive = exclusive
        self.ordered = ordered
        self.unique = unique
        self.lively = lively
        self.queues = queues
        """Waiters queue on the servers."""
        self.fair = fair
        self.stays_open = stays_open
        """No fault gives a reason to put a majority of nodes in quarantine."""


class Observer:
    """Checks all invariants."""

    def __init__(self, world: World, expected_guarantees: ExpectedGuarantees) -> None:
        self.world = world
        self.expected_guarantees = expected_guarantees
        self.nodes: list[Node] = []
        self.clients: list[Client] = []
        self.quiet: Callable[[], bool] = lambda: False
        """There has been no fault for a while."""
        self.registers: dict[str, Register] = {}
        self.tokens: dict[str, dict[int, bytes]] = {}
        """By name: all tokens that callers got, with their owners."""
        self.largest: dict[str, int] = {}
        self.given = 0
        self.lost = 0
        self.now_held: dict[str, dict[Hold, Client]] = {}
        """By name: the holds whose holders take them for valid."""
        self._holds: dict[Acquirer, list[Hold]] = {}
        self._final: dict[Hold, str] = {}
        self._passed: dict[Hold, None] = {}
        """Holds whose deadline has passed."""
        self._votes: dict[tuple[int, bytes, bytes], list[tuple[float, float]]] = {}
        """By node, key and owner: when it voted, and how long before that it had lost its data."""
        self._joined: dict[Acquirer, None] = {}
        """Acquisitions of several names that took one name after the other."""
        self._open = False
        """A majority of nodes has voted."""
        self._free_since: dict[tuple[Client, Any], float] = {}
        self._given_since: dict[Hold, float] = {}
        self.granted_at: dict[bytes, float] = {}
        """By key: when it was last granted."""
        self.queues = QueueChecks(self)
        self.ledger = Ledger(world, self.complain, self._holds)
        self.handed_over = self.queues.handed_over

    def complain(self, number: int, text: str) -> None:
        self.world.note("VIOLATION", number, text)
        raise Violation(number, text)

    # -- holds -----------------------------------------------------------------------------------------------------

    @staticmethod
    def valid(client: Client, hold: Hold) -> bool:
        """The holder takes the hold for valid."""
        return hold.state == HELD and client.clock.now() < hold.deadline

    def granted(self, client: Client, hold: Hold) -> None:
        """The core has made a hold, or handed one over."""
        self.world.note("granted", client.name, hold.name, hold.who.id, hold.token, round(hold.deadline, 6), hold.votes)
        if hold not in self.now_held.setdefault(hold.names[0], {}):
            if client.clock.now() >= hold.deadline:
                self.complain(6, f"{hold.name} was granted to {hold.who.owner!r} after its deadline")
            self._holds.setdefault(acquirer(hold.who), []).append(hold)
            self.granted_at.update(dict.fromkeys(hold.keys, self.world.now))
            for name in hold.names:
                self.now_held.setdefault(name, {})[hold] = client
                self._no_two_valid(name)
            # A hold of several names that were taken one by one: each part was checked when it was granted.
            if not hold.handovers and acquirer(hold.who) not in self._joined:
                self._no_young_votes(client, hold)
        self._held_on_a_majority(client, hold)

    def gone(self, client: Client) -> None:
        """A process has died: its leases have no holder any more."""
        for holds in self.now_held.values():
            for hold in [hold for hold, holder in holds.items() if holder is client]:
                del holds[hold]
        self.ledger.gone(client)

    def _no_two_valid(self, name: str) -> None:
        if not self.expected_guarantees.exclusive:
            return
        valid = [hold for hold, client in self.now_held[name].items() if self.valid(client, hold)]
        if len({hold.who.owner for hold in valid}) > 1 or (len(valid) > 1 and not all(h.explicit_owner for h in valid)):
            who = ", ".join(f"{h.who.owner.decode()} (token {h.token})" for h in valid)
            self.complain(1, f"{name} is held by {who} at the same time")

    def granted_part(self, client: Client, hold: Hold) -> None:
        """One of several names was granted, and the acquisition waits for the others."""
        self._joined[acquirer(hold.who)] = None
        self._no_young_votes(client, hold)

    def _no_young_votes(self, client: Client, hold: Hold) -> None:
        policy = client.group.policy
        if not self.expected_guarantees.exclusive or not client.group.guard:
            return
        # The processes count Q on other clocks than the world's.
        least = (policy.max_ttl * (1 + 2 * policy.drift) + MARGIN) * (1 - 2 * policy.drift) - ROUNDING
        for index in range(len(self.nodes)):
            for key in hold.keys if hold.votes >> index & 1 else ():
                votes = self._votes.get((index, key, hold.who.owner), [])
                # A vote counts until its ttl ends, even if the node has lost its data since.
                age = max((age for when, age in votes if when > self.world.now - 2 * hold.ttl), default=FOREVER)
                if age < least:
                    self.complain(
                        10, f"{hold.name}: counts a vote of n{index}, which had lost its data {age:.3f} s before"
                    )

    def _held_on_a_majority(self, client: Client, hold: Hold) -> None:
        """Each name is held on a majority. If the names were taken one by one, their majorities may differ."""
        if not (self.expected_guarantees.exclusive and self.valid(client, hold)):
            return
        group, until = client.group, client.clock.when(hold.deadline)
        # A node that has lost its data, and may not vote before this hold ends, counts like one that holds it.
        closed = {node.index for node in self.nodes if group.guard and not node.may_vote(group.marker_key)}
        for key in hold.keys:
            on = closed | {node.index for node in self.nodes if self._keeps(node, key, hold.who, until)}
            if len(on) < group.need:
                left, owner = hold.deadline - client.clock.now(), hold.who.owner
                self.complain(
                    5, f"{key!r} is valid for {owner!r} for another {left:.3f} s, but held for so long on {sorted(on)}"
                )

    @staticmethod
    def _keeps(node: Node, key: bytes, who: Identity, until: float) -> bool:
        """The node has this vote and will keep it until `until`."""
        if node.shows(key) != who.owner or node.keeps(key) < until:
            return False
        if who.generation == NO_GENERATION:
            return True
        end = node.table(key + b":g").get(who.generation)
        return end is not None and node.clock.when((int(end) + 1) / 1000) >= until

    def renews(self, client: Client, hold: Hold) -> None:
        """A renewal begins: the hold ends at its present deadline, unless it is confirmed by that time."""
        self.world.at(client.clock.when(hold.deadline), self._deadline_passes, client, hold, hold.deadline)

    def _deadline_passes(self, client: Client, hold: Hold, deadline: float) -> None:
        if client.clock.now() < deadline:  # the clock stood still meanwhile
            self.world.at(client.clock.when(deadline), self._deadline_passes, client, hold, deadline)
        elif hold.deadline <= deadline:
            self._passed[hold] = None

    def renewed(self, client: Client, hold: Hold) -> None:
        """A renewal has ended."""
        if hold in self._passed and self.valid(client, hold):
            self.complain(6, f"{hold.name} of {hold.who.owner!r} was over at its deadline, and is valid again")

    def voted(self, node: Node, key: bytes, owner: bytes) -> None:
        """A node has voted for an owner, or has handed its vote over to it."""
        votes = self._votes.setdefault((node.index, key, owner), [])
        votes.append((self.world.now, self.world.now - node.forgot_at))
        self.queues.has_its_turn(owner)

    def began(self, names: Iterable[str]) -> dict[str, int]:
        """An acquisition that begins now must get larger tokens than these."""
        return {name: self.largest.get(name, 0) for name in names}

    def failed(self, acquisition: Acquisition) -> None:
        """An acquisition has ended in an exception."""
        if acquisition.who is not None:
            self.ledger.fails(acquirer(acquisition.who))

    def returned(self, client: Client, hold: Hold, floors: dict[str, int], asked: float) -> None:
        """A caller got a hold. `floors` is the result of `began` at the time `asked`."""
        self.given += 1
        self.world.note("returned", client.name, hold.name, hold.token)
        if not self.valid(client, hold):
            self.complain(18, f"{hold.name}: {client.name} got a lease that is {hold.state} and over")
        if not hold.handovers and not hold.explicit_owner:
            self.queues.overtakes(client, hold, asked)
        if not hold.token:
            return
        for name in hold.names:
            known, floor = self.tokens.setdefault(name, {}), floors.get(name, 0)
            again = hold.explicit_owner and known.get(hold.token) == hold.who.owner  # a re-entry keeps its token
            if again and hold.token < floor and known.get(floor) == hold.who.owner and self.expected_guarantees.ordered:
                self.complain(2, f"{name}: token {hold.token} for {hold.who.owner!r}, which had {floor} before")
            if hold.token <= floor and self.expected_guarantees.ordered and not again:
                self.complain(2, f"{name}: token {hold.token} after {floor} was returned")
            if hold.token in known and self.expected_guarantees.unique and not again:
                self.complain(3, f"{name}: token {hold.token} for {hold.who.owner!r} and {known[hold.token]!r}")
            known[hold.token] = hold.who.owner
            self.largest[name] = max(hold.token, self.largest.get(name, 0))

    # -- the wire --------------------------------------------------------------------------------------------------

    def on_write(self, client: Client, tcp: TcpConnection, node: int, data: bytes, again: bool) -> None:
        """A client writes something; `again`: for a request that began before."""
        self.world.note("sends", client.name, node, data if len(data) < 1500 else len(data))
        self.ledger.on_write(client, tcp, node, data, again)

    # -- resources -------------------------------------------------------------------------------------------------

    def register(self, name: str) -> Register:
        found = self.registers.get(name)
        if found is None:
            found = self.registers[name] = Register()
        return found

    def read(self, hold: Hold) -> tuple[int, int] | None:
        """Both resources' values; None if a larger token was seen."""
        return self.register(hold.names[0]).read(hold.token)

    def write(self, hold: Hold, value: int) -> None:
        lost = self.register(hold.names[0]).write(hold.token, value)
        if lost and self.expected_guarantees.unique and hold.token:
            self.complain(4, f"{hold.name}: token {hold.token} writes {value}: an update is lost")

    def write_plain(self, hold: Hold, value: int, *, at_once: bool) -> None:
        """`at_once`: users check their leases right before they write, so only broken exclusion loses an update."""
        if self.register(hold.names[0]).write_plain(value) and at_once and self.expected_guarantees.exclusive:
            self.complain(1, f"{hold.name}: an update of a resource without tokens is lost, {hold.who.owner!r} was valid")

    # -- now and then ----------------------------------------------------------------------------------------------

    def audit(self) -> None:
        for name, holds in self.now_held.items():
            self._no_two_valid(name)
            for hold, client in list(holds.items()):
                self._held_on_a_majority(client, hold)
                self._lost_in_time(client, hold)
                if hold.state in (LOST, RELEASED):
                    self._final[hold] = hold.state
                    del holds[hold]
                    self.lost += hold.state == LOST
        for hold, state in self._final.items():
            if hold.state != state:
                self.complain(7, f"{hold.name} of {hold.who.owner!r} was {state} and is {hold.state}")
        if len(self._final) > 100:
            for hold in list(self._final)[:50]:
                del self._final[hold]
        self.ledger.audit()
        self.queues.note_waiters()
        if self.expected_guarantees.stays_open:
            self._majority_votes()
        if self.expected_guarantees.lively and self.quiet():
            self._free_lock_is_taken()
            self._handed_over_hold_is_taken()
            self.queues.splits_end()
        else:
            self._free_since.clear()
            self.queues.forget_splits()

    def _majority_votes(self) -> None:
        """No client has put a majority of nodes in quarantine, so no other client is stopped."""
        group = self.clients[0].group
        votes = [node.index for node in self.nodes if node.may_vote(group.marker_key)]
        if self._open and len(votes) < group.need:
            self.complain(11, f"only {votes} of {group.n} nodes may vote, and none has lost its data")
        self._open = len(votes) >= group.need

    def _handed_over_hold_is_taken(self) -> None:
        """A waiter soon takes the hold that a sibling has handed over to it."""
        heads = [
            queue.head for client in self.clients if not client.actor.stopped for queue in client.queues.by_key.values()
        ]
        given = [head.given for head in heads if head is not None and head.given is not None]
        self._given_since = {hold: self._given_since.get(hold, self.world.now) for hold in given}
        for hold, since in self._given_since.items():
            if self.world.now - since > FREE_TOO_LONG:
                self.complain(
                    11, f"{hold.name} was handed over inside a process at {since:.2f} s, and its waiter has not taken it"
                )

    def _free_lock_is_taken(self) -> None:
        """A lock with waiters is not free for long."""
        for waited in [each for each in self._free_since if each[1] not in each[0].queues.by_key]:
            del self._free_since[waited]  # it has no waiters any more
        for client in self.clients:
            for keys in list(client.queues.by_key):
                group = client.group
                free = sum(1 for node in self.voters(client) if all(node.shows(key) is None for key in keys))
                if free < group.need or client.actor.stopped:
                    self._free_since.pop((client, keys), None)
                    continue
                # A lock that was granted and released between two checks was not free all the time.
                granted = max(self.granted_at.get(key, 0.0) for key in keys)
                since = max(granted, self._free_since.setdefault((client, keys), self.world.now))
                if self.world.now - since > FREE_TOO_LONG:
                    self.complain(11, f"{keys!r} has been free since {since:.2f} s, and {client.name} waits for it")

    def voters(self, client: Client) -> list[Node]:
        """The nodes whose votes count for this client. A node whose clock it saw step forward is soon in quarantine."""
        group = client.group
        return [
            node
            for node in self.nodes
            if not group.guard or (node.may_vote(group.marker_key) and node.index not in group.suspects)
        ]

    def _lost_in_time(self, client: Client, hold: Hold) -> None:
        dog = client.dog.actor
        if hold.state != HELD or dog.stopped or self.world.now - dog.went_on < LOSS_IS_LATE:
            return
        late = client.clock.now() - hold.deadline
        if late > LOSS_IS_LATE:
            self.complain(6, f"{hold.name} of {hold.who.owner!r} ended {late:.3f} s ago, and its loss was not reported")

    def at_rest(self) -> None:
        """All users have finished, and every ttl is over."""
        if not self.expected_guarantees.lively:
            return
        for node in self.nodes:
            for key, owner in node.held():
                self.complain(9, f"n{node.index} still has {key!r} of {owner!r}")
        for name, holds in self.now_held.items():
            for hold in holds:
                if hold.state == RELEASING:
                    self.complain(13, f"{name} is still being released by {hold.who.owner!r}")
        for client in self.clients:
            if client.queues.by_key:
                self.complain(13, f"{client.name}: a waiter is left in the queue of {list(client.queues.by_key)}")
            for task in client.tasks:
                if not task.over:
                    self.complain(13, f"{client.name}: {task} has not ended")

    def sums(self) -> dict[str, Any]:
        registers = self.registers.values()
        return {
            "given": self.given,
            "lost": self.lost,
            "stale": sum(each.stale for each in registers),
            "unfenced updates lost": sum(each.lost for each in registers),
            "overtaken": self.queues.most_overtaken,
        }
