"""The nodes that one client votes with, and what is known of each.

A `Node` is shared by all connections that a client has to it, in whatever thread; every field is replaced whole, never
changed in place, so readers need no lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from handfast import lua
from handfast.core.effects import Fault
from handfast.core.quorum import majority
from handfast.core.resp import encode
from handfast.options import Policy

__all__ = ["NOT_CONNECTED", "Group", "Node"]


DELETES: Final = {
    "delifeq": b"*3\r\n$7\r\nDELIFEQ\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n",
    "delex": b"*4\r\n$5\r\nDELEX\r\n$%d\r\n%b\r\n$4\r\nIFEQ\r\n$%d\r\n%b\r\n",
    "": b"*7\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n1\r\n" % lua.SHA["release"]
    + b"$%d\r\n%b\r\n$%d\r\n%b\r\n$1\r\n1\r\n$0\r\n\r\n",
}
"""The capability ladder: how a server compares and deletes in one step."""


NOT_CONNECTED: Final = Fault("closed", "did not answer the connection in time")
"""Before the first connection has come about."""


class Node:
    """One server, as this client knows it."""

    __slots__ = (
        "clock",
        "delete",
        "fault",
        "floor",
        "incarnation",
        "index",
        "label",
        "ladder",
        "marker",
        "opens_at",
        "pushes",
        "run_id",
        "tracks",
        "waiting",
    )

    def __init__(self, index: int, label: str) -> None:
        self.index = index
        self.label = label
        """Its address, without secrets, as errors and `lease.votes` show it."""
        self.fault: Fault | None = NOT_CONNECTED
        """Why the last connection to it failed or ended; None once there is one."""
        self.delete = DELETES[""]
        """Its command for an owner-checked delete, to be filled in with key and owner."""
        self.ladder = ""
        """How it compares and deletes: 'delifeq' (Valkey), 'delex' (Redis 8.4) or '' (a script)."""
        self.run_id = ""
        self.pushes = True
        """It speaks RESP3."""
        self.tracks = True
        """It tells its clients when keys that they have read change (client tracking)."""
        self.incarnation = b""
        """run_id and last promotion: another value means that it may have forgotten."""
        self.marker = b""
        """The guard marker it must show with each vote; empty while it may not vote."""
        self.opens_at = 0.0
        """Until when it is kept from voting, on the local clock."""
        self.waiting = b""
        """The marker whose quarantine `opens_at` is the end of."""
        self.floor = b"0"
        """Lower bound for fence counters that it may have forgotten."""
        self.clock: tuple[float, float, float] | None = None
        """Bounds on (server time minus local time) and when they were taken: a step of its clock shows against them."""


class Group:
    """N independent nodes of which a majority decides."""

    def __init__(self, labels: Sequence[str], policy: Policy, *, guard: bool, clustered: bool = False) -> None:
        self.nodes = [Node(i, label) for i, label in enumerate(labels)]
        self.n = len(self.nodes)
        self.need = majority(self.n)
        self.policy = policy
        self.guard = guard
        self.clustered = clustered
        """Names move between the servers of what is one node to us. What one of them pushes proves nothing then: it may
        reach those whom the server does not count on."""
        self.plain = self.n == 1 and not guard
        """Nothing is to be known about the node beforehand."""
        self.fine = not guard
        """Nothing is misconfigured and a majority may vote, as far as is known."""
        self.max_ttl_ms = round(policy.max_ttl * 1000)
        namespace = (policy.prefix or "handfast:").encode()
        self.marker_key = namespace + b"guard"
        self.mark_key = namespace + b"mark"
        """The namespace's high-water mark: the largest token that this node has voted for."""
        self.mark_arg = b"$%d\r\n%b\r\n" % (len(self.mark_key), self.mark_key) if guard else b""
        self.read_seal = encode(b"GET", self.marker_key) + encode(b"TIME")
        """What is read behind votes: see guard.py."""
        self.seen_token = 0
        """The largest token seen by this client: its next proposal is above it."""
        self.suspects: frozenset[int] = frozenset()
        """Nodes whose clock stepped forward, to be put in quarantine."""
        self.uniform = True
        """All nodes speak the same dialect, so one payload serves them all."""
        self.floors = False
        """Some node has a floor for its counters, so each gets its own payload."""
        self.all_vote = not guard
        """Every node may vote, as far as is known."""
        # Only a guard makes sure that all clients of a namespace have the same max_ttl; without it, and for keys that are
        # shared with other programs, nothing is too long.
        self.most_px = b"%d" % (self.max_ttl_ms if guard and policy.prefix else 1 << 52)
        self.tail = self._tail(b"0")

    def _tail(self, floor: bytes) -> bytes:
        """The end of each acquire command: floor and max_ttl."""
        return b"".join(b"$%d\r\n%b\r\n" % (len(arg), arg) for arg in (floor, self.most_px))

    def tail_of(self, node: Node) -> bytes:
        return self._tail(node.floor)

    def set_marker(self, node: Node, marker: bytes, floor: bytes = b"0") -> None:
        """What the node must show with each vote; empty: it may not vote."""
        # The floor first: whoever sees the marker must find the floor that goes with it.
        node.floor = floor
        node.marker = marker
        self.floors = any(each.floor != b"0" for each in self.nodes)
        self.all_vote = not self.guard or all(each.marker for each in self.nodes)
        self._judge()

    def _judge(self) -> None:
        self.fine = self.plain or (self.mistake() is None and self.voters() >= self.need)

    def connected(self, index: int) -> None:
        """A connection was made: what the node said of itself is in its fields."""
        node = self.nodes[index]
        node.fault = None
        node.delete = DELETES[node.ladder]
        self.uniform = len({node.ladder for node in self.nodes}) == 1
        self._judge()

    def failed(self, index: int, fault: Fault) -> None:
        """A connection failed or ended."""
        self.nodes[index].fault = fault
        self._judge()

    def mistake(self) -> str | None:
        """What somebody has to put right before any vote can be trusted."""
        for node in self.nodes:
            if node.fault is not None and node.fault.kind == "config":
                return f"{node.label}: {node.fault.text}"
        return None

    def closed(self, node: Node, now: float) -> Fault | None:
        """Why a guarded node may not vote now, or None."""
        if node.marker or not self.guard:
            return None
        if node.fault is not None or not node.incarnation:
            return node.fault or NOT_CONNECTED
        left = node.opens_at - now
        if left > 0:
            return Fault("quarantine", f"restarted or new, no vote for another {left:.1f} s")
        return Fault("quarantine", "restarted, waiting for enough other nodes to restore its token counters from")

    def overdue(self, now: float) -> bool:
        """Some connected node does not vote as far as is known here, and may do so by now."""
        if self.all_vote:
            return False
        return any(
            not node.marker and node.fault is None and node.incarnation and now >= node.opens_at for node in self.nodes
        )

    def suspect(self, index: int) -> None:
        """A node's clock stepped forward: what it held may have ended early, so it must not vote."""
        self.set_marker(self.nodes[index], b"")
        self.suspects |= {index}

    def cleared(self, index: int) -> None:
        """Its marker was written anew: it says all there is to say."""
        self.suspects -= {index}

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
