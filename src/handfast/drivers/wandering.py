"""A lane for one name at a time of a cluster: it goes where that is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from handfast.core.effects import SILENT, Fault, Payloads, Poll
from handfast.drivers.routes import suspected
from handfast.drivers.threads import ThreadDriver
from handfast.wire.blocking import Answer, Link
from handfast.wire.channel import DISCARD
from handfast.wire.dial import Address, Place
from handfast.wire.forward import ASKING
from handfast.wire.link import CONNECT_TIMEOUT, NOT_CONNECTED
from handfast.wire.sockets import hang_up

__all__ = ["WanderingDriver"]


class Astray(NamedTuple):
    """A request that belongs elsewhere."""

    poll: Any
    payload: bytes
    slot: int
    place: Place
    asking: bool
    fault: Fault


class WanderingDriver(ThreadDriver):
    """A request that a node refuses because its slot is elsewhere is sent on to there."""

    def __init__(self, *args: Any, detour: Callable[[Place, int, bytes], Any]) -> None:
        super().__init__(*args)
        self._detour = detour
        """Asks a node once for a key that is just being moved to it."""
        self._astray: deque[Astray] = deque()
        self.siblings: list[WanderingDriver] = []
        """Where idle lanes of its route are kept."""
        self.wandered = False
        """It leads to another node than before."""

    def _wait(self, seconds: float | None) -> None:
        if self._astray:
            self._follow(self._astray.popleft(), seconds)
        else:
            super()._wait(seconds)

    def _wait_for(self, answer: Answer, end: float) -> Any:
        reply = super()._wait_for(answer, end)
        if reply is SILENT:
            suspected(link.address for link in self.links)
        return reply

    def round_trip(self, payloads: Payloads, poll: Poll, patience: float) -> None:
        super().round_trip(payloads, poll, patience)
        if not poll.decided:
            suspected(link.address for link in self.links)

    def _strayed(self, index: int, address: Address, poll: Any, payload: bytes, fault: Fault) -> bool:
        """See Channel.strayed. An operation is about one name, so the link follows it to where that is now."""
        beacon = address.beacon
        belongs = beacon.astray(address.place, fault) if beacon is not None else None
        if belongs is None or poll is DISCARD:
            return False
        slot, place, asking = belongs
        if asking and (poll.width if type(poll) is not Answer else 1) > 1:
            return False  # each of its commands would have to be asked for: sooner or later the move is over
        if self.group.n == 1:
            self._astray.append(Astray(poll, payload, slot, place, asking, fault))
        elif not asking:
            self._point(self.links[index], slot, place)
        return self.group.n == 1

    def _point(self, link: Link, slot: int, place: Place) -> None:
        """Look for the link's node elsewhere from now on."""
        shard: Any = link.address.beacon
        shard.slot, shard.wish = slot, place
        self.wandered = True
        if link.sock is not None:
            hang_up(link.sock)

    def _follow(self, stray: Astray, seconds: float | None) -> None:
        link = self.links[0]
        if stray.asking:
            reply = self._detour(stray.place, stray.slot, stray.payload)
        else:
            self.torn = True
            self._point(link, stray.slot, stray.place)
            if link.channel is not None:
                self._down(link, stray.fault)
            self.torn = False
            self.connect(1, CONNECT_TIMEOUT if seconds is None else seconds)
            if link.channel is not None:
                self._send(link, stray.payload, stray.poll)
                return
            reply = link.fault or NOT_CONNECTED
        if type(stray.poll) is Answer:
            stray.poll.set_result(reply)
        else:
            stray.poll.add(0, reply)

    def ask_in_passing(self, payload: bytes, patience: float) -> Any:
        """Ask the only node for a key of a slot that is just being moved to it."""
        link = self.links[0]
        if link.channel is None:
            self.connect(1, patience)
        if link.channel is None:
            return link.fault or NOT_CONNECTED
        answer = Answer()
        self._send(link, ASKING, DISCARD)
        if link.channel is None:
            return link.fault or NOT_CONNECTED
        self._send(link, payload, answer)
        return self._wait_for(answer, time.monotonic() + patience)
