"""The link to one node, whatever the transport: up with a connection, or down with a reason and a time to retry."""

from __future__ import annotations

from typing import Final

from handfast.core.io import Fault
from handfast.core.nodes import NOT_CONNECTED, NodeGroup
from handfast.net.address import TLS_SILENT, Address
from handfast.net.connection import Connection

__all__ = ["CONNECT_TIMEOUT", "GRACE", "HUNG", "NOT_CONNECTED", "NodeLink"]

CONNECT_TIMEOUT: Final = 2.0
"""Seconds for a connection with TLS and handshake, which goes on in the background while others vote."""
PREPARE_TIMEOUT: Final = 10.0
"""More seconds for an address that has to be prepared first: an embedded server may have to be started."""
FIND_TIMEOUT: Final = 1.0
"""More seconds for an address that has to be found first."""
GRACE: Final = 0.1
"""Seconds that a first use waits for the remaining nodes once a majority is connected."""
HUNG: Final = 2.5
"""Seconds without any answer after which a connection is given up: its node hangs, and requests would pile up."""
RETRY_LEAST: Final = 0.01
RETRY_FIRST: Final = 0.05
RETRY_MOST: Final = 0.5
RETRY_MOVING: Final = 0.2
"""Seconds between tries to connect a node that is down: doubled from the first to the most; at least the least, even
if nothing goes without it. One that may move is looked for more often: it may be up again elsewhere."""


class NodeLink:
    """What is known of a connection, or of the lack of one."""

    __slots__ = ("address", "asked_at", "connection", "failed_at", "failures", "fault", "group", "index", "retry_at")

    def __init__(self, index: int, address: Address, group: NodeGroup) -> None:
        self.index = index
        self.group = group
        self.address = address
        self.connection: Connection | None = None
        self.fault: Fault | None = None
        """Why it is down; None while up or before the first try."""
        if address.tls is not None and address.resolver is None and address.cluster is None:
            # The first try may take longer than its caller waits, and that caller must hear what it is about, too.
            self.fault = TLS_SILENT
            if group.nodes[index].fault is NOT_CONNECTED:
                group.nodes[index].fault = TLS_SILENT
        self.failures = 0
        self.failed_at = float("-inf")
        self.retry_at = 0.0
        self.asked_at = 0.0
        """Since when an answer has been due; 0.0 if none is."""

    @property
    def connect_timeout(self) -> float:
        if self.address.prepare is not None:
            return CONNECT_TIMEOUT + PREPARE_TIMEOUT
        return CONNECT_TIMEOUT if self.address.resolver is None else CONNECT_TIMEOUT + FIND_TIMEOUT

    @property
    def place(self) -> str:
        """What people know the server by; in a cluster, with the machine."""
        preferred = getattr(self.address.resolver, "preferred", None) if self.address.cluster is not None else None
        return self.address.label if preferred is None else f"{self.address.label} at {preferred[0]}:{preferred[1]}"

    def connected(self, connection: Connection) -> None:
        self.connection, self.fault, self.failures, self.asked_at = connection, None, 0, 0.0
        self.group.connected(self.index)
        if self.group.observer is not None:
            self.group.observer.node_up(self.place, self.group.nodes[self.index].run_id)

    def failed(self, fault: Fault, now: float) -> None:
        # A connection that was lost may be made again at once; one that could not be made may not.
        self.failed_at = now if self.connection is None else float("-inf")
        # Servers close connections that rest. A node is not called down for that unless it cannot be connected again.
        resting = self.connection is not None and not self.connection.pending
        self.connection, self.fault, self.asked_at = None, fault, 0.0
        self.group.failed(self.index, fault)
        if self.group.observer is not None and not resting and fault is not NOT_CONNECTED:
            self.group.observer.node_down(self.place, fault)
        most = RETRY_MOST if self.address.resolver is None else RETRY_MOVING
        self.retry_at = now + min(most, RETRY_FIRST * 2.0 ** min(self.failures, 10))
        self.failures += 1

    def due(self, now: float, *, force: bool) -> bool:
        """Time to try again; `force` for who cannot do without it, within reason."""
        return now >= (self.failed_at + RETRY_LEAST if force else self.retry_at)

    def rests(self, now: float) -> float:
        """Seconds until it may be tried again for who cannot do without it."""
        return self.failed_at + RETRY_LEAST - now if self.connection is None else 0.0

    def hangs(self, now: float) -> Fault | None:
        """The fault of a node that has not answered for too long, if it is one."""
        if self.asked_at and now - self.asked_at > max(HUNG, 2 * (self.group.policy.node_timeout or 0.0)):
            return Fault("timeout", f"no answer for {now - self.asked_at:.1f} s")
        return None
