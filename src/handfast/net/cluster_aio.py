"""The asyncio connections of a client that uses Redis Cluster: one ShardIO for each route in use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from handfast.core.handshake import Steps
from handfast.core.io import Fault, PushListener
from handfast.core.nodes import NodeGroup
from handfast.core.votes import BatchBallot
from handfast.discovery.cluster import slot_of
from handfast.net.address import Address, HostPort
from handfast.net.aio import AsyncIO
from handfast.net.aio_protocol import AioLink
from handfast.net.cluster_routes import MOST_KNOWN, Route, SlotRouter, suspected
from handfast.net.forwarded import ASKING, ForwardedReply

__all__ = ["ClusterIO"]


class ShardIO(AsyncIO):
    """The connections of one route: to one node of each cluster, and to each server that is no cluster."""

    def __init__(self, *args: Any, sibling: Callable[[HostPort, int], ShardIO]) -> None:
        super().__init__(*args)
        self._sibling = sibling
        """Returns the ShardIO of another node."""

    def _redirected(self, link: AioLink, address: Address, collector: Any, payload: bytes, fault: Fault) -> bool:
        """See Connection.redirected. Other names still use these connections, so another ShardIO sends the request."""
        belongs = address.resolver.on_redirect(address.host_port, fault) if address.resolver is not None else None
        if belongs is None or link.connection is None:
            return False
        slot, host_port, asking = belongs
        if self._n > 1:
            if not asking:  # this node's vote is missing this time
                shard: Any = address.resolver
                shard.slot, shard.preferred = slot, host_port
                if link.protocol is not None:
                    link.protocol.hang_up()
            return False
        if type(collector) is BatchBallot and len(collector.ballots) > 1:
            return False  # a batch of several names: the caller sends each one again to its own node
        if asking and collector.width > 1 and type(collector) is not BatchBallot:
            return False  # each of its commands would need an ASKING; the caller retries until the move is over
        self._sibling(host_port, slot).carry(
            ASKING + payload if asking else payload, ForwardedReply(link.connection, collector, asking)
        )
        return True

    def _met_silence(self) -> None:
        suspected(link.address for link in self.links)

    def carry(self, payload: bytes, collector: Any) -> None:
        """Send a request of another ShardIO."""
        link = self.links[0]
        if link.connection is None and link.connecting is None:
            self._start(force=True)
        self._send_each(payload, collector)


class ClusterIO:
    """The ShardIOs of one event loop, made when first needed. They share their listeners: any node may push to any."""

    def __init__(
        self,
        group: NodeGroup,
        addresses: Sequence[Address],
        shake: Callable[[int], Steps],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._group = group
        self._routes = SlotRouter(addresses)
        self._shake = shake
        self.loop = loop
        self._shards: dict[Route, ShardIO] = {}
        self.known: dict[bytes, ShardIO] = {}
        """Key to its ShardIO. The dict is cleared when a slot moves."""
        self._routes.forget_when_moved(self.known)
        self._tracked: dict[bytes, list[PushListener]] = {}
        self._mailbox: dict[bytes, PushListener] = {}

    def at(self, key: bytes) -> ShardIO:
        """The connections for a key."""
        shard = self.known.get(key)
        if shard is None:
            slot = slot_of(key)
            route = self._routes.of(slot)
            shard = self._shards.get(route) or self._open_shard(route, slot)
            if len(self.known) > MOST_KNOWN:
                self.known.clear()
            self.known[key] = shard
        return shard

    def _open_shard(self, route: Route, slot: int) -> ShardIO:
        addresses = self._routes.addresses(route, slot)
        shard = ShardIO(self._group, addresses, self._shake, self.loop, sibling=self._sibling)
        shard.share_listeners(self._tracked, self._mailbox)
        self._shards[route] = shard
        return shard

    def _sibling(self, host_port: HostPort, slot: int) -> ShardIO:
        return self._shards.get((host_port,)) or self._open_shard((host_port,), slot)

    async def close(self) -> None:
        await asyncio.gather(*[shard.close() for shard in self._shards.values()])
