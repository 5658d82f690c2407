"""Runs statements on the connections of the supported libraries, blocking or awaited.

The work is a generator that yields statements and receives their answers. An answer is the first value of the first row,
or the number of rows if the statement returns none; None if there are no rows. The generator does not depend on the
library.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from handfast.errors import ConfigError

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    import sqlalchemy
    import sqlalchemy.orm
    from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

    Blocking: TypeAlias = (
        sqlite3.Connection
        | sqlite3.Cursor
        | psycopg.Connection[Any]
        | psycopg.Cursor[Any]
        | sqlalchemy.Connection
        | sqlalchemy.orm.Session
        | sqlalchemy.orm.scoped_session[Any]
    )
    Awaited: TypeAlias = (
        psycopg.AsyncConnection[Any]
        | psycopg.AsyncCursor[Any]
        | sqlalchemy_asyncio.AsyncConnection
        | sqlalchemy_asyncio.AsyncSession
        | sqlalchemy_asyncio.async_scoped_session[Any]
    )

__all__ = ["Dialect", "Link", "Steps", "perform"]

Answer: TypeAlias = int | None
Parameters: TypeAlias = Mapping[str, Any] | None
Steps: TypeAlias = Generator[tuple[str, Parameters], Answer, None]


class Dialect(NamedTuple):
    """The statements of a fence. Parameters are written :name. `create` has no parameters and no answer."""

    create: str
    record: str
    newest: str


class Link(NamedTuple):
    """The connection, as the generator sees it."""

    dialect: Dialect
    driver: Any
    """The connection of the database driver, without SQLAlchemy's wrapping."""

    def commits_by_itself(self) -> bool:
        """Whether the next statement would be a transaction of its own."""
        driver = self.driver
        if _is(driver, "psycopg", "Connection", "AsyncConnection"):
            from psycopg.pq import TransactionStatus

            # In a pipeline a BEGIN may have been sent without a reply yet.
            unsure = (TransactionStatus.IDLE, TransactionStatus.ACTIVE)
            return bool(driver.autocommit) and driver.info.transaction_status in unsure
        if hasattr(driver, "in_transaction"):  # sqlite3, also inside aiosqlite
            mode = getattr(driver, "autocommit", -1)  # before Python 3.12 there was only one mode, now -1
            return not driver.in_transaction and (mode == 1 or (mode == -1 and driver.isolation_level is None))
        return bool(getattr(driver, "autocommit", False))


Work: TypeAlias = Callable[[Link], Steps]


def perform(conn: Any, dialects: Mapping[str, Dialect], work: Work) -> Coroutine[Any, Any, None] | None:
    """Do the work on a blocking connection, or return a coroutine that does it on an asyncio connection."""
    if _is(conn, "sqlite3", "Cursor") or _is(conn, "psycopg", "Cursor", "AsyncCursor"):
        conn = conn.connection  # a new cursor: results of the caller's own cursor must stay
    if _is(conn, "psycopg", "AsyncConnection"):
        return _on_async_psycopg(conn, work(Link(dialects["postgresql"], conn)))
    if _is(conn, "sqlalchemy.ext.asyncio", "AsyncConnection"):
        return _awaited(conn.run_sync(_on_sqlalchemy, dialects, work))
    if _is(conn, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
        return _awaited(conn.run_sync(lambda session: _on_sqlalchemy(session.connection(), dialects, work)))
    if _is(conn, "sqlite3", "Connection"):
        _on_sqlite(conn, work(Link(dialects["sqlite"], conn)))
    elif _is(conn, "psycopg", "Connection"):
        _on_psycopg(conn, work(Link(dialects["postgresql"], conn)))
    elif _is(conn, "sqlalchemy", "Connection"):
        _on_sqlalchemy(conn, dialects, work)
    elif _is(conn, "sqlalchemy.orm", "Session", "scoped_session"):
        _on_sqlalchemy(conn.connection(), dialects, work)
    else:
        kind = f"{type(conn).__module__}.{type(conn).__qualname__}"
        raise ConfigError(
            f"a connection or session of sqlite3, psycopg 3 or SQLAlchemy 2 is needed, not an object of type {kind}"
        )
    return None


def _is(thing: object, module: str, *names: str) -> bool:
    """isinstance without importing a library: if `thing` is such an object, its module is imported already."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(thing, tuple(getattr(loaded, name) for name in names))


def _run(steps: Steps, execute: Callable[[str, Parameters], Answer]) -> None:
    answer: Answer = None
    while True:
        try:
            statement, parameters = steps.send(answer)
        except StopIteration:
            return
        answer = execute(statement, parameters)


def _on_sqlite(conn: sqlite3.Connection, steps: Steps) -> None:
    cursor = conn.cursor()
    cursor.row_factory = None

    def execute(statement: str, parameters: Parameters) -> Answer:
        cursor.execute(statement, parameters or {})
        row = cursor.fetchone() if cursor.description else (cursor.rowcount if cursor.rowcount > 0 else None,)
        return row[0] if row else None

    try:
        _run(steps, execute)
    finally:
        cursor.close()


def _on_psycopg(conn: psycopg.Connection[Any], steps: Steps) -> None:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    def execute(statement: str, parameters: Parameters) -> Answer:
        cursor.execute(_percent(statement), parameters)
        row = cursor.fetchone() if parameters else None
        return row[0] if row else None

    with Cursor(conn, row_factory=tuple_row) as cursor:
        _run(steps, execute)


async def _on_async_psycopg(conn: psycopg.AsyncConnection[Any], steps: Steps) -> None:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(conn, row_factory=tuple_row) as cursor:
        answer: Answer = None
        while True:
            try:
                statement, parameters = steps.send(answer)
            except StopIteration:
                return
            await cursor.execute(_percent(statement), parameters)
            row = await cursor.fetchone() if parameters else None
            answer = row[0] if row else None


def _percent(statement: str) -> bytes:
    return statement.replace(":name", "%(name)s").replace(":token", "%(token)s").encode()


def _on_sqlalchemy(conn: sqlalchemy.Connection, dialects: Mapping[str, Dialect], work: Work) -> None:
    from sqlalchemy import text

    dialect = dialects.get(conn.dialect.name)
    if dialect is None:
        raise ConfigError(f"SqlFence knows SQLite and PostgreSQL, not {conn.dialect.name}")
    if not conn.in_transaction():
        conn.begin()  # the first statement would do so; the driver's state shows it only afterwards

    def execute(statement: str, parameters: Parameters) -> Answer:
        result = conn.execute(text(statement), parameters)
        row = result.fetchone() if result.returns_rows else (result.rowcount if result.rowcount > 0 else None,)
        return row[0] if row else None

    _run(work(Link(dialect, _driver(conn))), execute)


def _driver(conn: sqlalchemy.Connection) -> Any:
    """The driver's connection. For unknown drivers, SQLAlchemy's wrapper of it, which has the autocommit state."""
    driver = conn.connection.driver_connection
    known = _is(driver, "psycopg", "Connection", "AsyncConnection") or hasattr(driver, "in_transaction")
    return driver if known else conn.connection.dbapi_connection


async def _awaited(result: Any) -> None:
    await result
