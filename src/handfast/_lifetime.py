"""How a client ends if no caller closes it: by garbage collection, by a fork, or with the process.

A client that is collected leaves `Belongings`, which another thread closes. A child after a fork starts every client
anew, because connections and leases belong to the parent. At the end of the process the waiters of all clients leave
before the leases are released, so that no lock goes to a waiter of this process.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from handfast.core.nodes import NodeGroup
from handfast.discovery.endpoints import Endpoints

if TYPE_CHECKING:
    from handfast.watchdog import Watchdog

__all__ = ["Belongings", "clients"]


class Living(Protocol):
    """What a client does at a fork and at the end of the process."""

    _closed: bool
    _dog: Watchdog | None

    def _forked(self) -> None: ...

    def _send_waiters_away(self) -> None: ...

    def _release_all_at_exit(self, dog: Watchdog) -> None: ...


clients: weakref.WeakSet[Living] = weakref.WeakSet()
"""The clients of this process."""


class Belongings:
    """The objects that must be closed with a client, even if the caller never closes it. It holds no reference to the
    client, not even an indirect one."""

    def __init__(self, group: NodeGroup, where: Endpoints) -> None:
        self.group = group
        self.where = where
        self.dog: Watchdog | None = None
        self.end_connections: Callable[[], None] = lambda: None

    def collected(self) -> None:
        """Close everything after the client was garbage-collected. A collection may happen anywhere, even while this
        thread holds a lock that closing takes, so another thread does it."""
        if not sys.is_finalizing():
            try:
                _thread.start_new_thread(self._end, ())
            except RuntimeError:
                pass  # the process ends, and closes its connections

    def _end(self) -> None:
        try:
            if self.dog is not None:
                self.dog.unregister(self.group)
            self.end_connections()
        finally:
            self.where.close()


def _after_fork() -> None:
    for client in list(clients):
        client._forked()


@atexit.register
def _at_exit() -> None:
    open_clients = [client for client in list(clients) if not client._closed]
    for client in open_clients:
        client._send_waiters_away()
    for client in open_clients:
        if client._dog is not None:
            client._release_all_at_exit(client._dog)


os.register_at_fork(after_in_child=_after_fork)
