"""The open connections to servers that may move. When a server moves, the connections to its old address are closed.

The user of such a connection finds it closed, and looks for the server again. It must be able to do that anyway.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Connections", "HostPort"]

HostPort = tuple[str, int]


class Connections:
    """The open connections to one cluster, or to one master. Any thread may use it. It holds weak references only."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[Any, tuple[Any, HostPort, Callable[[Any], None]]] = (
            weakref.WeakKeyDictionary()
        )

    def opened(self, connection: Any, resolver: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """Register a connection. `resolver` knows which server it should lead to."""
        with self._lock:
            self._open[connection] = (resolver, host_port, hang_up)

    def hang_up(self, misplaced: Callable[[Any, HostPort], bool]) -> None:
        """Close the connections that `misplaced` selects."""
        with self._lock:
            ending = [
                (each, how) for each, (resolver, host_port, how) in self._open.items() if misplaced(resolver, host_port)
            ]
            for connection, _ in ending:
                del self._open[connection]
        for connection, how in ending:
            how(connection)
