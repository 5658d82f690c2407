"""A fence in a SQL database: one row per name keeps the largest token that was seen.

The check is a single INSERT … ON CONFLICT … DO UPDATE … WHERE. It locks the row until the transaction ends, even if it
changes nothing. So no other token can pass between the check and the commit. (SQLite locks the whole database, to the
same effect.) A rollback undoes the record of the token as well.
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
"""A name of at most 63 bytes: PostgreSQL cuts off longer ones."""

_CREATE: Final = "CREATE TABLE IF NOT EXISTS {table} (name TEXT NOT NULL PRIMARY KEY, token BIGINT NOT NULL)"
# In PostgreSQL, IF NOT EXISTS does not prevent a collision of two processes that create the table at once, but a lock
# does. It also needs the right to create tables, even if the table exists.
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
    """Checks tokens in the caller's transaction, on the caller's connection.

    This is a connection or cursor of sqlite3 or psycopg 3, or a Connection or Session of SQLAlchemy 2 on SQLite or
    PostgreSQL. With an asyncio connection of psycopg or SQLAlchemy, the methods return a coroutine. One class is enough
    for both, because a fence has only a table and no connection. Type checkers report a missing await.
    """

    def __init__(self, table: str = "handfast_fence") -> None:
        parts = table.split(".") if isinstance(table, str) else []
        if not 1 <= len(parts) <= 2 or not all(_IDENTIFIER.fullmatch(part) for part in parts):
            raise ConfigError(f"table must be name or schema.name in ASCII letters, digits and _, not {table!r}")
        self.table = table
        quoted = ".".join(f'"{part}"' for part in parts)
        create, record, newest = (text.format(table=quoted) for text in (_CREATE, _RECORD, _NEWEST))
        alone = _CREATE_ALONE.format(table=quoted, create=create, number=zlib.crc32(table.encode()))
        # SQLite counts rows, and has RETURNING only since 3.35. psycopg's pipelines do not count, but have RETURNING.
        self._dialects = {
            "sqlite": Dialect(create, record, newest),
            "postgresql": Dialect(alone, f"{record} RETURNING token", newest),
        }

    @overload
    def create(self, conn: Blocking) -> None: ...
    @overload
    def create(self, conn: Awaited) -> Coroutine[Any, Any, None]: ...
    def create(self, conn: Blocking | Awaited) -> Coroutine[Any, Any, None] | None:
        """Create the table if it does not exist; the caller commits. Any number of processes may do this at once."""

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
        """Raise StaleToken if a larger token was seen for this name; otherwise record this one in the transaction.

        Pass a lease, or a name and a token. An equal token passes: it belongs to the same holder. Errors of the database
        (a serialization failure, a deadlock, a locked file) are raised unchanged.
        """
        names, number = claims_of(lease, token)

        def steps(link: Link) -> Steps:
            if link.commits_by_itself():
                raise ConfigError("the connection is in autocommit mode: begin a transaction, then check and write in it")
            for name in names:
                if (yield link.dialect.record, {"name": name, "token": number}) is None:
                    newest = yield link.dialect.newest, {"name": name}
                    assert newest is not None  # this transaction has locked the row
                    raise StaleToken(name, token=number, seen=newest)

        return perform(conn, self._dialects, steps)
