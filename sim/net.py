"""The network: connections keep order, and can be slow, lossy, partitioned or cut.

What is sent on one connection in one direction arrives in order, or not at all; between connections there is no order.
A lost packet is sent again, so loss is delay. A partition holds back what is sent, in both directions or in one; when it
heals, that arrives in a burst. A connection that a client gave up during a partition may still deliver its bytes long
after: an orphan is a write whose sender no longer waits. The server sees the end of a connection as late as everything
else, so half-open connections need no separate fault.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from handfast.protocol.scripts import SHA
from sim.world import Actor, World

__all__ = ["Net", "Server", "TcpConnection", "UserEnd"]

RESENT: Final = 0.2
"""Seconds after which a lost packet is sent again, doubled with each loss, as on Linux."""
ORPHANS: Final = 0.5
"""The probability that bytes held back on a connection are delivered after the client has given it up."""


_ACQUIRE: Final = (SHA["claim"], SHA["acquire_all"], b"\r\nNX\r\n")
"""The commands that acquire a lock."""


class UserEnd(Protocol):
    """The client's end of a connection: a link to a node."""

    def accepted(self, tcp: TcpConnection) -> None: ...
    def refused(self, tcp: TcpConnection) -> None: ...
    def received(self, tcp: TcpConnection, data: bytes) -> None: ...
    def broken(self, tcp: TcpConnection) -> None: ...


class Server(Protocol):
    """The server's end of a connection."""

    index: int
    actor: Actor

    def dialled(self, tcp: TcpConnection) -> None: ...
    def receive(self, tcp: TcpConnection, data: bytes) -> None: ...
    def left(self, tcp: TcpConnection) -> None: ...


class TcpConnection:
    """One TCP connection from a client's link to a server."""

    __slots__ = ("end", "handled", "last", "net", "open", "out", "sent", "server", "stuck", "user", "where")

    def __init__(self, net: Net, where: int, user: Actor, end: UserEnd, server: Server) -> None:
        self.net = net
        self.where = where
        """The client, by number."""
        self.user = user
        self.end = end
        self.server = server
        self.open = True
        """The client has not given it up."""
        self.last = [0.0, 0.0]
        """Down, up: the time at which the last bytes arrive."""
        self.stuck: tuple[deque[Any], deque[Any]] = (deque(), deque())
        """Down, up: the bytes that are held back."""
        self.sent = self.handled = 0
        """Writes of the client, and how many of them the server has received."""
        self.out: list[bytes] | None = None
        """For the server: the replies to the write that it is processing."""

    def send(self, data: bytes) -> None:
        self.sent += 1
        if self.net.on_send is not None:
            self.net.on_send(self, data)
        self.net.carry(self, 1, self.server.receive, data)

    def reply(self, data: bytes) -> None:
        if self.out is not None:
            self.out.append(data)
        else:
            self.net.carry(self, 0, self.end.received, data)

    def break_off(self) -> None:
        """The server closes the connection."""
        self.net.carry(self, 0, self.end.broken)

    def give_up(self) -> None:
        """The client closes the connection."""
        if self.open:
            self.open = False
            stuck = self.stuck[1]
            if stuck and self.net.world.rng.random() > ORPHANS:
                stuck.clear()
            self.net.carry(self, 1, self.server.left)


class Net:
    """All connections, and what the faults do to them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.base = 0.0005
        """Seconds one way."""
        self.jitter = 0.0003
        self.slow = 0.0
        """How often a write is slow; `slowest` is the longest delay."""
        self.slowest = 0.0
        self.loss = 0.0
        self.ttl = float("inf")
        """Bytes that travel for longer than this are late."""
        self.on_send: Callable[[TcpConnection, bytes], None] | None = None
        """Called for each write of a client before the network carries it."""
        self.far: dict[tuple[int, int], float] = {}
        """Additional seconds, by client and node."""
        self._cut: set[tuple[int, int, int]] = set()
        """Client, node, direction. Never iterated over, because the order of a set would make runs differ."""
        self._connections: dict[TcpConnection, None] = {}

    def dial(self, where: int, user: Actor, end: UserEnd, server: Server) -> TcpConnection:
        tcp = TcpConnection(self, where, user, end, server)
        self._connections[tcp] = None
        self.carry(tcp, 1, server.dialled)
        return tcp

    def carry(self, tcp: TcpConnection, up: int, call: Callable[..., Any], *args: Any) -> None:
        """Delivers something to the other end."""
        stuck = tcp.stuck[up]
        if stuck or (self._cut and (tcp.where, tcp.server.index, up) in self._cut):
            stuck.append((self.world.now, call, args))
            return
        world, last = self.world, tcp.last
        if self.far or self.slow or self.loss:
            at = world.now + self._delay(tcp)
        else:
            at = world.now + (self.base + self.jitter * world.rng.random())
        if at < last[up]:
            at = last[up]
        last[up] = at
        if at - world.now > self.ttl and args:
            self._late(up, args[0])
        (tcp.server.actor if up else tcp.user).at(at, call, tcp, *args)

    def _late(self, up: int, data: bytes) -> None:
        if not up:
            self.world.happened["4"] += 1
        elif any(each in data for each in _ACQUIRE):
            self.world.happened["5"] += 1

    def _delay(self, tcp: TcpConnection) -> float:
        chance = self.world.rng.random
        delay = self.base + self.jitter * chance()
        if self.far:
            delay += self.far.get((tcp.where, tcp.server.index), 0.0)
        if self.slow and chance() < self.slow:
            delay += self.slowest * chance() ** 2
        if self.loss:
            wait = RESENT
            while chance() < self.loss:
                delay += wait
                wait *= 2
        return delay

    def cut(self, where: int, node: int, *, up: bool = True, down: bool = True) -> None:
        self._cut |= {(where, node, way) for way, wanted in ((1, up), (0, down)) if wanted}

    def repair(self, where: int, node: int) -> None:
        self._cut -= {(where, node, 0), (where, node, 1)}
        self.flow()

    def repair_all(self) -> None:
        self._cut.clear()
        self.slow = self.loss = 0.0
        self.far.clear()
        self.flow()

    def flow(self) -> None:
        """Sends the bytes that were held back, on connections that are no longer cut."""
        for tcp in self._connections:
            for up in (0, 1):
                stuck = tcp.stuck[up]
                if stuck and (tcp.where, tcp.server.index, up) not in self._cut:
                    held = list(stuck)
                    stuck.clear()
                    for since, call, args in held:
                        if args and self.world.now - since > self.ttl:
                            self._late(up, args[0])
                        self.carry(tcp, up, call, *args)

    def ended(self, tcp: TcpConnection) -> None:
        """Both ends have closed it."""
        self._connections.pop(tcp, None)

    def connections(self) -> list[TcpConnection]:
        return [each for each in self._connections if each.open]
