"""The seam between the algorithms and the world.

An algorithm awaits few, fat effects: `settle` connects, `exchange` is one round trip to all nodes, `ask` one to the only
node, `sleep` a pause. Time, wall time and
randomness come from here too, so a simulation decides about them. `post` is not awaited: it hands bytes to the
connections that carried the earlier exchange and returns, so undoing needs no shield: there is no point inside it at
which a second cancel could strike, and it cannot overtake what it undoes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

__all__ = ["CLOSED", "SILENT", "Effects", "Fault", "Payloads", "Poll", "payload_for"]

Payloads = bytes | Sequence[bytes | None]
"""The same for all nodes, or one for each (None: this node is not asked)."""


class Fault:
    """Why a node has no answer to give. `lasting`: trying again will not help until somebody changes something."""

    __slots__ = ("kind", "lasting", "text")

    def __init__(self, kind: str, text: str, *, lasting: bool = False) -> None:
        self.kind = kind
        self.text = text
        self.lasting = lasting

    def __repr__(self) -> str:
        return f"Fault({self.kind}: {self.text})"


SILENT: Final = Fault("timeout", "no answer")
CLOSED: Final = Fault("closed", "closed the connection")


def payload_for(payloads: Payloads, index: int) -> bytes | None:
    """What one node is sent."""
    return payloads if isinstance(payloads, bytes) else payloads[index]


class Poll(Protocol):
    """What an exchange collects answers into; see quorum.py for the implementations."""

    @property
    def width(self) -> int:
        """Replies that each node sends for its payload."""
        ...

    @property
    def guarded(self) -> bool:
        """Its answers are votes: they count only if the node shows its guard marker behind them."""
        ...

    decided: bool
    over: bool
    """Nobody waits for it any more: set at the end of an exchange by a driver that completes no `waiter`."""
    waiter: Any
    """Set by a driver that needs to be told (a future); completed when `add` returns True."""

    def add(self, node: int, reply: Any) -> bool:
        """Count a node's reply (a Fault if there is none); True at the moment the outcome becomes certain.

        May be called after the decision too: late answers are still votes.
        """
        ...


class Effects(Protocol):
    """What a driver provides."""

    @property
    def settled(self) -> bool:
        """A majority is connected, and `settle` has ended."""
        ...

    def now(self) -> float:
        """Seconds on a clock that only this machine's deadlines use; it runs in suspend too where the system can."""
        ...

    def wall(self) -> int:
        """Wall clock in µs: proposed as a token, never compared to decide validity."""
        ...

    def random(self) -> float:
        """In [0, 1)."""
        ...

    def nonce(self) -> bytes:
        """128 random bits in hexadecimal."""
        ...

    async def settle(self, need: int, within: float) -> None:
        """Connect what is not connected: back when all tries have ended, after a short grace once `need` are
        connected, and in any case after `within` seconds; the tries then go on in the background."""

    def exchange(self, payloads: Payloads, poll: Poll, patience: float) -> Awaitable[None]:
        """Send, collect into `poll`; back when it is decided, or after `patience` seconds.

        The bytes are handed over before the first suspension.
        """
        ...

    def ask(self, payload: bytes, patience: float) -> Awaitable[Any]:
        """An exchange with the only node of a group: its answer, or a Fault; of the kind `timeout` for silence."""
        ...

    def post(self, payloads: Payloads) -> bool:
        """Send on the same connections, wait for nothing, drop the replies (one for each payload).

        False if one of those connections is gone.
        """
        ...

    async def sleep(self, until: float) -> None:
        """Until `now()` is there."""
