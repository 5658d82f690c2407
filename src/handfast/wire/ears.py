"""What the nodes of a lane push without being asked, and who wants to hear it."""

from __future__ import annotations

from typing import Any

from handfast.core.effects import Watch

__all__ = ["Ears"]


class Ears:
    """The part of a lane that listens; only used by the thread that uses the lane."""

    def __init__(self) -> None:
        self._watches: dict[bytes, list[Watch]] = {}
        """By key, or by the owner that messages are for."""

    def watch(self, watch: Watch) -> None:
        """See Effects.watch."""
        for word in watch.words:
            self._watches.setdefault(word, []).append(watch)

    def unwatch(self, watch: Watch) -> None:
        """See Effects.unwatch."""
        for word in watch.words:
            watches = self._watches.get(word, [])
            if watch in watches:
                watches.remove(watch)
            if not watches:
                self._watches.pop(word, None)

    def pushed(self, node: int, push: Any) -> None:
        """A node has said something of its own accord."""
        if not self._watches:
            return
        kind = push[0]
        if kind == b"invalidate":
            if push[1] is None:  # FLUSHALL: everything has changed
                self.deaf(node)
                return
            for key in push[1]:
                for watch in self._watches.get(key, ()):
                    watch.changed.add(node)
                    watch.bell.note()
        elif kind == b"message":
            owner = push[2].split(b" ", 2)[-1]
            for watch in self._watches.get(owner, ()):
                watch.message = push[2]
                watch.bell.note()

    def deaf(self, node: int) -> None:
        """A node's connection was lost, and with it what it would have told us; or it has told us to forget all."""
        for watches in list(self._watches.values()):
            for watch in watches:
                watch.changed.add(node)
                watch.bell.note()
