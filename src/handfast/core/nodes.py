"""The nodes of one client, and the state of each.

All connections of a client to one server share one `Node`, in whatever thread. Every field is replaced whole and never
changed in place, so readers need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from handfast.core.io import Check, Fault
from handfast.core.votes import majority
from handfast.options import Policy
from handfast.protocol import keys

if TYPE_CHECKING:
    from handfast.core.hold import Hold

__all__ = ["NOT_CONNECTED", "ClockStep", "Node", "NodeGroup", "Observer"]

NOT_CONNECTED: Final = Fault("closed", "did not answer the connection in time")
"""The fault of a node before its first connection."""


class ClockStep(NamedTuple):
    """A step of a node's clock against this machine's: between `least` and `most` seconds, between the times `after` and
    `before` of this machine. Earlier steps since `since`, which were hidden by slow round trips, may have added to it."""

    least: float
    most: float
    after: float
    before: float
    since: float

    def may_be(self, amount: float, moment: float) -> bool:
        return self.least <= amount <= self.most and self.after <= moment <= self.before

    def is_within(self, seconds: float) -> bool:
        """Whether the clock stepped at most so long before the step was noticed."""
        return self.before - self.since <= seconds


class Node:
    """One server, as this client knows it."""

    __slots__ = (
        "clock",
        "deletes_by",
        "eviction",
        "fault",
        "incarnation",
        "index",
        "label",
        "marker",
        "marker_changed_at",
        "no_push",
        "opens_at",
        "other_max_ttl",
        "quarantined_until",
        "run_id",
        "step",
        "tracks",
        "waiting",
    )

    def __init__(self, index: int, label: str) -> None:
        self.index = index
        self.label = label
        """The node's address without secrets, as errors and `lease.votes` show it."""
        self.fault: Fault | None = NOT_CONNECTED
        """Why the last connection failed or ended; None while connected."""
        self.deletes_by = ""
        """How the node compares and deletes: 'delifeq' (Valkey), 'delex' (Redis 8.4) or '' (a script)."""
        self.run_id = ""
        """The id of the server's process; empty if the server does not tell it."""
        self.eviction: dict[str, str] = {}
        """The last known maxmemory-policy of each run_id. In a cluster several processes are one node."""
        self.no_push: Fault | None = None
        """Why the node cannot push, so that no waiter can queue there: RESP2 only, or no rights on channels."""
        self.tracks = True
        """The node supports client tracking: it tells its clients when keys that they have read change."""
        self.incarnation = b""
        """The run_id and the last promotion. Another value means that the node may have lost data."""
        self.marker = b""
        """The guard's marker, which the node must show with each vote; empty while it may not vote."""
        self.marker_changed_at = float("-inf")
        """When this client last sent a change of the marker."""
        self.opens_at = 0.0
        """The end of the node's quarantine on the local clock."""
        self.waiting = b""
        """The marker to whose quarantine `opens_at` belongs."""
        self.other_max_ttl = 0
        """The max_ttl in the node's marker, in ms; 0 if it equals this client's."""
        self.clock: tuple[float, float, float, float, float] | None = None
        """(low, high, limit, read_at, since). low, high: the bounds on server time minus local time, by the reading at
        `read_at`. limit: an upper bound by the reading at `since`, valid unless a clock has stepped since."""
        self.step: ClockStep | None = None
        """The last known step of the node's clock against this machine's: see clocks.py."""
        self.quarantined_until = 0.0
        """The end, on the local clock, of a quarantine that this client has started because of the node's clock."""


