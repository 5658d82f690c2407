"""The shop that every rung guards: it reads the stock, works, and writes the stock. It is careless on purpose.

`take_one` is an unprotected read-modify-write, the same in every rung. The rung's lock decides whether two orders can
be inside it at once.

An order passes named points (`order.at("writing")`). If the runner wants the order to stop at one of them, the order
reports that it has arrived and waits for a command to continue. So a fault happens at an exact point instead of by
luck.
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

__all__ = ["Answer", "Order", "Settings", "Shop", "emit", "redis_client", "window"]

Answer = Literal["sold", "sold out", "busy"]

POLL: Final = 0.004
"""Seconds between two attempts of a rung that polls."""
WINDOW: Final = "num"
"""The Redis key with the stock that the shop window shows. The stock that counts is in the database."""


def window(stripes: int) -> list[str]:
    """The shop window's keys for this number of stripes."""
    return [WINDOW, *(f"{WINDOW}:{stripe}" for stripe in range(1, stripes))]


_output = threading.Lock()


def emit(what: str, **facts: object) -> None:
    """Send an event to the runner: a line on standard output, with the time on the monotonic clock."""
    line = json.dumps({"what": what, "t": time.monotonic(), **facts}) + "\n"
    with _output:
        os.write(1, line.encode())


@dataclass(frozen=True)
class Settings:
    """One sale, as the runner describes it to every worker."""

    sale: int
    rung: str
    ttl: float
    wait: float
    """Seconds that an order waits for the lock before the shop answers "busy"."""
    work: float
    """Seconds that an order takes between reading the stock and writing it, for example for a payment."""
    database: str
    prefix: str
    redis: str
    nodes: list[str]


def redis_client(url: str, timeout: float = 1.0) -> redis.Redis:
    """A redis-py client without its ten retries, so that an outage is visible."""
    return redis.Redis.from_url(url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))


@dataclass
class Order:
    id: str
    sale: int
    hold: str = ""
    """The point at which the runner wants the order to stop."""
    written: bool = False
    go: threading.Event = field(default_factory=threading.Event)

    def at(self, point: str) -> None:
        if point == self.hold:
            emit("at", sale=self.sale, order=self.id, point=point)
            self.go.wait()

    @contextmanager
    def holding(self, stripe: int = 0) -> Iterator[None]:
        """Marks the part that only one order at a time should be in; the timeline shows it as a bar."""
        emit("held", sale=self.sale, order=self.id, stripe=stripe)
        try:
            yield
        finally:
            emit("released", sale=self.sale, order=self.id, stripe=stripe)


class Shop:
    def __init__(self, settings: Settings, database: Database, rung: Rung) -> None:
        self.settings = settings
        self.database = database
        self.rung = rung
        self.sale, self.ttl, self.wait = settings.sale, settings.ttl, settings.wait
        self.nodes = settings.nodes
        self._window = window(rung.stripes)
        self.redis: redis.Redis = redis_client(settings.redis)

    def moved(self, url: str) -> None:
        """The master has a new address after a failover."""
        self.redis = redis_client(url)

    def wait_for(self, attempt: Callable[[], object], every: float = POLL) -> bool:
        """Poll, as the simple locks do. True as soon as an attempt succeeds, False when the wait is over."""
        until = time.monotonic() + self.wait
        while not attempt():
            if time.monotonic() > until:
                return False
            time.sleep(every * random.uniform(0.5, 1.5))
        return True

    def take_one(
        self, order: Order, *, stripe: int = 0, check: Callable[[], object] | None = None, fence: Fence | None = None
    ) -> Answer:
        """Sell one piece: read, work, write. `check` is a last check of the lock; `fence` is part of read and write."""
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
        """Write the stock to the database and to the shop window, and report it to the runner."""
        self.database.write(left, order.id if order else None, fence)
        if order:
            order.written = True
        emit("wrote", sale=self.sale, order=order.id if order else None, left=left)
        self.redis.mset({self._window[stripe]: pieces for stripe, pieces in left.items()})

    def shown(self) -> int | None:
        """The stock of all stripes as the shop window shows it; None while it shows nothing."""
        pieces = [value for value in self.redis.mget(self._window) if value is not None]
        return sum(int(value) for value in pieces) if pieces else None
