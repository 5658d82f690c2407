"""The seam between the algorithms and the world.

An algorithm awaits few, fat effects: `settle` connects, `exchange` is one round trip to all nodes, `ask` one to the only
node, `sleep` a pause, `park` a pause that somebody may end. Time, wall time and randomness come from here too, so a
simulation decides about them. `post` is not awaited: it hands bytes to the
connections that carried the earlier exchange and returns, so undoing needs no shield: there is no point inside it at
which a second cancel could strike, and it cannot overtake what it undoes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

__all__ = ["CLOSED", "SILENT", "Bell", "Brief", "Effects", "Fault", "Lobby", "Payloads", "Poll", "Watch", "payload_for"]

Payloads = bytes | Sequence[bytes | None]
"""The same for all nodes, or one for each (None: this node is not asked)."""


class Fault:
    """Why a node has no answer to give. `lasting`: trying again will not help until somebody changes something."""

    __slots__ = ("detail", "kind", "lasting", "text")

    def __init__(self, kind: str, text: str, *, lasting: bool = False, detail: str = "") -> None:
        self.kind = kind
        self.text = text
        self.lasting = lasting
        self.detail = detail
        """What the server's error said besides its kind, as it came."""

    def __repr__(self) -> str:
        return f"Fault({self.kind}: {self.text})"


SILENT: Final = Fault("timeout", "no answer")
CLOSED: Final = Fault("closed", "closed the connection")


def payload_for(payloads: Payloads, index: int) -> bytes | None:
    """What one node is sent."""
    return payloads if isinstance(payloads, bytes) else payloads[index]


class Brief(float):
    """The patience of one whose waiting has an end: however slow a node is, it is stretched to `most` and no further."""

    __slots__ = ("most",)

    most: float

    def __new__(cls, seconds: float, most: float) -> Brief:
        self = super().__new__(cls, min(seconds, most))
        self.most = most
        return self


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
    until: float
    """By the driver's clock: from then on it must not be sent again."""
    waiter: Any
    """Set by a driver that needs to be told (a future); completed when `add` returns True."""

    def add(self, node: int, reply: Any) -> bool:
        """Count a node's reply (a Fault if there is none); True at the moment the outcome becomes certain.

        May be called after the decision too: late answers are still votes.
        """
        ...


class Bell(Protocol):
    """What wakes one who is parked."""

    def set(self) -> None:
        """Wake it, or keep it from falling asleep the next time. May be called from any thread that uses the driver."""

    def note(self) -> None:
        """The same, by the very thread that may be parked with it."""


class Watch:
    """What the nodes of a lane push to one who waits: that keys have changed, or a message for it."""

    __slots__ = ("bell", "changed", "keys", "message")

    bell: Any
    """The driver's kind of Bell; None for who will not wait."""
    keys: Sequence[bytes]

    def __init__(self, bell: Bell, keys: Sequence[bytes] = ()) -> None:
        self.bell = bell
        self.keys = keys
        self.changed: set[int] = set()
        """Nodes on which something may have changed; also those whose connection was lost, which tell no more."""
        self.message: Sequence[bytes] = ()
        """The words of the last message for it."""


class Lobby(Protocol):
    """Where one waits who needs no connection for it."""

    def now(self) -> float: ...

    def who(self) -> Any:
        """The thread or task that waits."""
        ...

    def bell(self) -> Bell: ...

    def park(self, bell: Any, until: float | None) -> Awaitable[None]:
        """Until the bell rings, or has rung since the last time, or `now()` is there."""
        ...

    def visit(self, operation: Callable[..., Any], *args: Any) -> Awaitable[Any]:
        """Do something that does need connections: `operation` gets Effects, and then `args`."""
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

    suspends: bool
    """`ask` and `hear`, which are in every acquisition on one node, return awaitables. A driver that blocks instead has
    no need of them, and returns what they come to: the fewer frames, the faster is a hand-over."""

    def ask(self, payload: bytes, patience: float) -> Any:
        """An exchange with the only node of a group: its answer, or a Fault; of the kind `timeout` for silence."""
        ...

    def hail(self, payload: bytes, patience: float, watch: Watch, briefly: float) -> Any:
        """Only of a driver that does not suspend. The answer to `ask`; but if that is a number, a message to `watch` is
        waited for as well, for so many seconds since the question, and is found in the watch."""
        ...

    def post(self, payloads: Payloads) -> bool:
        """Send on the same connections, wait for nothing, drop the replies (one for each payload).

        False if one of those connections is gone.
        """
        ...

    async def sleep(self, until: float) -> None:
        """Until `now()` is there."""

    def park(self, bell: Any, until: float | None) -> Awaitable[None]:
        """See Lobby; pushes are listened to meanwhile, and ring the bells of their watches."""
        ...

    def hear(self, watch: Watch, until: float | None) -> Any:
        """Park with its bell, for a message of the only node: nobody else rings, unless it is all over."""
        ...

    def watch(self, watch: Watch) -> None:
        """From now on tell it when its keys change."""

    def unwatch(self, watch: Watch) -> None: ...

    mail: dict[bytes, Watch]
    """By owner: who gets the messages that the only node sends to it."""

    channel: bytes
    """On which the only node reaches this connection, and no other; empty before `subscribe`."""

    def subscribe(self, patience: float) -> Awaitable[bytes | Fault]:
        """Have such a channel from now on; its name."""
        ...
