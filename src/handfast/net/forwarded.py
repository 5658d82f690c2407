"""A request that a cluster's node has sent on to another."""

from __future__ import annotations

from typing import Any, Final

from handfast.net.connection import Connection
from handfast.protocol.resp import encode

__all__ = ["ASKING", "ForwardedReply"]

ASKING: Final = encode(b"ASKING")
"""Before a request for a key whose slot is just being moved to the node."""


class ForwardedReply:
    """The collector of a request that another connection has sent on: its reply goes back there."""

    decided = False

    def __init__(self, connection: Connection, collector: Any, asking: bool) -> None:
        self.connection = connection
        self.collector = collector
        self.until: float = collector.until
        self.width = collector.width + asking
        self.asking = asking
        """The first reply is to ASKING: it says nothing."""

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
