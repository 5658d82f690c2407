"""The asyncio connections of a client of clusters: a lane for each set of nodes that some name lives on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from handfast.core.effects import Fault, Watch
from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.core.quorum import Rounds
from handfast.drivers.aio import AioDriver
from handfast.drivers.routes import MOST_KNOWN, Route, Routes, suspected
from handfast.topology.cluster import slot_of
from handfast.wire.dial import Address, Place
from handfast.wire.forward import ASKING, Forward
from handfast.wire.pipe import AioLink

__all__ = ["AioFleet"]


class FleetLane(AioDriver):
    """The connections to one node of a cluster, or to one of each of several."""

    def __init__(self, *args: Any, sibling: Callable[[Place, int], FleetLane]) -> None:
        super().__init__(*args)
        self._sibling = sibling
        """The lane to another node."""

    def _strayed(self, link: AioLink, address: Address, poll: Any, payload: bytes, fault: Fault) -> bool:
        """See Channel.strayed. Others use this lane for other names, so it stays; the request goes on by another."""
        belongs = address.beacon.astray(address.place, fault) if address.beacon is not None else None
        if belongs is None or link.channel is None:
            return False
        slot, place, asking = belongs
        width = 1 if type(poll) is self._waiter else poll.width
        if self._n > 1:
            if not asking:  # one vote less, this time
                shard: Any = address.beacon
                shard.slot, shard.wish = slot, place
                if link.pipe is not None:
                    link.pipe.hang_up()
            return False
        if type(poll) is Rounds and len(poll.ballots) > 1:
            return False  # of many names: each is asked for again where it belongs
        if asking and width > 1 and type(poll) is not Rounds:
            return False  # each of its commands would have to be asked for: sooner or later the move is over
        self._sibling(place, slot).carry(
            ASKING + payload if asking else payload, Forward(link.channel, poll, width, asking)
        )
        return True

    def _met_silence(self) -> None:
        suspected(link.address for link in self.links)

    def carry(self, payload: bytes, poll: Forward) -> None:
        """Take over a request of another lane."""
        link = self.links[0]
        if link.channel is None and link.connecting is None:
            self._start(force=True)
        self._send_each(payload, poll)


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
        self._lanes: dict[Route, FleetLane] = {}
        self.known: dict[bytes, FleetLane] = {}
        """By key, where it was looked for before; emptied when slots move."""
        self._routes.forget_when_moved(self.known)
        self._watches: dict[bytes, list[Watch]] = {}
        self._mail: dict[bytes, Watch] = {}

    def at(self, key: bytes) -> FleetLane:
        """The lane for a key."""
        lane = self.known.get(key)
        if lane is None:
            slot = slot_of(key)
            route = self._routes.of(slot)
            lane = self._lanes.get(route) or self._lane(route, slot)
            if len(self.known) > MOST_KNOWN:
                self.known.clear()
            self.known[key] = lane
        return lane

    def _lane(self, route: Route, slot: int) -> FleetLane:
        addresses = self._routes.addresses(route, slot)
        lane = FleetLane(self._group, addresses, self._shake, self.loop, sibling=self._sibling)
        lane.share_ears(self._watches, self._mail)
        self._lanes[route] = lane
        return lane

    def _sibling(self, place: Place, slot: int) -> FleetLane:
        return self._lanes.get((place,)) or self._lane((place,), slot)

    async def close(self) -> None:
        await asyncio.gather(*[lane.close() for lane in self._lanes.values()])
