"""The base class of all rungs: a story, a way to sell, and the scenarios that test it."""

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
"""Default ttl of a lock in seconds: long enough for a worker on a busy machine, short enough for a viewer."""


@dataclass(frozen=True)
class Scenario:
    """One sale with one fault. `expect` is the verdict that the rung's story predicts."""

    name: str
    title: str
    fault: Callable[[Run], Awaitable[None]]
    expect: Verdict
    must_be_safe: bool = False
    """The rung promises not to oversell here. If it does, the lab's exit status is 1."""
    ttl: float = TTL
    one_worker: bool = False
    """All buyers go to the first worker."""
    cut: tuple[str, ...] = ()
    """The nodes that workers reach through a proxy, so that a fault can cut them off. A proxy costs time."""

    @property
    def fault_text(self) -> str:
        return " ".join((self.fault.__doc__ or "").split()).rstrip(".")


def shown_by(*scenarios: Scenario) -> Sequence[Scenario]:
    """The scenarios of a rung, as a sequence."""
    return scenarios


class Rung:
    """One strategy. Each worker process has one object per sale. Several threads call `sell` at once."""

    name: ClassVar[str]
    title: ClassVar[str]
    servers: ClassVar[Literal["one", "replicated", "quorum"]] = "one"
    stripes: ClassVar[int] = 1
    """The number of database rows that the stock is divided over."""
    handfast: ClassVar[bool] = False
    """The rung uses handfast. The others show locks as they are often written by hand."""
    scenarios: ClassVar[Sequence[Scenario]]

    def prepare(self, database: Database, stock: int) -> None:
        """Called once before the sale, by the runner."""
        database.stock_up([(stock + stripe) // self.stripes for stripe in range(self.stripes)])

    def open(self, shop: Shop) -> None:
        """Called once in each worker, before its first order."""

    def sell(self, shop: Shop, order: Order) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        """Called when the sale is over."""

    @classmethod
    def story(cls) -> str:
        return inspect.cleandoc(sys.modules[cls.__module__].__doc__ or "")

    @classmethod
    def source(cls) -> str:
        return inspect.getsource(sys.modules[cls.__module__])
