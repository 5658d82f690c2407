"""The blocking connections of a client of clusters: idle lanes, by the set of nodes that they lead to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.drivers.routes import MOST_KNOWN, Route, Routes
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
        self._known: dict[bytes, list[WanderingDriver]] = {}
        """By key, those of its route; emptied when slots move."""
        routes.forget_when_moved(self._known)
        self._closed = False

    def take(self, key: bytes) -> WanderingDriver:
        idle = self._known.get(key)
        if idle:
            try:
                return idle.pop()
            except IndexError:
                pass  # another thread was quicker
        slot = slot_of(key)
        route = self._routes.of(slot)
        lane = self._take(route, slot)
        if None not in route:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known[key] = lane.siblings
        return lane

    def _take(self, route: Route, slot: int) -> WanderingDriver:
        idle = self._idle.setdefault(route, [])
        try:
            return idle.pop()
        except IndexError:
            addresses = self._routes.addresses(route, slot)
            lane = WanderingDriver(self._group, addresses, self._shake, detour=self._in_passing)
            lane.siblings = idle
            return lane

    def give_back(self, lane: WanderingDriver) -> None:
        """For the next; under the node that it leads to now."""
        if lane.torn:
            lane.abandon()
            return
        if lane.wandered:
            lane.wandered = False
            lane.siblings = self._idle.setdefault(self._routes.taken([link.address for link in lane.links]), [])
        if self._closed or len(lane.siblings) >= SPARE:
            lane.close()
        else:
            lane.siblings.append(lane)

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
        self._known.clear()
        for lanes in idle.values():
            for lane in lanes:
                lane.abandon()
