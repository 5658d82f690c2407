"""The nodes that one client votes with, and what is known of each.

All connections that a client has to a node share one `Node`, in whatever thread. Every field is replaced whole and never
changed in place, so readers need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from handfast.core.io import Fault
from handfast.core.votes import majority
from handfast.options import Policy
from handfast.protocol import keys

if TYPE_CHECKING:
    from handfast.core.hold import Hold

__all__ = ["NOT_CONNECTED", "ClockStep", "Node", "NodeGroup", "Observer"]

NOT_CONNECTED: Final = Fault("closed", "did not answer the connection in time")
"""Before the first connection is made."""


class ClockStep(NamedTuple):
    """A step of a node's clock against ours, in seconds: at least and at most so far, between these times of ours."""

    least: float
    most: float
    after: float
    before: float

    def may_be(self, amount: float, moment: float) -> bool:
        return self.least <= amount <= self.most and self.after <= moment <= self.before


class Node:
    """One server, as this client knows it."""

    __slots__ = (
        "clock",
        "eviction",
        "fault",
        "floor",
        "incarnation",
        "index",
        "label",
        "ladder",
        "marker",
        "no_push",
        "opens_at",
        "other_max_ttl",
        "run_id",
        "step",
        "tracks",
        "waiting",
    )

    def __init__(self, index: int, label: str) -> None:
        self.index = index
        self.label = label
        """Its address, without secrets, as errors and `lease.votes` show it."""
        self.fault: Fault | None = NOT_CONNECTED
        """Why the last connection to it failed or ended; None once there is one."""
        self.ladder = ""
        """How it compares and deletes: 'delifeq' (Valkey), 'delex' (Redis 8.4) or '' (a script)."""
        self.run_id = ""
        """Which process it is; empty if it does not tell."""
        self.eviction: dict[str, str] = {}
        """By run_id: its maxmemory-policy, as far as it was told. In a cluster many processes are one node."""
        self.no_push: Fault | None = None
        """Why it cannot push messages, so that nobody can queue there: RESP2 only, or no rights on channels."""
        self.tracks = True
        """It tells its clients when keys that they have read change (client tracking)."""
        self.incarnation = b""
        """run_id and last promotion: another value means that it may have forgotten."""
        self.marker = b""
        """The guard marker that it must show with each vote; empty while it may not vote."""
        self.opens_at = 0.0
        """The end of its quarantine on the local clock."""
        self.waiting = b""
        """The marker whose quarantine `opens_at` is the end of."""
        self.other_max_ttl = 0
        """The max_ttl in its marker, in ms, where that is not this client's; 0 where it is."""
        self.floor = b"0"
        """Lower bound for fence counters that it may have forgotten."""
        self.clock: tuple[float, float, float] | None = None
        """Bounds on (server time minus local time) and when they were taken. A step of its clock shows against them."""
        self.step: ClockStep | None = None
        """The last step that its clock has made against ours, as far as is known: see clocks.py."""


class Observer(Protocol):
    """Told of what happens to nodes and holds: in any thread, and perhaps more than once."""

    def node_down(self, address: str, fault: Fault) -> None:
        """A connection could not be made, or failed while a request was under way."""

    def node_up(self, address: str, run_id: str) -> None:
        """A connection was made. A restart changes the run_id; it is empty where the server does not tell it."""

    def vote_changed(self, node: Node) -> None:
        """Its marker was read: `marker` and `opens_at` tell whether it may vote."""

    def ended_early(self, hold: Hold) -> None:
        """A hold was lost or revoked."""

    def abandoned(self, hold: Hold) -> None:
        """The watchdog releases a lease that nobody can release any more. Told in the watchdog's thread: the lease may
        have been collected in the middle of anything."""

    def renewal_ended(self, holds: Sequence[Hold], seconds: float) -> None:
        """A round of renewals has ended: each hold is confirmed, retrying or lost."""


