"""Routes what nodes push to the listeners that wait for it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from handfast.core.effects import Watch

__all__ = ["PushRouter", "TaskWakeup"]


class TaskWakeup:
    """Wakes one task."""

    __slots__ = ("future", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self.future: Any = None
        """What the task waits on while it is parked: it has `over` and `set_result`."""

    def set(self) -> None:
        if self.future is None:
            self.is_set = True
        elif not self.future.over:
            self.future.set_result(None)

    def note(self) -> None:
        self.set()


class PushRouter:
    """The part of the connections that listens; only used by the thread that uses them."""

    def __init__(self) -> None:
        self._watches: dict[bytes, list[Watch]] = {}
        """By key."""
        self.mail: dict[bytes, Watch] = {}
        """See Effects.mail."""
        self.channel = b""
        """See Effects.channel."""
        self.suspends = True
        """See Effects.suspends."""

    def share_listeners(self, watches: dict[bytes, list[Watch]], mail: dict[bytes, Watch]) -> None:
        """Share the listeners of other connections, before anybody listens: each hears what is pushed to any of them."""
        self._watches, self.mail = watches, mail

    if TYPE_CHECKING:

        def park(self, bell: Any, until: float | None) -> Awaitable[None]:
            """The driver's; see Effects."""
            ...

    def hear(self, watch: Watch, until: float | None) -> Any:
        """See Effects.hear."""
        return self.park(watch.bell, until)

    def hail(self, payload: bytes, patience: float, watch: Watch, briefly: float) -> Any:
        """See Effects.hail."""
        raise NotImplementedError("of drivers that do not suspend")

    def watch(self, watch: Watch) -> None:
        """See Effects.watch."""
        for key in watch.keys:
            self._watches.setdefault(key, []).append(watch)

    def unwatch(self, watch: Watch) -> None:
        """See Effects.unwatch."""
        for key in watch.keys:
            watches = self._watches.get(key, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watches.pop(key, None)

    def pushed(self, node: int, push: Any) -> None:
        """A node has said something of its own accord."""
        kind = push[0]
        if kind == b"message":
            words = push[2].split(b" ", 3)
            watch = self.mail.get(words[-1])
            if watch is not None:
                watch.message = words
                watch.bell.note()
        elif kind == b"invalidate":
            if push[1] is None:  # FLUSHALL: everything has changed
                self._all_changed(node)
                return
            for key in push[1]:
                for watch in self._watches.get(key, ()):
                    watch.changed.add(node)
                    watch.bell.note()

    def connection_lost(self, node: int) -> None:
        """A node's connection was lost, and with it what it would have told us."""
        self.channel = b""
        self._all_changed(node)

    def _all_changed(self, node: int) -> None:
        for watch in [each for watches in self._watches.values() for each in watches] + list(self.mail.values()):
            watch.changed.add(node)
            watch.bell.note()