class Observer(Protocol):
    """Called with events of nodes and holds, from any thread, and perhaps more than once for one event."""

    def node_down(self, address: str, fault: Fault) -> None:
        """A connection could not be made, or failed while a request was under way."""

    def node_up(self, address: str, run_id: str, moved_to: str) -> None:
        """A connection was made. A restart changes the run_id; it is empty if the server does not tell it. `moved_to`: in
        a cluster, the server that has replaced the one at `address`; empty if it is the same."""

    def vote_changed(self, node: Node) -> None:
        """The node's marker was read: `marker` and `opens_at` say whether it may vote."""

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
        """A node is a whole cluster, and names move between its servers. A push from such a server proves nothing: the
        server counts only its own listeners, and its message may reach a listener of another server."""
        self.unguarded_single = self.n == 1 and not guard
        """There is a single node without a guard, so nothing has to be known about it beforehand."""
        self.quorum_can_vote = not guard
        """As far as is known, nothing is misconfigured and a majority may vote."""
        self.max_ttl_ms = round(policy.max_ttl * 1000)
        self.marker_key = keys.guard_key(policy.prefix)
        self.mark_key = keys.mark_key(policy.prefix)
        """The key of the namespace's high-water mark: the largest token that a node has voted for."""
        self.channel_prefix = keys.channel_prefix(policy.prefix)
        self.seen_token = 0
        """The largest token that this client has seen. Its next proposal is larger."""
        self.suspects: frozenset[int] = frozenset()
        """Nodes whose clock stepped forward, and that are not in quarantine yet. Their votes do not count."""
        self.standstills = 0
        """How often this machine's clock was found to have stood still. Earlier deadlines are not valid any more."""
        self.on_standstill: Callable[[], None] | None = None
        """Called at a standstill, in the thread that notices it: the holds of this client are lost."""
        self.all_nodes_vote = not guard
        """As far as is known, every node may vote."""
        self.check: Check | None = None
        """Guarded: the check that follows every vote; see guard.install."""
        self.observer: Observer | None = None
        self.bootstrap_call = "handfast.bootstrap(client)"
        """The call that opens a new deployment, for error messages."""

    def set_marker(self, node: Node, marker: bytes) -> None:
        """Set the marker that the node must show with each vote; empty: it may not vote."""
        node.marker = marker
        self.all_nodes_vote = not self.guard or all(each.marker for each in self.nodes)
        self._judge()
        if self.observer is not None:
            self.observer.vote_changed(node)

    def _judge(self) -> None:
        able = self.config_error() is None and self.voters() >= self.need
        self.quorum_can_vote = self.unguarded_single or able

    def connected(self, index: int) -> None:
        """Note that a node is connected. The handshake has set the node's fields."""
        self.nodes[index].fault = None
        self._judge()

    def failed(self, index: int, fault: Fault) -> None:
        """Note that a connection failed or ended."""
        self.nodes[index].fault = fault
        self._judge()

    def config_error(self) -> str | None:
        """A configuration error that must be corrected before any vote can be trusted, or None."""
        for node in self.nodes:
            if node.fault is not None and node.fault.kind == "config":
                return f"{node.label}: {node.fault.text}"
        odd = [node for node in self.nodes if node.other_max_ttl]
        # While the nodes that agree with this client can be a majority, their setting is right: see guard.repair.
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
        if left <= 0 and node.index in self.suspects:
            return Fault("quarantine", "its clock stepped forward against ours, no vote for now")
        if left > 0:
            return Fault("quarantine", f"restarted or new, no vote for another {left:.1f} s")
        return Fault("quarantine", "restarted, no vote until enough other nodes are up to restore its token counters")

    def repair_due(self, now: float, channels: Sequence[bytes] = ()) -> bool:
        """Whether a connected node, as far as is known, does not vote although its quarantine is over.

        `channels`: those of the caller. A channel proves that the caller's connection is up, also if another connection
        of this client has found the node silent.
        """
        if self.all_nodes_vote:
            return False
        return any(
            not node.marker and node.incarnation and now >= node.opens_at
            and (node.fault is None or (channels and channels[node.index]))
            for node in self.nodes
        )  # fmt: skip

    def suspect(self, index: int) -> None:
        """Suspect a node whose clock stepped forward: its keys may have expired early, so it must not vote."""
        self.set_marker(self.nodes[index], b"")
        self.suspects |= {index}

    def cleared(self, index: int) -> None:
        """End the suspicion: the node is in quarantine, or the suspicion was wrong or is too old to matter."""
        self.suspects -= {index}

    def suspected(self, now: float) -> int:
        """The number of nodes that are suspect or in quarantine because this client saw their clocks step."""
        return sum(1 for node in self.nodes if node.index in self.suspects or now < node.quarantined_until)

    def may_quarantine(self, node: Node) -> bool:
        """Whether this client may put a suspect in quarantine. It must leave a majority of nodes that vote."""
        return self.n == 1 or sum(1 for each in self.nodes if each is not node and each.marker) >= self.need

    def stood_still(self) -> None:
        """Note that this machine's clock has stood still."""
        self.standstills += 1  # count first: Schedule.add compares a new hold with this
        if self.on_standstill is not None:
            self.on_standstill()

    def voters(self) -> int:
        """The number of nodes that may vote, as far as is known."""
        return sum(1 for node in self.nodes if node.marker) if self.guard else self.n

    def proposal(self, wall: int) -> int:
        """A token to propose. It is larger than every token that this client has seen. It is near wall time, so it is
        mostly above the counters of all nodes, and they all answer this value.

        A clock that is set absurdly far ahead is ignored: it would use up the numbers below 2^53.
        """
        token = max(wall if wall < 1 << 52 else 0, self.seen_token + 1)
        self.seen_token = token
        return token
