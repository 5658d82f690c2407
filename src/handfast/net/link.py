"""The link to one node, whatever the transport: up with a connection, or down with a reason and a time to retry."""

from __future__ import annotations

from typing import Final

from handfast.core.io import Fault
from handfast.core.nodes import NOT_CONNECTED, NodeGroup
from handfast.net.address import TLS_SILENT, Address
from handfast.net.connection import Connection

__all__ = ["CONNECT_TIMEOUT", "GRACE", "HUNG", "NOT_CONNECTED", "NodeLink"]

CONNECT_TIMEOUT: Final = 2.0
"""Seconds to connect a node, with TLS and handshake. This goes on in the background while other nodes vote."""
PREPARE_TIMEOUT: Final = 10.0
"""Extra seconds for an address that must be prepared first: an embedded server may have to start."""
FIND_TIMEOUT: Final = 1.0
"""Extra seconds for an address that a resolver must find first."""
GRACE: Final = 0.1
"""Seconds that the first operation waits for the remaining nodes after a majority is connected."""
HUNG: Final = 2.5
"""Seconds without any reply after which a connection is closed: its node hangs, and requests would pile up."""
RETRY_LEAST: Final = 0.01
RETRY_FIRST: Final = 0.05
RETRY_MOST: Final = 0.5
RETRY_MOVING: Final = 0.2
"""Seconds between tries to connect a node that is down. They start at RETRY_FIRST and double up to RETRY_MOST. A caller
that needs the node waits RETRY_LEAST at least. If the server may move, the limit is RETRY_MOVING instead of RETRY_MOST,
because it may be up again elsewhere."""


class NodeLink:
    """The connection to one node; while there is none, the reason and the time of the next try."""

    __slots__ = ("address", "asked_at", "connection", "failed_at", "failures", "fault", "group", "index", "retry_at")

    def __init__(self, index: int, address: Address, group: NodeGroup) -> None:
        self.index = index
        self.group = group
        self.address = address
        self.connection: Connection | None = None
        self.fault: Fault | None = None
        """Why the link is down. None while it is up, and before the first try."""
        if address.tls is not None and address.resolver is None and address.cluster is None:
            # The first try may take longer than its caller waits. The caller's error must mention TLS even so.
            self.fault = TLS_SILENT
            if group.nodes[index].fault is NOT_CONNECTED:
                group.nodes[index].fault = TLS_SILENT
        self.failures = 0
        self.failed_at = float("-inf")
        self.retry_at = 0.0
        self.asked_at = 0.0
        """The time since which a reply has been due; 0.0 if none is due."""

    @property
    def connect_timeout(self) -> float:
        if self.address.prepare is not None:
            return CONNECT_TIMEOUT + PREPARE_TIMEOUT
        return CONNECT_TIMEOUT if self.address.resolver is None else CONNECT_TIMEOUT + FIND_TIMEOUT

    @property
    def place(self) -> str:
        """The server's name in messages; in a cluster, with host and port."""
        preferred = getattr(self.address.resolver, "preferred", None) if self.address.cluster is not None else None
        return self.address.label if preferred is None else f"{self.address.label} at {preferred[0]}:{preferred[1]}"

    def _moved_to(self) -> str:
        """In a cluster, the host and port of the server if it is another one than `place` says; else empty."""
        preferred, reached = (getattr(self.address.resolver, name, None) for name in ("preferred", "reached"))
        return f"{reached[0]}:{reached[1]}" if reached is not None and reached != preferred else ""

    def connected(self, connection: Connection) -> None:
        self.connection, self.fault, self.failures, self.asked_at = connection, None, 0, 0.0
        self.group.connected(self.index)
        if self.group.observer is not None:
            self.group.observer.node_up(self.place, self.group.nodes[self.index].run_id, self._moved_to())

    def failed(self, fault: Fault, now: float) -> None:
        # A lost connection may be made again at once. After a failed try the next one waits.
        lost = self.connection is not None
        self.failed_at = float("-inf") if lost else now
        # Servers close idle connections. That alone does not make a node "down": only a failed reconnect does.
        resting = self.connection is not None and not self.connection.pending
        self.connection, self.fault, self.asked_at = None, fault, 0.0
        self.group.failed(self.index, fault)
        if self.group.observer is not None and not resting and fault is not NOT_CONNECTED:
            self.group.observer.node_down(self.place, fault)
        most = RETRY_MOST if self.address.resolver is None else RETRY_MOVING
        self.retry_at = now if lost else now + min(most, RETRY_FIRST * 2.0 ** min(self.failures, 10))
        self.failures += 1

    def due(self, now: float, *, force: bool) -> bool:
        """Whether it is time for another try. `force`: the caller needs this node, so RETRY_LEAST is enough."""
        return now >= (self.failed_at + RETRY_LEAST if force else self.retry_at)

    def rests(self, now: float) -> float:
        """Seconds until a caller that needs this node may try again."""
        return self.failed_at + RETRY_LEAST - now if self.connection is None else 0.0

    def hangs(self, now: float) -> Fault | None:
        """A fault if the node has not replied for too long, else None."""
        if self.asked_at and now - self.asked_at > max(HUNG, 2 * (self.group.policy.node_timeout or 0.0)):
            return Fault("timeout", f"no answer for {now - self.asked_at:.1f} s")
        return None
