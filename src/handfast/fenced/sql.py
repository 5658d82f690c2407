"""A fence in a SQL database: one row per name keeps the newest token that was seen.

The check is a single INSERT … ON CONFLICT … DO UPDATE … WHERE. It locks the row, also where it changes nothing, until the
transaction ends; so no other token can pass between the check and the commit of what was written behind it. (SQLite
locks the whole database to the same effect.) What the check has noted is undone with the transaction.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, overload

from handfast.errors import ConfigError, StaleToken
from handfast.fenced.claims import Tokened, claims_of
from handfast.fenced.connections import Dialect, Link, Steps, perform

if TYPE_CHECKING:
    from handfast.fenced.connections import Awaited, Blocking

__all__ = ["SqlFence"]

_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
"""Within 63 bytes, where PostgreSQL cuts names off."""

_CREATE: Final = "CREATE TABLE IF NOT EXISTS {table} (name TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL)"
# In PostgreSQL IF NOT EXISTS does not keep two that create the table at once from colliding; a lock does. And it asks
# for the right to create even where the table is there.
_CREATE_ALONE: Final = """DO $fence$ BEGIN
PERFORM pg_advisory_xact_lock({number});
IF to_regclass('{table}') IS NULL THEN {create}; END IF;
END $fence$"""
_RECORD: Final = (
    "INSERT INTO {table} AS fence (name, token) VALUES (:name, :token) "
    "ON CONFLICT (name) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token"
)
_NEWEST: Final = "SELECT token FROM {table} WHERE name = :name"


class SqlFence:
    """Checks tokens in the transaction that writes, on the connection that you pass.

    That is a connection or cursor of sqlite3 or psycopg 3, or a Connection or Session of SQLAlchemy 2 on SQLite or
    PostgreSQL. Given an asyncio connection (psycopg's, SQLAlchemy's) the same methods return a coroutine to await: one
    class, because a fence has no connection of its own, only a table; and type checkers report a forgotten await.
    """

    def __init__(self, table: str = "handfast_fence") -> None:
        parts = table.split(".") if isinstance(table, str) else []
        if not 1 <= len(parts) <= 2 or not all(_IDENTIFIER.fullmatch(part) for part in parts):
            raise ConfigError(f"table must be name or schema.name in ASCII letters, digits and _, not {table!r}")
        self.table = table
        quoted = ".".join(f'"{part}"' for part in parts)
        create, record, newest = (text.format(table=quoted) for text in (_CREATE, _RECORD, _NEWEST))
        alone = _CREATE_ALONE.format(table=quoted, create=create, number=zlib.crc32(table.encode()))
        # SQLite has RETURNING only since 3.35, and counts the rows; psycopg's pipelines do not count, but return.
        self._dialects = {
            "sqlite": Dialect(create, record, newest),
            "postgresql": Dialect(alone, f"{record} RETURNING token", newest),
        }

    @overload
    def create(self, conn: Blocking) -> None: ...
    @overload
    def create(self, conn: Awaited) -> Coroutine[Any, Any, None]: ...
    def create(self, conn: Blocking | Awaited) -> Coroutine[Any, Any, None] | None:
        """Make the table if it is not there; commit afterwards. Any number of processes may do it at once."""

        def steps(link: Link) -> Steps:
            yield link.dialect.create, None

        return perform(conn, self._dialects, steps)

    @overload
    def check(self, conn: Blocking, lease: Tokened) -> None: ...
    @overload
    def check(self, conn: Blocking, lease: str, token: int) -> None: ...
    @overload
    def check(self, conn: Awaited, lease: Tokened) -> Coroutine[Any, Any, None]: ...
    @overload
    def check(self, conn: Awaited, lease: str, token: int) -> Coroutine[Any, Any, None]: ...
    def check(
        self, conn: Blocking | Awaited, lease: Tokened | str, token: int | None = None
    ) -> Coroutine[Any, Any, None] | None:
        """Raise StaleToken if a larger token was seen for this name, else note this one, until the transaction ends.

        Give a lease, or a name and a token. An equal token is the same holder's. Errors of the database (a
        serialization failure, a deadlock, a locked file) come as the driver raises them.
        """
        names, number = claims_of(lease, token)

        def steps(link: Link) -> Steps:
            if link.commits_by_itself():
                raise ConfigError("the connection is in autocommit mode: begin a transaction, then check and write in it")
            for name in names:
                if (yield link.dialect.record, {"name": name, "token": number}) is None:
                    newest = yield link.dialect.newest, {"name": name}
                    assert newest is not None  # the row is locked, by us
                    raise StaleToken(name, token=number, seen=newest)

        return perform(conn, self._dialects, steps)
