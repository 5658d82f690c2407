"""One connection through a proxy: two pumps, one for each direction.

A pump keeps all received bytes, in order and with their time of arrival, and passes them on when it may: at once, after a
delay, a few bytes at a time, or never. It keeps the end of a stream in that order as well, so a silent network does not
pass on a closed connection. A pump reads the faults before it passes anything on, so a new fault applies at once.

Everything here runs on the proxy's loop.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
from collections import deque
from dataclasses import dataclass
from typing import Final

from ..net.address import Address

__all__ = ["CHUNK", "Faults", "Flow", "Link", "Way"]

CHUNK: Final = 65536
ABRUPTLY: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER that makes close() reset the connection."""


@dataclass(frozen=True)
class Faults:
    """The faults of one direction."""

    delay: float = 0.0
    drop: bool = False
    size: int = CHUNK
    """Bytes that pass at a time; `every` is the seconds in between."""
    every: float = 0.0


@dataclass(frozen=True)
class Flow:
    """Counts the bytes of one direction, over all connections so far."""

    passed: int = 0
    held: int = 0
    """Bytes that are held back now."""
    swallowed: int = 0


class Way:
    """One direction of all connections: its faults and its counters."""

    def __init__(self) -> None:
        self.faults = Faults()
        self.flow = Flow()

    def count(self, *, passed: int = 0, held: int = 0, swallowed: int = 0) -> None:
        flow = self.flow
        self.flow = Flow(flow.passed + passed, flow.held + held, flow.swallowed + swallowed)


class Pump:
    """One direction of one connection."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.bell = asyncio.Event()
        """Set when bytes arrive, or the faults change."""
        self.torn = False
        """Bytes were lost."""
        self.fuse: int | None = None
        """How many more bytes pass before the connection is reset."""
        self._kept: deque[tuple[float, bytes]] = deque()
        self._last: tuple[float, Faults] = (-math.inf, way.faults)
        """When bytes last passed, and under which faults."""

    async def take(self, source: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        data = b"not the end"
        while data:
            try:
                data = await loop.sock_recv(source, CHUNK)
            except OSError:
                data = b""  # a reset ends the stream as well
            self._kept.append((loop.time(), data))
            self.way.count(held=len(data))
            self.bell.set()

    async def give(self, sink: socket.socket) -> None:
        while True:
            await self._due()
            data = self._next()
            if self.way.faults.drop:
                self.way.count(swallowed=len(data))
                self.torn = True
            elif data:
                await self._pass(data, sink)
            else:
                sink.shutdown(socket.SHUT_WR)
                return

    async def connectable(self) -> None:
        """Wait until this direction lets bytes pass."""
        while self.way.faults.delay == math.inf:
            self.bell.clear()
            await self.bell.wait()

    def empty(self) -> None:
        """Drop all bytes that are held back."""
        self.way.count(held=-sum(len(data) for _, data in self._kept))
        self._kept.clear()

    async def _due(self) -> None:
        """Wait until the oldest bytes may pass."""
        loop = asyncio.get_running_loop()
        while True:
            self.bell.clear()
            faults = self.way.faults
            came = self._kept[0][0] if self._kept else math.inf
            last, under = self._last
            # A drip begins with bytes, not with a pause.
            left = max(came + faults.delay, last + faults.every if under is faults else 0.0) - loop.time()
            if left <= 0:
                return
            try:
                async with asyncio.timeout(left if left < math.inf else None):
                    await self.bell.wait()
            except TimeoutError:
                pass

    def _next(self) -> bytes:
        came, data = self._kept.popleft()
        faults = self.way.faults
        size = faults.size
        if len(data) > size:
            self._kept.appendleft((came, data[size:]))
        self._last = (asyncio.get_running_loop().time(), faults)
        self.way.count(held=-len(data[:size]))
        return data[:size]

    async def _pass(self, data: bytes, sink: socket.socket) -> None:
        data = data[: self.fuse]
        # Count first: a test that has the reply must find it counted.
        self.way.count(passed=len(data))
        if self.fuse is not None:
            self.fuse -= len(data)
        await asyncio.get_running_loop().sock_sendall(sink, data)
        if self.fuse == 0:
            raise ConnectionResetError("reset as requested")


class Link:
    """The connection of one client, and the proxy's connection to the server."""

    def __init__(self, client: socket.socket, target: Address, up: Way, down: Way) -> None:
        self.up, self.down = Pump(up), Pump(down)
        self._client = client
        self._target = target
        self._server: socket.socket | None = None
        self._in_order = False
        self.task = asyncio.get_running_loop().create_task(self._run())
        # Not in the task itself: a task that is cancelled before its first step never runs.
        self.task.add_done_callback(self._close)

    @property
    def torn(self) -> bool:
        return self.up.torn or self.down.torn

    def ring(self) -> None:
        self.up.bell.set()
        self.down.bell.set()

    async def reset(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])

    async def _run(self) -> None:
        try:
            await self.up.connectable()
            await self._connect()
            self._in_order = await self._pump()
        except OSError:
            pass  # the server does not accept connections

    def _close(self, _: asyncio.Task[None]) -> None:
        for sock in (self._client, self._server):
            if sock is not None:
                if not self._in_order:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABRUPTLY)
                sock.close()
        self.up.empty()
        self.down.empty()

    async def _connect(self) -> None:
        target = self._target
        family = socket.AF_UNIX if target.path else socket.AF_INET6 if ":" in target.host else socket.AF_INET
        self._server = socket.socket(family, socket.SOCK_STREAM)
        self._server.setblocking(False)
        if not target.path:
            self._server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(self._server, target.path or (target.host, target.port))

    async def _pump(self) -> bool:
        """Run both directions to their ends. True if both streams ended normally."""
        assert self._server is not None
        ended = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.up.take(self._client))
                group.create_task(self.up.give(self._server))
                group.create_task(self.down.take(self._server))
                group.create_task(self.down.give(self._client))
        except* OSError:
            ended = False
        return ended
