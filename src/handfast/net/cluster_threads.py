"""Blocking connections that follow the redirects of a cluster. An operation is about one name: they follow that name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from handfast.core.io import SILENT, Collector, Fault, Payloads
from handfast.core.votes import Ballot
from handfast.net.address import Address, HostPort
from handfast.net.cluster_routes import suspected
from handfast.net.connection import DISCARD, Discard
from handfast.net.forwarded import ASKING
from handfast.net.link import CONNECT_TIMEOUT, NOT_CONNECTED
from handfast.net.sockets import hang_up
from handfast.net.threads import ThreadIO
from handfast.net.threads_connections import ThreadLink

__all__ = ["RedirectingIO"]


class Redirect(NamedTuple):
    """A request that belongs to another node."""

    collector: Any
    payload: bytes
    slot: int
    host_port: HostPort
    asking: bool
    fault: Fault


class RedirectingIO(ThreadIO):
    """Sends a request that one node redirects to the other node."""

    def __init__(self, *args: Any, detour: Callable[[HostPort, int, bytes], Any]) -> None:
        super().__init__(*args)
        self._detour = detour
        """Sends one request to the node to which the key's slot is being moved (ASK)."""
        self._redirects: deque[Redirect] = deque()
        self.siblings: list[RedirectingIO] = []
        """The pool's list for the idle connections of this route."""
        self.redirected = False
        """A redirect has changed the route of these connections."""

    def _wait(self, seconds: float | None, *, spin: bool = False) -> bool:
        if not self._redirects:
            return super()._wait(seconds, spin=spin)
        self._follow(self._redirects.popleft(), seconds)
        return True

    def round_trip(self, payloads: Payloads, collector: Collector, timeout: float) -> None:
        super().round_trip(payloads, collector, timeout)
        if not collector.decided:
            suspected(link.address for link in self.links)

    def _redirected(self, index: int, address: Address, collector: Any, payload: bytes, fault: Fault) -> bool:
        """See Connection.redirected. An operation concerns one name, so the link follows it to its present node."""
        resolver = address.resolver
        belongs = resolver.on_redirect(address.host_port, fault) if resolver is not None else None
        if belongs is None or isinstance(collector, Discard):
            return False
        slot, host_port, asking = belongs
        if asking and collector.width > 1:
            return False  # each of its commands would need an ASKING; the caller retries until the move is over
        if self.group.n == 1:
            self._redirects.append(Redirect(collector, payload, slot, host_port, asking, fault))
        elif not asking:
            self._point(self.links[index], slot, host_port)
        return self.group.n == 1

    def _point(self, link: ThreadLink, slot: int, host_port: HostPort) -> None:
        """Direct the link to another node from now on."""
        shard: Any = link.address.resolver
        shard.slot, shard.preferred = slot, host_port
        self.redirected = True
        if link.sock is not None:
            hang_up(link.sock)

    def _follow(self, redirect: Redirect, seconds: float | None) -> None:
        link = self.links[0]
        if redirect.asking:
            reply = self._detour(redirect.host_port, redirect.slot, redirect.payload)
        else:
            self.inconsistent = True
            self._point(link, redirect.slot, redirect.host_port)
            if link.connection is not None:
                self._down(link, redirect.fault)
            self.inconsistent = False
            self.connect_now(1, CONNECT_TIMEOUT if seconds is None else seconds)
            if link.connection is not None:
                self._send(link, link.connection, redirect.payload, redirect.collector)
                return
            reply = link.fault or NOT_CONNECTED
        redirect.collector.add(0, reply)

    def ask_in_passing(self, payload: bytes, timeout: float) -> Any:
        """Send one request to the only node of these connections, to which the key's slot is being moved (ASK)."""
        link = self.links[0]
        if link.connection is None:
            self.connect_now(1, timeout)
        if link.connection is None:
            return link.fault or NOT_CONNECTED
        self._send(link, link.connection, ASKING, DISCARD)
        if link.connection is None:
            return link.fault or NOT_CONNECTED
        ballot = Ballot(1, 1)
        self.round_trip(payload, ballot, timeout)
        return SILENT if ballot.answers[0] is None else ballot.answers[0]
