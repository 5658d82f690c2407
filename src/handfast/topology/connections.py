"""Open connections to servers that may move: when one is known to be elsewhere, those to its old place are hung up.

Whoever uses such a connection finds it closed, which it must be able to deal with anyway, and looks for the server anew.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

__all__ = ["Connections", "Place"]

Place = tuple[str, int]


class Connections:
    """Used by any thread; a connection that nobody has any more is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakKeyDictionary[Any, tuple[Any, Place, Callable[[Any], None]]] = weakref.WeakKeyDictionary()

    def opened(self, connection: Any, wish: Any, place: Place, hang_up: Callable[[Any], None]) -> None:
        """`wish` says to whom it was to be."""
        with self._lock:
            self._open[connection] = (wish, place, hang_up)

    def hang_up(self, misplaced: Callable[[Any, Place], bool]) -> None:
        """End those that are, by wish and place."""
        with self._lock:
            ending = [(each, how) for each, (wish, place, how) in self._open.items() if misplaced(wish, place)]
            for connection, _ in ending:
                del self._open[connection]
        for connection, how in ending:
            how(connection)
