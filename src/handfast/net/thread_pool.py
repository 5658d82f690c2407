"""The pools from which threads borrow connections: each operation has a ThreadIO that no other thread uses.

An operation takes an idle ThreadIO, or makes one, and gives it back when it ends. The lists of idle ones change by single
atomic steps, so threads need no lock. `ThreadPool` is for nodes that have all names; cluster_pool.py has the pool for
clusters, where each name has its own node.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeVar

from handfast.core.handshake import Steps
from handfast.core.nodes import NodeGroup
from handfast.errors import ConfigError
from handfast.net.address import Address
from handfast.net.threads import ThreadAccess, ThreadIO, run
from handfast.net.threads_connections import IDLE_CHECK

__all__ = ["SPARE", "BasePool", "ThreadPool"]

T = TypeVar("T")
SPARE: Final = 16
"""How many idle ThreadIO objects a pool keeps, in a cluster for each route. A burst of threads makes more for a while."""


class BasePool:
    """What the client for threads needs of its connections."""

    def __init__(self, group: NodeGroup, shake: Callable[[int], Steps]) -> None:
        self._group = group
        self._shake = shake
        self.closed = False
        """No more connections are made, and those that are given back are closed."""

    def access(self, key: bytes) -> ThreadAccess:
        """How an acquisition of this key reaches the nodes."""
        raise NotImplementedError

    def borrow_for(self, key: bytes) -> Any:
        """Connections to the nodes that have the key. `give_back` must follow."""
        raise NotImplementedError

    def use(self, key: bytes, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an operation with connections to the nodes that have the key."""
        return self.use_taken(self.borrow_for(key), operation, *args)

    def use_taken(self, io: Any, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        """Run an operation with connections that the caller has taken out of the pool, and give them back."""
        try:
            return run(operation(io, *args))
        finally:
            self.give_back(io)

    def wake(self, io: Any) -> None:
        """Notice connections that the server has closed while they were idle."""
        try:
            io.wake()
        except BaseException:  # an interrupt; otherwise its sockets would stay open
            self.give_back(io)
            raise

    def take(self, io: ThreadIO) -> bool:
        """Take the connections of an earlier operation out of the pool. False if they cannot be had, because another
        thread uses them, or because the pool keeps connections by route."""
        return False

    def give_back(self, io: Any) -> None:
        """Keep connections for the next operation, or close them if they cannot be used again."""
        raise NotImplementedError

    def take_idle(self) -> ThreadIO | None:
        """Idle connections on which every name can be released, or None."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the idle connections. Those in use are closed when they are given back."""
        raise NotImplementedError

    def forked(self) -> None:
        """Forget all connections in the child after a fork: they belong to the parent."""
        raise NotImplementedError

    @staticmethod
    def _refusal() -> ConfigError:
        return ConfigError("this client is closed; connect() makes a new one")


class ThreadPool(BasePool, ThreadAccess):
    """Connections to nodes that have all names, so any ThreadIO will do for any key. It is its own Access."""

    def __init__(self, group: NodeGroup, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> None:
        super().__init__(group, shake)
        self._addresses = addresses
        self._idle: list[ThreadIO] = []

    def access(self, key: bytes) -> ThreadAccess:
        return self

    def borrow(self) -> ThreadIO:
        """See Access."""
        try:
            io = self._idle.pop()
        except IndexError:
            if self.closed:
                raise self._refusal() from None
            return ThreadIO(self._group, self._addresses, self._shake)
        if time.monotonic() - io.used_at > IDLE_CHECK:
            self.wake(io)
        return io

    def borrow_for(self, key: bytes) -> ThreadIO:
        return self.borrow()

    def take(self, io: ThreadIO) -> bool:
        try:
            self._idle.remove(io)
        except ValueError:
            return False
        if time.monotonic() - io.used_at > IDLE_CHECK:
            self.wake(io)
        return True

    def give_back(self, io: ThreadIO) -> None:
        if io.inconsistent:
            io.abandon()
        elif self.closed or len(self._idle) >= SPARE:
            io.close()
        else:
            self._idle.append(io)

    def take_idle(self) -> ThreadIO | None:
        return self._idle.pop() if self._idle else None

    def close(self) -> None:
        self.closed = True
        while self._idle:
            self._idle.pop().close()

    def forked(self) -> None:
        while self._idle:
            self._idle.pop().abandon()
