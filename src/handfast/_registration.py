"""A client as the watchdog sees it: its nodes, the watchdog's connections to them, and the work under way for it.

The connections are made when the watchdog first needs them, on the watchdog's event loop. In a cluster each name has its
own node, so holds are grouped by node before they are renewed. Only the watchdog's thread uses a registration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.core.handshake import Steps
from handfast.core.hold import Hold
from handfast.core.nodes import NodeGroup
from handfast.net.address import Address
from handfast.net.aio import AsyncIO

if TYPE_CHECKING:
    from handfast.net.cluster_aio import ClusterIO

__all__ = ["Registration"]

BATCH: Final = 500
"""The number of holds in one write: large enough to fill packets, small enough not to delay a deadline."""


class Registration:
    """A client in the watchdog."""

    def __init__(self, group: NodeGroup, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> None:
        self.group = group
        self.addresses = addresses
        self.shake = shake
        self.io: AsyncIO | ClusterIO | None = None
        """The watchdog's own connections; None until they are needed."""
        self.repairing: asyncio.Task[Any] | None = None
        self.releases: set[asyncio.Task[Any]] = set()
        """The tasks of releases that were left to the watchdog."""
        self.looked_at: dict[AsyncIO, float] = {}
        """When the servers of each set of connections were last asked for their eviction policy."""

    def io_for(self, key: bytes = b"") -> AsyncIO:
        """The connections for a key. They may not be connected yet."""
        io = self._connections()
        return io if isinstance(io, AsyncIO) else io.at(key)

    def batches(self, holds: list[Hold]) -> list[tuple[AsyncIO, list[Hold]]]:
        """Group holds on the same nodes, which can leave in one write."""
        io = self._connections()
        if isinstance(io, AsyncIO):
            return [(io, holds[i : i + BATCH]) for i in range(0, len(holds), BATCH)]
        by_shard: dict[AsyncIO, list[Hold]] = {}
        alone: list[tuple[AsyncIO, list[Hold]]] = []
        for hold in holds:
            shard = io.at(hold.key)
            # A failed renewal may be redirected to another node, which works only for single requests.
            if hold.retrying:
                alone.append((shard, [hold]))
            else:
                by_shard.setdefault(shard, []).append(hold)
        return alone + [
            (shard, part[i : i + BATCH]) for shard, part in by_shard.items() for i in range(0, len(part), BATCH)
        ]

    def _connections(self) -> AsyncIO | ClusterIO:
        io = self.io
        if io is None:
            kind: type[AsyncIO | ClusterIO] = AsyncIO
            if any(address.cluster is not None for address in self.addresses):
                from handfast.net.cluster_aio import ClusterIO as kind
            io = self.io = kind(self.group, self.addresses, self.shake, asyncio.get_running_loop())
        return io
