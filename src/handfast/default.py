"""The default clients, for `handfast.lock("name")` in scripts. `connect()` without arguments makes them on first use.

All threads of a process share one client. Its leases are released when the process ends, like those of every client. All
tasks of an event loop share one client, which is closed with the loop. A child after a fork makes its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from handfast.errors import ConfigError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

__all__ = ["PerLoop", "PerProcess"]


class Closes(Protocol):
    """The method of an asyncio client that is needed here."""

    async def close(self) -> None: ...


C = TypeVar("C")
A = TypeVar("A", bound=Closes)
_forgetting: list[Callable[[], None]] = []
"""Functions to call in a child after a fork."""
_inherited: list[Any] = []
"""Objects that a child has inherited. They are kept, because closing them would wake the parent's event loop."""


class PerProcess(Generic[C]):
    """One client for the process."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._forget()
        _forgetting.append(self._forget)

    def _forget(self) -> None:
        self._client: C | None = None
        self._lock = threading.Lock()

    def get(self) -> C:
        with self._lock:
            if self._client is None:
                self._client = self._make()
            return self._client


class PerLoop(Generic[A]):
    """One client for each event loop."""

    def __init__(self, make: Callable[[], A]) -> None:
        self._make = make
        self._forget()
        _forgetting.append(self._forget)

    def _forget(self) -> None:
        # No lock is needed: only the thread of a loop reads or changes the entry of that loop.
        self._clients: dict[AbstractEventLoop, tuple[A, AsyncGenerator[None, None]]] = {}
        _inherited.append(self._clients)

    def get(self) -> A:
        import asyncio

        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "handfast.aio.lock() needs a running event loop, whose client it uses: call it in a coroutine"
            ) from None
        known = self._clients.get(loop)
        if known is None:
            for ended in [each for each in list(self._clients) if each.is_closed()]:
                self._clients.pop(ended, None)  # a loop that was closed without closing its generators
            client = self._make()
            known = self._clients[loop] = client, self._kept(loop, client)
            try:
                known[1].__anext__().send(None)  # run it up to its yield; it awaits nothing before
            except StopIteration:
                pass
        return known[0]

    async def _kept(self, loop: AbstractEventLoop, client: A) -> AsyncGenerator[None, None]:
        """Closes the client when the loop shuts down its asynchronous generators, as asyncio.run() does at its end."""
        try:
            yield
        finally:
            self._clients.pop(loop, None)
            await client.close()


def _after_fork() -> None:
    for forget in _forgetting:
        forget()


os.register_at_fork(after_in_child=_after_fork)
