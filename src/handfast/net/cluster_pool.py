"""The pool of blocking connections of a client that uses Redis Cluster.

Each name has its own node there, so idle connections are kept by route: the nodes to which they are connected. An
operation on a key gets connections to the nodes of the key's slot. If a redirect has moved them to another route, the
pool keeps them under that one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from handfast.core.handshake import Steps
from handfast.core.nodes import NodeGroup
from handfast.discovery.cluster import slot_of
from handfast.net.address import HostPort
from handfast.net.cluster_routes import MOST_KNOWN, Route, SlotRouter
from handfast.net.cluster_threads import RedirectingIO
from handfast.net.thread_pool import SPARE, BasePool
from handfast.net.threads import ThreadAccess, ThreadIO
from handfast.net.threads_connections import IDLE_CHECK

__all__ = ["RoutedPool"]

IN_PASSING: Final = 1.0
"""Seconds for one request (ASK) to the node to which a slot is being moved."""


class _RouteAccess(ThreadAccess):
    """How threads reach the nodes that have a key."""

    def __init__(self, pool: RoutedPool, key: bytes) -> None:
        self._pool = pool
        self._key = key

    def borrow(self) -> RedirectingIO:
        return self._pool.borrow_for(self._key)

    def give_back(self, io: Any) -> None:
        self._pool.give_back(io)


class RoutedPool(BasePool):
    """Lends a RedirectingIO for a key."""

    def __init__(self, group: NodeGroup, routes: SlotRouter, shake: Callable[[int], Steps]) -> None:
        super().__init__(group, shake)
        self._routes = routes
        self._idle: dict[Route, list[RedirectingIO]] = {}
        self._known: dict[bytes, list[RedirectingIO]] = {}
        """Key to the idle RedirectingIOs of its route. The dict is cleared when a slot moves."""
        routes.forget_when_moved(self._known)

    def access(self, key: bytes) -> ThreadAccess:
        return _RouteAccess(self, key)

    def borrow_for(self, key: bytes) -> RedirectingIO:
        if self.closed:
            raise self._refusal()
        io = self._take_for(key)
        if time.monotonic() - io.used_at > IDLE_CHECK:
            self.wake(io)
        return io

    def _take_for(self, key: bytes) -> RedirectingIO:
        idle = self._known.get(key)
        if idle:
            try:
                return idle.pop()
            except IndexError:
                pass  # another thread was quicker
        slot = slot_of(key)
        route = self._routes.of(slot)
        io = self._take(route, slot)
        if None not in route:
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known[key] = io.siblings
        return io

    def _take(self, route: Route, slot: int) -> RedirectingIO:
        idle = self._idle.setdefault(route, [])
        try:
            return idle.pop()
        except IndexError:
            addresses = self._routes.addresses(route, slot)
            io = RedirectingIO(self._group, addresses, self._shake, detour=self._in_passing)
            io.siblings = idle
            return io

    def give_back(self, io: RedirectingIO) -> None:
        if io.inconsistent:
            io.abandon()
            return
        if io.redirected:
            io.redirected = False
            io.siblings = self._idle.setdefault(self._routes.taken([link.address for link in io.links]), [])
        if self.closed or len(io.siblings) >= SPARE:
            io.close()
        else:
            io.siblings.append(io)

    def _in_passing(self, host_port: HostPort, slot: int, payload: bytes) -> Any:
        io = self._take((host_port,), slot)
        try:
            return io.ask_in_passing(payload, IN_PASSING)
        finally:
            self.give_back(io)

    def take_idle(self) -> ThreadIO | None:
        return None  # each name has its own node

    def close(self) -> None:
        self.closed = True
        for idle in list(self._idle.values()):
            while idle:
                idle.pop().close()

    def forked(self) -> None:
        idle, self._idle = self._idle, {}
        self._known.clear()
        for ios in idle.values():
            for io in ios:
                io.abandon()
