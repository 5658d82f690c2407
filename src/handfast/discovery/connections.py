"""Open connections to servers that may move: when one is known to be elsewhere, those to its old address are hung up.

Whoever uses such a connection finds it closed, which it must be able to deal with anyway, and looks for the server anew.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Connections", "HostPort"]

HostPort = tuple[str, int]


class Connections:
    """Used by any thread; a connection that nobody has any more is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[Any, tuple[Any, HostPort, Callable[[Any], None]]] = (
            weakref.WeakKeyDictionary()
        )

    def opened(self, connection: Any, resolver: Any, host_port: HostPort, hang_up: Callable[[Any], None]) -> None:
        """`resolver` says which server it is to be."""
        with self._lock:
            self._open[connection] = (resolver, host_port, hang_up)

    def hang_up(self, misplaced: Callable[[Any, HostPort], bool]) -> None:
        """End those that `misplaced` selects."""
        with self._lock:
            ending = [
                (each, how) for each, (resolver, host_port, how) in self._open.items() if misplaced(resolver, host_port)
            ]
            for connection, _ in ending:
                del self._open[connection]
        for connection, how in ending:
            how(connection)
