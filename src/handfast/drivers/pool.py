"""The blocking connections of a client of clusters: idle lanes, by the set of nodes that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.drivers.routes import Route, Routes
from handfast.drivers.wandering import WanderingDriver
from handfast.topology.cluster import slot_of
from handfast.wire.dial import Place

__all__ = ["LanePool"]

SPARE: Final = 16
"""Idle lanes that are kept of each route."""
IN_PASSING: Final = 1.0
"""Seconds for a question to a node that a slot is just being moved to."""


class LanePool:
    """Lists of lanes change by single steps that are atomic, so threads need no lock."""

    def __init__(self, group: Group, routes: Routes, shake: Callable[[int], Steps]) -> None:
        self._group = group
        self._routes = routes
        self._shake = shake
        self._idle: dict[Route, list[WanderingDriver]] = {}
        self._closed = False

    def take(self, key: bytes) -> WanderingDriver:
        slot = slot_of(key)
        return self._take(self._routes.of(slot), slot)

    def _take(self, route: Route, slot: int) -> WanderingDriver:
        try:
            return self._idle[route].pop()
        except (KeyError, IndexError):
            addresses = self._routes.addresses(route, slot)
            return WanderingDriver(self._group, addresses, self._shake, detour=self._in_passing)

    def give_back(self, lane: WanderingDriver) -> None:
        """For the next; under the node that it leads to now."""
        route = self._routes.taken([link.address for link in lane.links])
        idle = self._idle.setdefault(route, [])
        if lane.torn:
            lane.abandon()
        elif self._closed or None in route or len(idle) >= SPARE:
            lane.close()
        else:
            idle.append(lane)

    def _in_passing(self, place: Place, slot: int, payload: bytes) -> Any:
        lane = self._take((place,), slot)
        try:
            return lane.ask_in_passing(payload, IN_PASSING)
        finally:
            self.give_back(lane)

    def close(self) -> None:
        self._closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()

    def forked(self) -> None:
        """In the child: the connections are the parent's."""
        idle, self._idle = self._idle, {}
        for lanes in idle.values():
            for lane in lanes:
                lane.abandon()
