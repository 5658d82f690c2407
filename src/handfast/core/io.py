"""The interface between the algorithms and the drivers.

An algorithm awaits few operations. `connect` makes connections. `broadcast` is one round trip to all nodes. `send` starts
a round trip without waiting for it. `wait` is a pause that a reply, a push or another thread may end. Time, wall time and
randomness also come from the driver, so a simulator controls them.

`send_and_forget` is not awaited: it hands bytes to the connections that carried the earlier requests, and returns. So
undoing a request needs no shield: no cancellation can interrupt it, and the bytes cannot overtake that request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol

__all__ = [
    "CLOSED",
    "SILENT",
    "Access",
    "CappedTimeout",
    "Check",
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
    """The reason why a node gave no answer. `lasting`: a retry does not help until a person changes something."""

    __slots__ = ("detail", "kind", "lasting", "text")

    def __init__(self, kind: str, text: str, *, lasting: bool = False, detail: str = "") -> None:
        self.kind = kind
        self.text = text
        self.lasting = lasting
        self.detail = detail
        """The rest of the server's error text."""

    def __repr__(self) -> str:
        return f"Fault({self.kind}: {self.text})"


SILENT: Final = Fault("timeout", "no answer")
CLOSED: Final = Fault("closed", "closed the connection")


def payload_for(payloads: Payloads, node: int) -> bytes | None:
    """The bytes for one node."""
    return payloads if isinstance(payloads, bytes) else payloads[node]


class CappedTimeout(float):
    """The timeout of a request whose caller has a deadline. A driver extends it for slow nodes, but not past `most`."""

    __slots__ = ("most",)

    most: float

    def __new__(cls, seconds: float, most: float) -> CappedTimeout:
        self = super().__new__(cls, min(seconds, most))
        self.most = most
        return self


class Collector(Protocol):
    """Collects the replies to one request. votes.py has the implementations."""

    @property
    def width(self) -> int:
        """The number of replies that each node sends to its payload."""
        ...

    @property
    def checked(self) -> bool:
        """Whether replies count only if the connection's `Check` passes."""
        ...

    decided: bool
    over: bool
    """The caller does not wait any more. A driver that uses no `waiter` sets it at the end of a broadcast."""
    until: float
    """The time, on the driver's clock, from which on the request must not be sent again."""
    waiter: Any
    """A future that the driver may set. It is completed when `add` returns True."""

    def add(self, node: int, reply: Any) -> bool:
        """Count a node's reply, or its Fault. Returns True for the reply that decides the outcome.

        This is also called after the decision: late replies are still votes.
        """
        ...


class Check(Protocol):
    """Decides whether the replies to requests count: by commands that a connection sends behind them.

    All requests of one write share one check. Its replies come after theirs, so a check that passes holds for them all.
    """

    @property
    def confirmation(self) -> bytes:
        """A command that a connection sends before a request, at the latest every `confirmed_for` seconds."""
        ...

    @property
    def confirmed_for(self) -> float: ...

    def refuted(self, node: int, reply: Any) -> Fault | None:
        """Why a connection must end after the reply to the confirmation, or None."""
        ...

    @property
    def emptied(self) -> Fault:
        """The fault of a connection whose server has deleted or replaced all its data. Such a connection ends."""
        ...

    def question(self, node: int) -> tuple[bytes, int]:
        """The commands, and the number of their replies."""
        ...

    def fault(self, node: int, replies: list[Any], sent: float, received: float) -> Fault | None:
        """Why the replies before the check do not count, or None."""
        ...


class Wakeup(Protocol):
    """Ends a `wait`; if none is under way, the next one."""

    is_set: bool
    """Ends the next wait at once. A waiter clears it before it looks at the state that others have changed."""

    def set(self) -> None:
        """End the wait. May be called from any thread that uses the driver."""

    def set_here(self) -> None:
        """End the wait, called by the waiting thread itself."""


