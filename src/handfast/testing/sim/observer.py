"""Sees everything at once, and checks what must stay true (SAFETY.md, by number).

Nobody in the simulation can ask it. It looks when a hold is granted, when a caller gets it, when something is
sent or written, and now and then in between; it uses no clock but each client's own for that client's deadlines.

Which invariants are owed depends on the faults: mutual exclusion (1, 5) only within A1-A5, order and uniqueness of tokens
(2; 3 and with it 4) wherever counters survive, see faults.py. The others always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from handfast.core.guard import period
from handfast.core.hold import HELD, LOST, RELEASED, Hold
from handfast.testing.sim.node import Node, commands_in
from handfast.testing.sim.scripts import SCRIPTS
from handfast.testing.sim.world import World

if TYPE_CHECKING:
    from handfast.testing.sim.client import Client

__all__ = ["Observer", "Owed", "Violation"]

LOSS_IS_LATE: Final = 0.05
"""Seconds after its deadline at which a hold must have been declared lost by a watchdog that was not stopped."""
ROUNDING: Final = 0.005
FOREVER: Final = float("inf")
_ONLY_HELD: Final = frozenset({"extend", "heal"})
"""Scripts that may be sent for nothing but what is held."""


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"invariant {number}: {text}")
        self.number = number


class Owed:
    """Which of the invariants that depend on the faults are owed."""

    def __init__(self, *, exclusive: bool, ordered: bool, unique: bool, lively: bool) -> None:
        self.exclusive = exclusive
        self.ordered = ordered
        self.unique = unique
        self.lively = lively


class Register:
    """A resource that checks tokens, and one that does not."""

    def __init__(self) -> None:
        self.seen = 0
        self.value = 0
        self.plain = 0
        self.stale = 0
        """Writes that the token has kept away."""
        self.lost = 0
        """Updates of the unchecked resource that were lost: what tokens are for."""


class Observer:
    """Omniscient."""

    def __init__(self, world: World, owed: Owed) -> None:
        self.world = world
        self.owed = owed
        self.nodes: list[Node] = []
        self.registers: dict[str, Register] = {}
        self.tokens: dict[str, dict[int, bytes]] = {}
        """By name: all tokens that callers were given, and to which owner."""
        self.largest: dict[str, int] = {}
        self.granted_holds = 0
        self.given = 0
        self.lost = 0
        self._now_held: dict[str, dict[Hold, Client]] = {}
        self._by_owner: dict[bytes, list[Hold]] = {}
        self._final: dict[Hold, str] = {}
        self._votes: dict[tuple[int, bytes], float] = {}
        """By node and owner: how long before its vote the node had lost its data."""

    def complain(self, number: int, text: str) -> None:
        self.world.note("VIOLATION", number, text)
        raise Violation(number, text)

    def register(self, name: str) -> Register:
        found = self.registers.get(name)
        if found is None:
            found = self.registers[name] = Register()
        return found

    # -- holds -----------------------------------------------------------------------------------------------------

    @staticmethod
    def valid(client: Client, hold: Hold) -> bool:
        """It says of itself that it is valid."""
        return hold.state == HELD and client.clock.now() < hold.deadline

    def granted(self, client: Client, hold: Hold) -> None:
        """The core has made a hold, or passed one on."""
        self.granted_holds += 1
        self.world.note("granted", client.name, hold.name, hold.owner, hold.token, round(hold.deadline, 6), hold.votes)
        holds = self._now_held.setdefault(hold.name, {})
        if hold not in holds:
            if client.clock.now() >= hold.deadline:
                self.complain(6, f"{hold.name} was granted to {hold.owner!r} after its deadline")
            holds[hold] = client
            self._by_owner.setdefault(hold.owner, []).append(hold)
            self._no_two_valid(hold.name)
            if client.group.guard and not hold.passes:
                self._no_young_votes(client, hold)
        self._held_on_a_majority(client, hold)

    def _no_two_valid(self, name: str) -> None:
        if not self.owed.exclusive:
            return
        valid = [hold for hold, client in self._now_held[name].items() if self.valid(client, hold)]
        if len(valid) > 1:
            who = ", ".join(f"{h.owner.decode()} (token {h.token})" for h in valid)
            self.complain(1, f"{name} is held by {who} at the same time")

    def _no_young_votes(self, client: Client, hold: Hold) -> None:
        # Q is counted on other clocks than the world's.
        least = period(client.group) * (1 - 2 * client.group.policy.drift) - ROUNDING
        if not self.owed.exclusive:
            return
        for node in self.nodes:
            age = self._votes.get((node.index, hold.owner), FOREVER)
            if hold.votes >> node.index & 1 and age < least:
                self.complain(10, f"{hold.name}: counted a vote of n{node.index}, which had forgotten {age:.3f} s before")

    def _held_on_a_majority(self, client: Client, hold: Hold) -> None:
        if not (self.owed.exclusive and self.valid(client, hold)):
            return
        group = client.group
        # A node that has forgotten and may vote for nobody before this one is over is as good as one that holds it.
        on = [
            node.index
            for node in self.nodes
            if node.shows(hold.key) == hold.owner or (group.guard and not node.may_vote(group.marker_key))
        ]
        if len(on) < group.need:
            self.complain(5, f"{hold.name} is valid for {hold.owner!r} for another "
                          f"{hold.deadline - client.clock.now():.3f} s, and is held on nodes {on} only")  # fmt: skip

    def voted(self, node: Node, owner: bytes) -> None:
        """A node was asked for its vote."""
        self._votes[node.index, owner] = self.world.now - node.forgot_at

    def returned(self, client: Client, hold: Hold, floor: int) -> None:
        """A caller was given it; `floor` is what `largest` was when it began to ask."""
        self.given += 1
        self.world.note("returned", client.name, hold.name, hold.token)
        if hold.token:
            known = self.tokens.setdefault(hold.name, {})
            if hold.token <= floor and self.owed.ordered:
                self.complain(2, f"{hold.name}: token {hold.token} after {floor} was returned")
            if hold.token in known and self.owed.unique:
                self.complain(3, f"{hold.name}: token {hold.token} for {hold.owner!r} and {known[hold.token]!r}")
            known[hold.token] = hold.owner
            self.largest[hold.name] = max(hold.token, self.largest.get(hold.name, 0))

    def began(self, name: str) -> int:
        return self.largest.get(name, 0)

    # -- the wire --------------------------------------------------------------------------------------------------

    def told(self, client: Client, node: int, data: bytes, again: bool) -> None:
        """A client is sending something; `again`: for an exchange that began before."""
        self.world.note("sends", client.name, node, data if len(data) < 1500 else len(data))
        if again or b"EVALSHA" not in data:
            return
        for words in commands_in(data):
            if words[0] == b"EVALSHA" and SCRIPTS[words[1]][0] in _ONLY_HELD:
                owner = words[3 + int(words[2])]
                holds = self._by_owner.get(owner, ())
                if holds and all(hold.state in (LOST, RELEASED) for hold in holds):
                    what = SCRIPTS[words[1]][0]
                    self.complain(7, f"{client.name} sends {what} for {owner!r}, which is {holds[-1].state}")

    # -- resources -------------------------------------------------------------------------------------------------

    def read(self, hold: Hold) -> tuple[int, int] | None:
        """Both resources' values; None if a larger token was seen."""
        register = self.register(hold.name)
        if hold.token < register.seen:
            register.stale += 1
            return None
        # Reading under a token claims it too: else one who reads before us could still write after us.
        register.seen = hold.token
        return register.value, register.plain

    def write(self, hold: Hold, value: int) -> None:
        register = self.register(hold.name)
        if hold.token < register.seen:
            register.stale += 1
            return
        if self.owed.unique and hold.token and register.value + 1 != value:
            self.complain(4, f"{hold.name}: token {hold.token} writes {value} over {register.value}: an update is lost")
        register.seen = hold.token
        register.value = value

    def write_plain(self, client: Client, hold: Hold, value: int, *, at_once: bool) -> None:
        """`at_once`: the lease was looked at in the same moment, so only a broken exclusion can lose an update."""
        register = self.register(hold.name)
        if register.plain + 1 != value:
            register.lost += 1
            if at_once and self.owed.exclusive:
                self.complain(1, f"{hold.name}: an update of a resource without tokens is lost, {hold.owner!r} was valid")
        register.plain = value

    # -- now and then ----------------------------------------------------------------------------------------------

    def audit(self) -> None:
        for name, holds in self._now_held.items():
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
                self.complain(7, f"{hold.name} of {hold.owner!r} was {state} and is {hold.state}")
        if len(self._final) > 100:
            for hold in list(self._final)[:50]:
                del self._final[hold]

    def _lost_in_time(self, client: Client, hold: Hold) -> None:
        dog = client.dog.actor
        if hold.state != HELD or dog.stopped or self.world.now - dog.went_on < LOSS_IS_LATE:
            return
        late = client.clock.now() - hold.deadline
        if late > LOSS_IS_LATE:
            self.complain(6, f"{hold.name} of {hold.owner!r} ended {late:.3f} s ago, and nobody was told")

    def at_rest(self, clients: list[Client]) -> None:
        """Nobody wants anything any more, and every ttl is over."""
        for node in self.nodes:
            for key in list(node.data):
                owner = node.shows(key)
                if key.endswith(b"}") and owner is not None and self.owed.lively:
                    self.complain(9, f"n{node.index} still has {key!r} of {owner!r}")
        for client in clients:
            if not self.owed.lively:
                continue
            if client.lines.by_keys:
                self.complain(13, f"{client.name}: somebody still stands in the line of {list(client.lines.by_keys)}")
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
        }
