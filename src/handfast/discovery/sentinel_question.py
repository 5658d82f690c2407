"""What a client says to a sentinel: the question for the master, and the subscription to its changes. No I/O here."""

from __future__ import annotations

from typing import Any, Final

import hiredis

from handfast.core.handshake import Rejected
from handfast.core.io import Fault
from handfast.discovery.connections import HostPort
from handfast.discovery.login import Replies
from handfast.net.address import Address
from handfast.protocol.resp import encode

__all__ = ["Answer", "Question", "Subscription", "UNKNOWN"]

Answer = tuple[int, HostPort]
"""The configuration epoch, and the master's address in it."""
UNKNOWN: Final = Fault("unknown", "does not know it", lasting=True)
SWITCH: Final = b"+switch-master"
MOST_CHANGES: Final = 3
"""How often a sentinel is asked at most, if its epoch changes between two replies. The last reply counts as it is."""


class Question:
    """Asks for the epoch and the address. The caller sends `out` and feeds what it receives, until there is an answer."""

    def __init__(self, address: Address, name: str) -> None:
        # The address comes from a command of its own: while a failover reconfigures the replicas, its leader describes
        # the old master under the new epoch. The epoch is asked before and after it: if it has changed in between, the
        # new address would come with the old epoch, and the old address would be as good.
        master = encode(b"SENTINEL", b"MASTER", name.encode())
        self._asked = master + encode(b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", name.encode()) + master
        self._replies = Replies(address)
        self.out = self._replies.login + self._asked
        """The bytes to send next."""
        self._got: list[Any] = []
        self._tries = MOST_CHANGES
        self.answer: Answer | Fault | None = None
        """The answer, or the reason why there is none. None: not yet."""

    def feed(self, data: bytes) -> None:
        self.out = b""
        try:
            self._got += self._replies.read(data)
            if len(self._got) >= 3:
                self._read()
        except Rejected as rejected:
            self.answer = _in_words(rejected.fault)
        except (hiredis.ProtocolError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            self.answer = Fault("protocol", f"does not answer as a sentinel does ({error!r})")

    def _read(self) -> None:
        (before, address, after), self._got = self._got[:3], []
        if address is None:
            self.answer = UNKNOWN
            return
        epoch, place = _epoch(before), (address[0].decode(), int(address[1]))
        if not place[0] or not 0 < place[1] < 65536:
            raise ValueError(f"{place[0]}:{place[1]} is no address")
        self._tries -= 1
        if epoch == _epoch(after) or not self._tries:
            self.answer = (epoch, place)
        else:
            self.out = self._asked


class Subscription:
    """Subscribes to the changes of masters. The caller sends `out` and feeds what it receives."""

    def __init__(self, address: Address, name: str) -> None:
        self._name = name
        self._replies = Replies(address)
        self.out = self._replies.login + encode(b"SUBSCRIBE", SWITCH)

    def feed(self, data: bytes) -> bool:
        """Whether the master may have changed: the subscription has begun, or the sentinel reports a change."""
        news = False
        for reply in self._replies.read(data):
            kind, _, text = reply
            news = news or kind == b"subscribe" or text.decode().split(" ")[0] == self._name
        return news


def _epoch(state: Any) -> int:
    """The configuration epoch in a sentinel's description of a master."""
    words = dict(zip(state[::2], state[1::2], strict=True))
    return int(words[b"config-epoch"])


def _in_words(fault: Fault) -> Fault:
    if "No such master" in fault.text:
        return UNKNOWN
    return Fault(fault.kind, f"says {fault.text}", lasting=fault.lasting)
