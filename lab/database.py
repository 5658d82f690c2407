"""Stock and orders in a real database: SQLite by default, PostgreSQL by URL. Every sale has its own rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event

__all__ = ["Database", "engine_for"]

BUSY_TIMEOUT: Final = 10.0
"""Seconds that SQLite lets a writer wait for another writer."""

Fence = Callable[[sa.Connection], object]
"""Runs first in a transaction. If it raises, the transaction is rolled back."""


def engine_for(url: str) -> sa.Engine:
    parsed = sa.make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_size=8, connect_args={"connect_timeout": 5})
    engine = sa.create_engine(parsed, pool_size=8, connect_args={"timeout": BUSY_TIMEOUT})

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _: object) -> None:
        # Readers do not wait for writers. A power failure may lose the last sales, which does not matter here.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")

    return engine


class Database:
    """The tables of one lab. `prefix` separates two labs in the same database."""

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
        sa.Table(self.fence_table, self._tables)  # the fence creates this table, if a rung uses one
        self._tables.drop_all(self.engine)

    def stock_up(self, pieces: Sequence[int]) -> None:
        """Insert the stock of a new sale: a number of pieces for each stripe."""
        rows = [{"sale": self.sale, "stripe": stripe, "left": left} for stripe, left in enumerate(pieces)]
        with self.engine.begin() as connection:
            connection.execute(self._stock.insert(), rows)

    def left(self, fence: Fence | None = None) -> list[int]:
        """The stock that is left on each stripe.

        The read needs the fence too. With a fence in the write alone, a late holder could write between the read and the
        write of the next holder, because the database has not seen the next holder's token yet.
        """
        query = sa.select(self._stock.c.left).where(self._stock.c.sale == self.sale).order_by(self._stock.c.stripe)
        with self.engine.begin() as connection:
            if fence is not None:
                fence(connection)
            return list(connection.execute(query).scalars())

    def write(self, left: dict[int, int], order: str | None, fence: Fence | None = None) -> None:
        """Set the stock of some stripes to what the caller computed from an earlier read, and insert the order.

        This is one transaction, but it does not protect the time between read and write. That is the lock's task.
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