class NodeGroup:
    """N independent nodes of which a majority decides."""

    def __init__(self, labels: Sequence[str], policy: Policy, *, guard: bool, clustered: bool = False) -> None:
        self.nodes = [Node(i, label) for i, label in enumerate(labels)]
        self.n = len(self.nodes)
        self.need = majority(self.n)
        self.policy = policy
        self.guard = guard
        self.clustered = clustered
        """Names move between the servers of what is one node to us. A push from such a server proves nothing: the server
        counts only its own listeners, and its message may reach a listener elsewhere."""
        self.unguarded_single = self.n == 1 and not guard
        """Nothing has to be known about the node beforehand."""
        self.quorum_can_vote = not guard
        """Nothing is misconfigured and a majority may vote, as far as is known."""
        self.max_ttl_ms = round(policy.max_ttl * 1000)
        self.marker_key = keys.guard_key(policy.prefix)
        self.mark_key = keys.mark_key(policy.prefix)
        """The namespace's high-water mark: the largest token that this node has voted for."""
        self.channel_prefix = keys.channel_prefix(policy.prefix)
        self.seen_token = 0
        """The largest token seen by this client: its next proposal is above it."""
        self.suspects: frozenset[int] = frozenset()
        """Nodes whose clock stepped forward, to be put in quarantine."""
        self.standstills = 0
        """How often our own clock was found to have stood still: no deadline from before that is good."""
        self.on_standstill: Callable[[], None] | None = None
        """Told of it, in the thread that notices: the holds of this client are lost."""
        self.has_token_floors = False
        """Some node has a floor for its counters, so each gets its own payload."""
        self.all_nodes_vote = not guard
        """Every node may vote, as far as is known."""
        self.observer: Observer | None = None
        self.bootstrap_call = "handfast.bootstrap(client)"
        """How the caller opens a new deployment."""

    def set_marker(self, node: Node, marker: bytes, floor: bytes = b"0") -> None:
        """What the node must show with each vote; empty: it may not vote."""
        # The floor first: a reader of the marker must find the floor that belongs to it.
        node.floor = floor
        node.marker = marker
        self.has_token_floors = any(each.floor != b"0" for each in self.nodes)
        self.all_nodes_vote = not self.guard or all(each.marker for each in self.nodes)
        self._judge()
        if self.observer is not None:
            self.observer.vote_changed(node)

    def _judge(self) -> None:
        able = self.config_error() is None and self.voters() >= self.need
        self.quorum_can_vote = self.unguarded_single or able

    def connected(self, index: int) -> None:
        """A connection was made: what the node said of itself is in its fields."""
        self.nodes[index].fault = None
        self._judge()

    def failed(self, index: int, fault: Fault) -> None:
        """A connection failed or ended."""
        self.nodes[index].fault = fault
        self._judge()

    def config_error(self) -> str | None:
        """What somebody has to put right before any vote can be trusted."""
        for node in self.nodes:
            if node.fault is not None and node.fault.kind == "config":
                return f"{node.label}: {node.fault.text}"
        odd = [node for node in self.nodes if node.other_max_ttl]
        # While those that agree with us can be a majority, theirs is the setting that stands: see guard.repair.
        if self.n - len(odd) < self.need:
            return f"{odd[0].label}: {self._disagreement(odd[0])}"
        return None

    def _disagreement(self, node: Node) -> str:
        return (
            f"this namespace was set up with max_ttl={node.other_max_ttl / 1000:g}, this client has "
            f"max_ttl={self.max_ttl_ms / 1000:g}; all clients of a namespace must have the same"
        )

    def closed(self, node: Node, now: float) -> Fault | None:
        """Why a guarded node may not vote now, or None."""
        if node.marker or not self.guard:
            return None
        if node.fault is not None or not node.incarnation:
            return node.fault or NOT_CONNECTED
        if node.other_max_ttl:
            return Fault("max_ttl", self._disagreement(node))
        left = node.opens_at - now
        if left > 0:
            return Fault("quarantine", f"restarted or new, no vote for another {left:.1f} s")
        return Fault("quarantine", "restarted, waiting for enough other nodes to restore its token counters from")

    def repair_due(self, now: float) -> bool:
        """Some connected node does not vote as far as is known here, and its quarantine is over."""
        if self.all_nodes_vote:
            return False
        return any(
            not node.marker and node.fault is None and node.incarnation and now >= node.opens_at for node in self.nodes
        )

    def suspect(self, index: int) -> None:
        """A node's clock stepped forward: what it held may have ended early, so it must not vote."""
        self.set_marker(self.nodes[index], b"")
        self.suspects |= {index}

    def cleared(self, index: int) -> None:
        """Its marker was written anew, and says all there is to say."""
        self.suspects -= {index}

    def stood_still(self) -> None:
        """Our own clock was found to have stood still."""
        self.standstills += 1  # first: a hold that is made meanwhile is compared with this
        if self.on_standstill is not None:
            self.on_standstill()

    def voters(self) -> int:
        """How many nodes may vote, as far as is known."""
        return sum(1 for node in self.nodes if node.marker) if self.guard else self.n

    def proposal(self, wall: int) -> int:
        """A token to propose: above all that this client has seen, near wall time so that strangers agree at once.

        A clock set absurdly far ahead is not followed: it would use up the space below 2^53.
        """
        token = max(wall if wall < 1 << 52 else 0, self.seen_token + 1)
        self.seen_token = token
        return token
