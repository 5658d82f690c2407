"""The interface between the algorithms and the world.

An algorithm awaits few operations. `connect` makes connections, `broadcast` is one round trip to all nodes, `send`
starts one without waiting for it, `wait` is a pause that a reply, a push or another thread may end. Time, wall time
and randomness come from here too, so a simulator decides about them.

`send_and_forget` is not awaited: it hands bytes to the connections that carried the earlier requests and returns. So
undoing needs no shield: a second cancellation has no point at which it could strike, and the bytes cannot overtake what
they undo.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

__all__ = [
    "CLOSED",
    "SILENT",
    "Access",
    "CappedTimeout",
    "Collector",
    "Fault",
    "IO",
    "Payloads",
    "PushListener",
    "Wakeup",
    "payload_for",
]

Payloads = bytes | Sequence[bytes | None]
"""The same bytes for all nodes, or one entry for each node (None: this node is not asked)."""


class Fault:
    """Why a node has no answer to give. `lasting`: trying again does not help until somebody changes something."""

    __slots__ = ("detail", "kind", "lasting", "text")

    def __init__(self, kind: str, text: str, *, lasting: bool = False, detail: str = "") -> None:
        self.kind = kind
        self.text = text
        self.lasting = lasting
        self.detail = detail
        """The rest of the server's error, word for word."""

    def __repr__(self) -> str:
        return f"Fault({self.kind}: {self.text})"


SILENT: Final = Fault("timeout", "no answer")
CLOSED: Final = Fault("closed", "closed the connection")


def payload_for(payloads: Payloads, node: int) -> bytes | None:
    """What one node is sent."""
    return payloads if isinstance(payloads, bytes) else payloads[node]


class CappedTimeout(float):
    """The timeout of a request whose caller has a deadline: a driver stretches it for slow nodes, but not past `most`."""

    __slots__ = ("most",)

    most: float

    def __new__(cls, seconds: float, most: float) -> CappedTimeout:
        self = super().__new__(cls, min(seconds, most))
        self.most = most
        return self


class Collector(Protocol):
    """What the replies of one request are collected into; see votes.py for the implementations."""

    @property
    def width(self) -> int:
        """Replies that each node sends for its payload."""
        ...

    decided: bool
    over: bool
    """Nobody waits for it any more: set at the end of a broadcast by a driver that completes no `waiter`."""
    until: float
    """By the driver's clock: from this time on the request must not be sent again."""
    waiter: Any
    """Set by a driver that needs to be told (a future). It is completed when `add` returns True."""

    def add(self, node: int, reply: Any) -> bool:
        """Count a node's reply (a Fault if there is none). Returns True at the moment the outcome becomes certain.

        It may be called after the decision too: late replies are still votes.
        """
        ...


class Wakeup(Protocol):
    """Ends a `wait`, or the next one if nothing waits."""

    def set(self) -> None:
        """May be called from any thread that uses the driver."""

    def set_here(self) -> None:
        """The same, called by the thread that may be waiting."""


class PushListener(Protocol):
    """Gets what the nodes push to one waiter."""

    @property
    def keys(self) -> Sequence[bytes]:
        """The keys whose changes it wants to hear of."""
        ...

    def on_push(self, node: int, push: Any) -> None:
        """A message for this waiter: see protocol/claims.py."""

    def on_change(self, node: int) -> None:
        """One of its keys may have changed."""

    def on_connection_lost(self, node: int) -> None:
        """The node pushes nothing more until the waiter has subscribed again."""


class Access(Protocol):
    """How a caller reaches the nodes. A thread that waits in line borrows connections only when it is its turn."""

    def now(self) -> float: ...

    def caller(self) -> Any:
        """The thread or task that waits."""
        ...

    def wakeup(self) -> Any:
        """A new Wakeup for it."""
        ...

    def wait(self, wakeup: Any, until: float | None) -> Awaitable[None]:
        """Wait without connections."""
        ...

    def use(self, operation: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Run `operation(io, *args)`."""
        ...


class IO(Protocol):
    """What a driver provides."""

    # -- environment

    def now(self) -> float:
        """Seconds on a clock that only this machine's deadlines use. It runs during suspend where the system can."""
        ...

    def wall(self) -> int:
        """Wall clock in µs. It is proposed as a token and never compared to decide validity."""
        ...

    def random(self) -> float:
        """In [0, 1)."""
        ...

    def nonce(self) -> bytes:
        """128 random bits in hexadecimal."""
        ...

    # -- requests

    @property
    def ready(self) -> bool:
        """A majority is connected."""
        ...

    async def connect(self, need: int, within: float) -> None:
        """Connect the nodes that are not connected.

        Returns when all tries have ended, after a short grace once `need` nodes are connected, and in any case after
        `within` seconds. The tries then go on in the background.
        """

    def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> Awaitable[None]:
        """Send, and collect replies until the collector is decided or `timeout` seconds are over.

        The bytes are handed over before the first suspension.
        """
        ...

    def send(self, payloads: Payloads, collector: Collector) -> None:
        """Send, and return at once. Replies reach the collector during later calls of `wait`; so does a Fault."""

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        """Send on the same connections and drop the replies, `width` for each payload. False if a connection is gone."""
        ...

    async def sleep(self, until: float) -> None:
        """Until `now()` is there."""

    def wakeup(self) -> Any:
        """A new Wakeup for `wait`."""
        ...

    def wait(self, wakeup: Any, until: float | None) -> Awaitable[None]:
        """Receive replies and pushes until the wakeup is set or `now()` is there."""
        ...

    # -- pushes

    channels: list[bytes]
    """By node: the channel on which the node reaches this connection. Empty without a subscription."""

    mailbox: dict[bytes, PushListener]
    """By the id of an acquisition: the listener for its pushes."""

    def subscribe(self, timeout: float) -> Awaitable[None]:
        """Subscribe wherever a connected node has no channel. A refusal is kept in `Node.no_push`."""
        ...

    def track(self, listener: PushListener) -> None:
        """From now on tell the listener when its keys change."""

    def untrack(self, listener: PushListener) -> None: ...
