"""A TCP proxy in front of a server, which imitates a bad network.

"Up" is from the client to the server, "down" is back. Faults can be switched at any time. They apply to old and new
connections as soon as the method returns, and add up until `heal`. Only `drop` loses bytes. Bytes that the other faults
hold back go on, in order, after `heal`. A TCP stream cannot go on with a hole in it, so `heal` resets the connections
that have lost bytes.

The proxy runs in a thread of its own: a test may block its event loop.
"""

from __future__ import annotations

import asyncio
import math
import socket
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Protocol, Self, TypeVar
from urllib.parse import urlsplit

from ..discovery.urls import parse
from .link import Faults, Flow, Link, Way
from .servers import LOOPBACK, reserve_port
from .started import Started

__all__ = ["Flow", "Proxy"]

PATIENCE: Final = 10.0
"""Seconds that the proxy's thread has to carry out a call."""

T = TypeVar("T")


class HasUrl(Protocol):
    """A Server, or another Proxy."""

    @property
    def url(self) -> str: ...


class Proxy(Started):
    """Use it as `with Proxy(server) as proxy:`, and connect to `proxy.url`. The target is a URL, or has one."""

    def __init__(self, target: str | HasUrl) -> None:
        url = target if isinstance(target, str) else target.url
        self._target = parse(url)
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._url = _moved(url, self.port)
        self._up, self._down = Way(), Way()
        self._accepted = 0
        self._links: set[Link] = set()
        self._listener: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._thread = threading.Thread(target=self._run, name="handfast-proxy", daemon=True)
        self._ready = threading.Event()

    @property
    def url(self) -> str:
        """The target's URL with the proxy's host and port: its scheme, its credentials, its options."""
        return self._url

    # -- faults: in both directions, or only in the given one

    def delay(self, seconds: float, *, up: bool | None = None, down: bool | None = None) -> None:
        """Delay all bytes by so many seconds."""
        if not seconds >= 0:
            raise ValueError(f"a delay is 0 seconds or more, not {seconds!r}")
        self._change(up, down, lambda faults: replace(faults, delay=seconds))

    def drop(self, *, up: bool | None = None, down: bool | None = None) -> None:
        """Lose all bytes, silently."""
        self._change(up, down, lambda faults: replace(faults, drop=True))

    def drip(self, size: int = 1, every: float = 0.1, *, up: bool | None = None, down: bool | None = None) -> None:
        """Let `size` bytes pass at a time, `every` so many seconds."""
        if size < 1 or not every >= 0:
            raise ValueError(f"drip() takes 1 byte or more and 0 seconds or more, not {size!r} and {every!r}")
        self._change(up, down, lambda faults: replace(faults, size=size, every=every))

    def half_open(self) -> None:
        """Keep connections and accept new ones, but let nothing pass, not even the end of a connection."""
        self.delay(math.inf)

    def reset(self, after: int | None = None) -> int:
        """Reset the connections that are open now, and return their number. `after`: reset each one after so many more
        bytes down; 0 means at the next reply, before its first byte."""
        if after is not None and after < 0:
            raise ValueError(f"a connection is reset after 0 bytes or more, not {after!r}")
        return self._do(self._reset(after))

    def refuse(self) -> None:
        """Refuse new connections. Open connections stay open."""
        self._do(self._close_door())

    def heal(self) -> None:
        """End all faults. Bytes that were held back go on at once."""
        self._do(self._heal())

    # -- counters

    @property
    def accepted(self) -> int:
        """The number of connections accepted so far."""
        return self._accepted

    @property
    def connections(self) -> int:
        """The number of connections that are open now."""
        return len(self._links)

    @property
    def up(self) -> Flow:
        """Counts the bytes that clients sent."""
        return self._up.flow

    @property
    def down(self) -> Flow:
        """Counts the bytes that the server sent."""
        return self._down.flow

    # -- start and end

    def start(self) -> Self:
        self._thread.start()
        if not self._ready.wait(PATIENCE):
            raise TimeoutError("the proxy's thread did not start")
        self._do(self._open_door())
        return self

    def close(self) -> None:
        """End all connections. A closed proxy cannot be started again."""
        if self._thread.is_alive() and self._loop is not None and self._end is not None:
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join(PATIENCE)
        self._reserved.close()

    def __repr__(self) -> str:
        return f"<Proxy {LOOPBACK}:{self.port} to {self._target.label}>"

    # -- from the caller's thread to the proxy's

    def _change(self, up: bool | None, down: bool | None, how: Callable[[Faults], Faults]) -> None:
        # Without arguments both directions are meant; `up=True` means only up, `up=False` only down.
        ups = up if up is not None else not down
        downs = down if down is not None else not up
        self._do(self._set([way for way, meant in ((self._up, ups), (self._down, downs)) if meant], how))

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or not self._thread.is_alive():
            work.close()
            raise RuntimeError("the proxy is not running: use it in a `with`, or call start()")
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE)

    def _run(self) -> None:
        asyncio.run(self._live())

    # -- in the proxy's thread

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._ready.set()
        await self._end.wait()
        await self._close_door()
        await self._reset(None)

    async def _open_door(self) -> None:
        if self._listener is not None:
            return
        if sys.platform != "linux":
            self._reserved.close()  # other systems refuse a second bind to the port
        listener = self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, self.port))
        listener.listen(128)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def _close_door(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:
            return  # the client was gone before it was accepted
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(client, self._target, self._up, self._down)
        self._accepted += 1
        self._links.add(link)
        link.task.add_done_callback(lambda _: self._links.discard(link))

    async def _set(self, ways: list[Way], how: Callable[[Faults], Faults]) -> None:
        for way in ways:
            way.faults = how(way.faults)
        for link in self._links:
            link.ring()

    async def _reset(self, after: int | None) -> int:
        links = list(self._links)
        if after is None:
            await asyncio.gather(*[link.reset() for link in links])
        for link in links:
            link.down.fuse = after
        return len(links)

    async def _heal(self) -> None:
        await asyncio.gather(*[link.reset() for link in self._links if link.torn])
        for link in self._links:
            link.down.fuse = None
        await self._set([self._up, self._down], lambda _: Faults())
        await self._open_door()


def _moved(url: str, port: int) -> str:
    """The URL with the proxy's host and port."""
    parts = urlsplit(url.strip())
    login, at, _ = parts.netloc.rpartition("@")
    unix = parts.scheme == "unix"
    query = f"?{parts.query}" if parts.query else ""
    return f"{'redis' if unix else parts.scheme}://{login}{at}{LOOPBACK}:{port}{'' if unix else parts.path}{query}"