class PushListener(Protocol):
    """Receives the pushes of the nodes for one waiter."""

    @property
    def keys(self) -> Sequence[bytes]:
        """The keys whose changes concern this listener."""
        ...

    def on_push(self, node: int, push: Any) -> None:
        """Called with a message for this waiter: see protocol/claims.py."""

    def on_change(self, node: int) -> None:
        """Called when one of the keys may have changed, and when the node has deleted all its data."""

    def on_connection_lost(self, node: int) -> None:
        """Called when a connection is lost. The node pushes nothing until the waiter has subscribed again."""


class Access(Protocol):
    """How a caller reaches the nodes. A thread in a local queue borrows connections only when it is its turn."""

    def now(self) -> float: ...

    def caller(self) -> Any:
        """The thread or task that waits."""
        ...

    def wakeup(self) -> Any:
        """A new Wakeup for the caller."""
        ...

    def wait(self, wakeup: Any, until: float | None) -> Awaitable[None]:
        """Wait without connections until the wakeup is set, or until `until`."""
        ...

    def borrow(self) -> Any:
        """Borrow an IO for an operation. `give_back` must follow."""
        ...

    def give_back(self, io: Any) -> None:
        """Give a borrowed IO back."""


class IO(Protocol):
    """The interface that a driver implements."""

    # -- environment

    def now(self) -> float:
        """Seconds on the clock of this machine's deadlines. It runs during suspend if the system has such a clock."""
        ...

    def wall(self) -> int:
        """Wall clock in µs. It is proposed as a token and never compared to decide validity."""
        ...

    def random(self) -> float:
        """A random number in [0, 1)."""
        ...

    def nonce(self) -> bytes:
        """128 random bits in hexadecimal."""
        ...

    # -- requests

    @property
    def ready(self) -> bool:
        """Whether a majority is connected."""
        ...

    async def connect(self, need: int, within: float) -> None:
        """Connect the nodes that are not connected.

        Returns when all tries have ended, shortly after `need` nodes are connected, and in any case after `within`
        seconds. Unfinished tries go on in the background.
        """

    def reconnect(self) -> None:
        """Begin to connect the nodes that are not connected, and return at once.

        A lost connection is made again at once. After a failed try the next one waits, however often this is called.
        """

    def broadcast(self, payloads: Payloads, collector: Collector, timeout: float) -> Awaitable[None]:
        """Send, and collect replies until the collector is decided or `timeout` seconds are over.

        The bytes are handed over before the first suspension.
        """
        ...

    def ask(self, payload: bytes, timeout: float) -> Awaitable[Any]:
        """A round trip with the only node of a group: returns its reply or Fault, or SILENT after `timeout` seconds.

        This is `broadcast` without a collector, because nothing has to be counted.
        """
        ...

    def send(self, payloads: Payloads, collector: Collector) -> None:
        """Send, and return at once. Replies and Faults reach the collector during later calls of `wait`."""

    def send_and_forget(self, payloads: Payloads, width: int = 1) -> bool:
        """Send on the present connections and drop the replies, `width` per payload. False if a connection is lost."""
        ...

    async def sleep(self, until: float) -> None:
        """Sleep until the time `until`."""

    def wakeup(self) -> Any:
        """A new Wakeup for `wait`."""
        ...

    def wait(self, wakeup: Any, until: float | None) -> Awaitable[None]:
        """Receive replies and pushes until the wakeup is set, or until the time `until`."""
        ...

    # -- pushes

    channels: list[bytes]
    """The channel of each node's connection, on which the node pushes; empty without a subscription."""

    mailbox: dict[bytes, PushListener]
    """The listener for the pushes to each acquisition, by its id."""

    def subscribe(self, timeout: float) -> Awaitable[None]:
        """Subscribe on every connected node that has no channel. `Node.no_push` keeps a refusal."""
        ...

    def track(self, listener: PushListener) -> None:
        """Tell the listener from now on when its keys change."""

    def untrack(self, listener: PushListener) -> None: ...
