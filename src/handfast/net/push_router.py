"""Gives the pushes of the nodes to the listeners that wait for them: messages by the id in them, invalidations by key."""

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
        """The future that the task awaits. It has `over` and `set_result`."""

    def set(self) -> None:
        if self.future is None:
            self.is_set = True
        elif not self.future.over:
            self.future.set_result(None)

    def set_here(self) -> None:
        self.set()


class PushRouter:
    """The listening part of the connections. Only the thread that uses the connections may use it."""

    def __init__(self, nodes: int) -> None:
        self._tracked: dict[bytes, list[PushListener]] = {}
        """Key to its listeners."""
        self.mailbox: dict[bytes, PushListener] = {}
        """See IO.mailbox."""
        self.channels: list[bytes] = [b""] * nodes
        """See IO.channels."""

    def share_listeners(self, tracked: dict[bytes, list[PushListener]], mailbox: dict[bytes, PushListener]) -> None:
        """Use the listeners of other connections, because any of them may get any push. Called before the first wait."""
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
        """Note a node's reply to a subscription. If the node refuses for good, no waiter can queue there."""
        if connection is not None:
            self.channels[node.index] = connection.channel
            if fault is not None and fault.lasting:
                node.no_push = fault

    def listen_to(self, connection: Connection) -> None:
        """Route the pushes of a new connection."""
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
        """Tell all listeners that a node's connection is lost, and its pushes with it."""
        self.channels[node] = b""
        for listener in self._listeners():
            listener.on_connection_lost(node)

    def _listeners(self) -> list[PushListener]:
        return [each for listeners in self._tracked.values() for each in listeners] + list(self.mailbox.values())
