"""What every rung of the ladder is: a story, a way to sell, and the scenarios that show what it is worth."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

if TYPE_CHECKING:
    from lab.database import Database
    from lab.run import Run
    from lab.shop import Answer, Order, Shop

__all__ = ["Scenario", "Rung", "Verdict", "shown_by"]

Verdict = Literal["safe", "oversold", "stuck"]

TTL: Final = 1.0
"""Seconds a lock lasts by default: long for a worker that waits for a core, short for the viewer."""


@dataclass(frozen=True)
class Scenario:
    """One sale under one fault. `expect` is what the story says will be seen; the verdict is what was seen."""

    name: str
    title: str
    fault: Callable[[Run], Awaitable[None]]
    expect: Verdict
    must_be_safe: bool = False
    """A broken promise if it oversells: the lab's exit status is 1 then."""
    ttl: float = TTL
    one_worker: bool = False
    """The crowd goes to the first worker alone."""
    cut: tuple[str, ...] = ()
    """The nodes that are reached through a network that can be cut; that costs time, so it is not done for all."""

    @property
    def fault_text(self) -> str:
        return " ".join((self.fault.__doc__ or "").split()).rstrip(".")


def shown_by(*scenarios: Scenario) -> Sequence[Scenario]:
    """The scenarios that show what a rung is worth."""
    return scenarios


class Rung:
    """A strategy. One object per worker process and sale; `sell` is called by several threads at once."""

    name: ClassVar[str]
    title: ClassVar[str]
    servers: ClassVar[Literal["one", "replicated", "quorum"]] = "one"
    stripes: ClassVar[int] = 1
    """On how many rows of the database the stock lies."""
    scenarios: ClassVar[Sequence[Scenario]]

    def prepare(self, database: Database, stock: int) -> None:
        """Once before the sale, in the runner."""
        database.stock_up([(stock + stripe) // self.stripes for stripe in range(self.stripes)])

    def open(self, shop: Shop) -> None:
        """Once in each worker, before its first order."""

    def sell(self, shop: Shop, order: Order) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        """The sale is over."""

    @classmethod
    def story(cls) -> str:
        return inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")

    @classmethod
    def source(cls) -> str:
        return inspect.getsource(sys.modules[cls.__module__])
