"""A request that a cluster's node has sent on to another."""

from __future__ import annotations

from typing import Any, Final

from handfast.core.quorum import Ballot
from handfast.core.resp import encode
from handfast.net.connection import Connection

__all__ = ["ASKING", "ForwardedReply"]

ASKING: Final = encode(b"ASKING")
"""Before a request for a key whose slot is just being moved to the node."""


class ForwardedReply:
    """The poll of a request that another connection has sent on: its reply goes back there."""

    guarded = False
    decided = False
    over: bool
    waiter: Any

    def __init__(self, connection: Connection, poll: Any, width: int, asking: bool) -> None:
        self.connection = connection
        self.poll = poll
        self.until: float = getattr(poll, "until", Ballot.until)  # a question has none
        self.width = width + asking
        self.asking = asking
        """The first reply is to ASKING: it says nothing."""

    def __getattr__(self, word: str) -> Any:
        """Whether somebody still waits (`over`, `waiter`) is as it is there; a question waits for itself."""
        return self.poll if word == "waiter" and not hasattr(self.poll, "waiter") else getattr(self.poll, word)

    def add(self, node: int, reply: Any) -> bool:
        if self.asking and type(reply) is list:
            reply = reply[1] if self.width == 2 else reply[1:]
        self.connection.answer(self.poll, reply)
        return False
