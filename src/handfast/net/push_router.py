"""Routes what nodes push to the listeners that wait for it: messages by the id in them, invalidations by key."""

from __future__ import annotations

from typing import Any

from handfast.core.io import Fault, PushListener
from handfast.core.nodes import Node
from handfast.net.connection import Connection
from handfast.protocol.claims import decode_push

__all__ = ["PushRouter", "TaskWakeup"]


class TaskWakeup:
    """Wakes one task."""

    __slots__ = ("future", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self.future: Any = None
        """What the task waits on: it has `over` and `set_result`."""

    def set(self) -> None:
        if self.future is None:
            self.is_set = True
        elif not self.future.over:
            self.future.set_result(None)

    def set_here(self) -> None:
        self.set()


class PushRouter:
    """The part of the connections that listens. Only the thread that uses the connections uses it."""

    def __init__(self, nodes: int) -> None:
        self._tracked: dict[bytes, list[PushListener]] = {}
        """By key."""
        self.mailbox: dict[bytes, PushListener] = {}
        """See IO.mailbox."""
        self.channels: list[bytes] = [b""] * nodes
        """See IO.channels."""

    def share_listeners(self, tracked: dict[bytes, list[PushListener]], mailbox: dict[bytes, PushListener]) -> None:
        """Share the listeners of other connections, before anybody listens: any of them may get any push."""
        self._tracked, self.mailbox = tracked, mailbox

    def track(self, listener: PushListener) -> None:
        """See IO.track."""
        for key in listener.keys:
            self._tracked.setdefault(key, []).append(listener)

    def untrack(self, listener: PushListener) -> None:
        """See IO.untrack."""
        for key in listener.keys:
            listeners = self._tracked.get(key, [])
            if listener in listeners:
                listeners.remove(listener)
            if not listeners:
                self._tracked.pop(key, None)

    def subscribed(self, node: Node, connection: Connection | None, fault: Fault | None) -> None:
        """A node has answered a subscription. Where it refuses for good, nobody can queue."""
        if connection is not None:
            self.channels[node.index] = connection.channel
            if fault is not None and fault.lasting:
                node.no_push = fault

    def listen_to(self, connection: Connection) -> None:
        """A new connection: route what it pushes."""
        connection.on_push = self._pushed

    def _pushed(self, node: int, push: Any) -> None:
        kind = push[0]
        if kind == b"message":
            message = decode_push(push[2])
            listener = self.mailbox.get(message.id) if message is not None else None
            if listener is not None:
                listener.on_push(node, message)
        elif kind == b"invalidate":
            if push[1] is None:  # FLUSHALL: everything has changed
                for listener in self._listeners():
                    listener.on_change(node)
                return
            for key in push[1]:
                for listener in list(self._tracked.get(key, ())):
                    listener.on_change(node)

    def connection_lost(self, node: int) -> None:
        """A node's connection was lost, and with it what the node would have pushed."""
        self.channels[node] = b""
        for listener in self._listeners():
            listener.on_connection_lost(node)

    def _listeners(self) -> list[PushListener]:
        return [each for listeners in self._tracked.values() for each in listeners] + list(self.mailbox.values())
