"""The asyncio connections of a client of clusters: a lane for each set of nodes that some name lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from handfast.core.effects import Watch
from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.drivers.aio import AioDriver
from handfast.drivers.routes import Route, Routes
from handfast.topology.cluster import slot_of
from handfast.wire.dial import Address, Place

__all__ = ["AioFleet"]


class AioFleet:
    """Lanes of one event loop, made when first needed. They share their ears: who waits may be told by any node."""

    def __init__(
        self,
        group: Group,
        addresses: Sequence[Address],
        shake: Callable[[int], Steps],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._group = group
        self._routes = Routes(addresses)
        self._shake = shake
        self.loop = loop
        self._lanes: dict[Route, AioDriver] = {}
        self._watches: dict[bytes, list[Watch]] = {}
        self._mail: dict[bytes, Watch] = {}

    def at(self, key: bytes) -> AioDriver:
        """The lane for a key."""
        slot = slot_of(key)
        route = self._routes.of(slot)
        return self._lanes.get(route) or self._lane(route, slot)

    def _lane(self, route: Route, slot: int) -> AioDriver:
        lane = AioDriver(self._group, self._routes.addresses(route, slot), self._shake, self.loop)
        lane.share_ears(self._watches, self._mail)
        lane.sibling = self._sibling
        self._lanes[route] = lane
        return lane

    def _sibling(self, place: Place, slot: int) -> AioDriver:
        return self._lanes.get((place,)) or self._lane((place,), slot)

    async def close(self) -> None:
        await asyncio.gather(*[lane.close() for lane in self._lanes.values()])
