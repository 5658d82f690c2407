"""SqlFence on psycopg connections: modes, cursors, rights; and with real leases."""

from __future__ import annotations

import psycopg
import pytest

import handfast
from handfast import ConfigError, StaleToken
from handfast.fenced import SqlFence
from tests.support.postgres import ask, database, postgres
from tests.support.sync_and_async import plain

__all__ = ["database", "postgres"]

FENCE = SqlFence()
NAME = "stock:7"


@pytest.fixture
def shop(database: str) -> str:
    with psycopg.connect(database) as conn:
        FENCE.create(conn)
    return database


def test_user_without_create_right_can_call_create(shop: str) -> None:
    (schema,) = ask(shop, "SELECT current_schema()")
    with psycopg.connect(shop) as conn:
        conn.execute("DROP ROLE IF EXISTS clerk")
        conn.execute("CREATE ROLE clerk LOGIN")
        conn.execute("GRANT SELECT, INSERT, UPDATE ON handfast_fence TO clerk")
        conn.execute(f"GRANT USAGE ON SCHEMA {schema} TO clerk".encode())
    with psycopg.connect(shop, user="clerk") as conn:
        FENCE.create(conn)
        FENCE.check(conn, NAME, 1)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            SqlFence("another").create(conn)
    with psycopg.connect(shop) as conn:
        conn.execute("DROP OWNED BY clerk")
        conn.execute("DROP ROLE clerk")


def test_missing_table_raises_driver_error(database: str) -> None:
    with psycopg.connect(database) as conn, pytest.raises(psycopg.errors.UndefinedTable):
        FENCE.check(conn, NAME, 1)


def test_psycopg_autocommit_is_refused_outside_transaction(shop: str) -> None:
    with psycopg.connect(shop, autocommit=True) as conn:
        with pytest.raises(ConfigError, match="autocommit"):
            FENCE.check(conn, NAME, 1)
        with conn.pipeline(), pytest.raises(ConfigError, match="autocommit"):
            FENCE.check(conn, NAME, 1)
        assert ask(shop, "SELECT count(*) FROM handfast_fence") == [0]
        with conn.transaction():
            FENCE.check(conn, NAME, 1)
        conn.execute("BEGIN")
        FENCE.check(conn, NAME, 2)
        conn.execute("COMMIT")
    assert ask(shop, "SELECT token FROM handfast_fence") == [2]


@plain
async def test_async_psycopg_autocommit_is_refused_outside_transaction(shop: str) -> None:
    async with await psycopg.AsyncConnection.connect(shop, autocommit=True) as conn:
        with pytest.raises(ConfigError, match="autocommit"):
            await FENCE.check(conn, NAME, 1)
        async with conn.transaction():
            await FENCE.check(conn, NAME, 1)
    assert ask(shop, "SELECT token FROM handfast_fence") == [1]


def test_pipeline_and_savepoint_are_allowed(shop: str) -> None:
    with psycopg.connect(shop) as conn, conn.pipeline():
        FENCE.check(conn, NAME, 5)
        with pytest.raises(StaleToken), conn.transaction():
            FENCE.check(conn, NAME, 3)
        FENCE.check(conn, NAME, 6)
    assert ask(shop, "SELECT token FROM handfast_fence") == [6]


def test_cursor_of_caller_keeps_its_result(shop: str) -> None:
    with psycopg.connect(shop, cursor_factory=psycopg.RawCursor) as conn:
        cursor = conn.execute("SELECT 42 WHERE $1", [True])
        FENCE.check(cursor, NAME, 5)
        assert cursor.fetchall() == [(42,)]


def test_lease_of_several_names_is_checked_for_each_name(shop: str, client: handfast.Client) -> None:
    with client.lock(["b", "a"]) as both, psycopg.connect(shop) as conn:
        FENCE.check(conn, both)
    assert both.token is not None
    assert ask(shop, "SELECT name FROM handfast_fence ORDER BY name") == ["a", "b"]
    with pytest.raises(StaleToken, match="b: token 1 is stale"), psycopg.connect(shop) as conn:
        FENCE.check(conn, "b", 1)
    with client.lock("a") as later, psycopg.connect(shop) as conn:
        FENCE.check(conn, later)
    with pytest.raises(StaleToken, match="a: "), psycopg.connect(shop) as conn:
        FENCE.check(conn, both)  # the lease is released, but the resource decides by its token
