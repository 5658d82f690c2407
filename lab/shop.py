"""The shop as a rung sees it: stock to read, work to do, stock to write. It is careless on purpose.

`take_one` reads the stock, works, and writes back what it computed: the careless read-change-write that locks are for, in
every rung the same. Whether two orders can be inside it at once is for the rung to decide.

An order passes named points (`order.at("writing")`). The runner may want it held at one of them: then the order says
that it is there and goes on when it is told to. That is how faults strike at an exact place instead of by luck.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from lab.database import Database, Fence

if TYPE_CHECKING:
    from lab.rung import Rung

__all__ = ["Answer", "Order", "Settings", "Shop", "redis_client", "tell", "window"]

Answer = Literal["sold", "sold out", "busy"]

POLL: Final = 0.004
"""Seconds between two attempts of a rung that can only ask again and again."""
WINDOW: Final = "num"
"""The Redis key that shows the stock in the shop window; what counts is in the database."""


def window(stripes: int) -> list[str]:
    """The keys of that many stripes."""
    return [WINDOW, *(f"{WINDOW}:{stripe}" for stripe in range(1, stripes))]


_say = threading.Lock()


def tell(what: str, **facts: object) -> None:
    """One event to the runner: a line on standard output, with the time of this machine's one monotonic clock."""
    line = json.dumps({"what": what, "t": time.monotonic(), **facts}) + "\n"
    with _say:
        os.write(1, line.encode())


@dataclass(frozen=True)
class Settings:
    """One sale, as the runner announces it to every worker."""

    sale: int
    rung: str
    ttl: float
    patience: float
    """How long an order waits for the lock before it is answered "busy"."""
    work: float
    """Seconds that an order takes between reading the stock and writing it: a payment, say."""
    database: str
    prefix: str
    redis: str
    nodes: list[str]


def redis_client(url: str, timeout: float = 1.0) -> redis.Redis:
    """redis-py without its ten retries: an outage is to be seen."""
    return redis.Redis.from_url(url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


@dataclass
class Order:
    id: str
    sale: int
    hold: str = ""
    """The point at which the runner wants it held."""
    written: bool = False
    go: threading.Event = field(default_factory=threading.Event)

    def at(self, point: str) -> None:
        if point == self.hold:
            tell("at", sale=self.sale, order=self.id, point=point)
            self.go.wait()

    @contextmanager
    def holding(self, stripe: int = 0) -> Iterator[None]:
        """Around the part that only one order at a time should be in: the runner draws it."""
        tell("held", sale=self.sale, order=self.id, stripe=stripe)
        try:
            yield
        finally:
            tell("released", sale=self.sale, order=self.id, stripe=stripe)


class Shop:
    def __init__(self, settings: Settings, database: Database, rung: Rung) -> None:
        self.settings = settings
        self.database = database
        self.rung = rung
        self.sale, self.ttl, self.patience = settings.sale, settings.ttl, settings.patience
        self.nodes = settings.nodes
        self._window = window(rung.stripes)
        self.redis: redis.Redis = redis_client(settings.redis)

    def moved(self, url: str) -> None:
        """A failover: the master is somewhere else now."""
        self.redis = redis_client(url)

    def wait_for(self, attempt: Callable[[], object], every: float = POLL) -> bool:
        """Poll, as the naive locks do: True as soon as the attempt succeeds, False when patience is over."""
        until = time.monotonic() + self.patience
        while not attempt():
            if time.monotonic() > until:
                return False
            time.sleep(every * random.uniform(0.5, 1.5))
        return True

    def take_one(
        self, order: Order, *, stripe: int = 0, check: Callable[[], object] | None = None, fence: Fence | None = None
    ) -> Answer:
        """Sell one piece: read, work, write. `check` is a last look at the lock; `fence` goes into read and write."""
        left = self.database.left(fence)[stripe]
        if left <= 0:
            return "sold out"
        time.sleep(self.settings.work)
        if check is not None:
            check()
        order.at("writing")
        self.write({stripe: left - 1}, order, fence)
        return "sold"

    def write(self, left: dict[int, int], order: Order | None, fence: Fence | None = None) -> None:
        """To the database, to the shop window, and to the runner."""
        self.database.write(left, order.id if order else None, fence)
        if order:
            order.written = True
        tell("wrote", sale=self.sale, order=order.id if order else None, left=left)
        self.redis.mset({self._window[stripe]: pieces for stripe, pieces in left.items()})

    def shown(self) -> int | None:
        """What the shop window says of all stripes together; None while it is empty."""
        pieces = [value for value in self.redis.mget(self._window) if value is not None]
        return sum(int(value) for value in pieces) if pieces else None
