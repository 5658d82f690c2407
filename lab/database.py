"""Stock and orders in a real database: SQLite by default, PostgreSQL by URL. Every sale has rows of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event

__all__ = ["Database", "engine_for"]

BUSY_TIMEOUT: Final = 10.0
"""Seconds that a writer waits for another one of SQLite."""

Fence = Callable[[sa.Connection], object]
"""Runs first in the transaction of a write; what it raises undoes the write."""


def engine_for(url: str) -> sa.Engine:
    parsed = sa.make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_size=8, connect_args={"connect_timeout": 5})
    engine = sa.create_engine(parsed, pool_size=8, connect_args={"timeout": BUSY_TIMEOUT})

    @event.listens_for(engine, "connect")
    def quick(connection: Any, _: object) -> None:
        # Readers do not wait for writers; a power cut may cost the last sales, and this is a lab.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")

    return engine


class Database:
    """`prefix` keeps the tables of two labs in one database apart."""

    def __init__(self, engine: sa.Engine, prefix: str, sale: int = 0) -> None:
        self.engine = engine
        self.sale = sale
        self.fence_table = f"{prefix}_fence"
        self._tables = sa.MetaData()
        self._stock = sa.Table(
            f"{prefix}_stock",
            self._tables,
            sa.Column("sale", sa.Integer, primary_key=True),
            sa.Column("stripe", sa.Integer, primary_key=True),
            sa.Column("left", sa.Integer, nullable=False),
        )
        self._orders = sa.Table(
            f"{prefix}_orders",
            self._tables,
            sa.Column("sale", sa.Integer, primary_key=True),
            sa.Column("id", sa.String(64), primary_key=True),
        )

    def create(self) -> None:
        self._tables.create_all(self.engine)

    def drop(self) -> None:
        sa.Table(self.fence_table, self._tables)  # made by the fence, if there was one
        self._tables.drop_all(self.engine)

    def stock_up(self, pieces: Sequence[int]) -> None:
        """The stock of a new sale, on so many stripes."""
        rows = [{"sale": self.sale, "stripe": stripe, "left": left} for stripe, left in enumerate(pieces)]
        with self.engine.begin() as connection:
            connection.execute(self._stock.insert(), rows)

    def left(self, fence: Fence | None = None) -> list[int]:
        """What is left on each stripe.

        The fence belongs here too: were it in the write alone, a late holder could still write between the read and the
        write of the next one, whose token the database has not met yet.
        """
        query = sa.select(self._stock.c.left).where(self._stock.c.sale == self.sale).order_by(self._stock.c.stripe)
        with self.engine.begin() as connection:
            if fence is not None:
                fence(connection)
            return list(connection.execute(query).scalars())

    def write(self, left: dict[int, int], order: str | None, fence: Fence | None = None) -> None:
        """Set the stock of some stripes, as the caller has computed it from an earlier read, and enter the order.

        One transaction. It trusts the caller: to keep others away in between is what the lock is for.
        """
        with self.engine.begin() as connection:
            if fence is not None:
                fence(connection)
            for stripe, pieces in left.items():
                mine = (self._stock.c.sale == self.sale) & (self._stock.c.stripe == stripe)
                connection.execute(self._stock.update().where(mine).values(left=pieces))
            if order is not None:
                connection.execute(self._orders.insert().values(sale=self.sale, id=order))

    def orders(self) -> set[str]:
        query = sa.select(self._orders.c.id).where(self._orders.c.sale == self.sale)
        with self.engine.connect() as connection:
            return set(connection.execute(query).scalars())
