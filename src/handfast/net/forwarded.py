"""The reply to a request that a node of a cluster has redirected to another node."""

from __future__ import annotations

from typing import Any, Final

from handfast.net.connection import Connection
from handfast.protocol.resp import encode

__all__ = ["ASKING", "ForwardedReply"]

ASKING: Final = encode(b"ASKING")
"""The command before a request for a key whose slot is being moved to the node."""


class ForwardedReply:
    """The collector of a redirected request. It returns the reply to the connection that was asked first."""

    checked = False
    decided = False

    def __init__(self, connection: Connection, collector: Any, asking: bool) -> None:
        self.connection = connection
        self.collector = collector
        self.until: float = collector.until
        self.width = collector.width + asking
        self.asking = asking
        """The next reply is the one to ASKING, which is ignored."""

    @property
    def over(self) -> bool:
        return bool(self.collector.over)

    @property
    def waiter(self) -> Any:
        return self.collector.waiter

    def add(self, node: int, reply: Any) -> bool:
        if self.asking and type(reply) is list:
            reply = reply[1] if self.width == 2 else reply[1:]
        self.connection.answer(self.collector, reply)
        return False
