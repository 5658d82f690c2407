"""SqlFence on a real PostgreSQL: every kind of connection, every isolation level, concurrent writers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.errors import SerializationFailure
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from sqlalchemy.pool import NullPool

from handfast import ConfigError, StaleToken
from handfast.fenced import SqlFence
from tests.support.postgres import ask, database, postgres
from tests.support.sync_and_async import plain

__all__ = ["database", "postgres"]

LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")
FENCE = SqlFence()
NAME = "stock:7"
THREADS = ThreadPoolExecutor(32)
"""More threads than writers: writers that wait for a lock must not take the thread of its holder."""


class Transaction:
    """A user's transaction, with the same methods for every kind of connection."""

    def __init__(self, conn: Any, blocking: bool, text: Callable[[str], Any]) -> None:
        self.conn = conn
        self._blocking = blocking
        self._text = text

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._blocking:
            return await asyncio.get_running_loop().run_in_executor(THREADS, function, *args)
        return await function(*args)

    async def check(self, token: int, name: str = NAME) -> None:
        await self.call(FENCE.check, self.conn, name, token)

    async def execute(self, statement: str) -> Any:
        return await self.call(self.conn.execute, self._text(statement))

    async def sell(self, token: int) -> None:
        """Write the newest buyer and a line of the log. The numbers of the log grow in commit order."""
        await self.execute(f"UPDATE stock SET buyer = {token}")
        await self.execute(f"INSERT INTO log (token) VALUES ({token})")


async def of_psycopg(url: str, level: str) -> Transaction:
    conn = await asyncio.to_thread(psycopg.connect, url, row_factory=dict_row)
    conn.isolation_level = LEVELS.index(level) + 2
    return Transaction(conn, True, str)


async def of_psycopg_async(url: str, level: str) -> Transaction:
    conn = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
    await conn.set_isolation_level(LEVELS.index(level) + 2)
    return Transaction(conn, False, str)


def engine_url(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:")


def engine(url: str, level: str) -> Any:
    return sqlalchemy.create_engine(engine_url(url), isolation_level=level, poolclass=NullPool)


def async_engine(url: str, level: str) -> Any:
    return sqlalchemy_asyncio.create_async_engine(engine_url(url), isolation_level=level, poolclass=NullPool)


async def of_sqlalchemy(url: str, level: str) -> Transaction:
    return Transaction(await asyncio.to_thread(engine(url, level).connect), True, sqlalchemy.text)


async def of_session(url: str, level: str) -> Transaction:
    return Transaction(orm.Session(engine(url, level)), True, sqlalchemy.text)


async def of_sqlalchemy_async(url: str, level: str) -> Transaction:
    return Transaction(await async_engine(url, level).connect(), False, sqlalchemy.text)


async def of_session_async(url: str, level: str) -> Transaction:
    return Transaction(sqlalchemy_asyncio.AsyncSession(async_engine(url, level)), False, sqlalchemy.text)


KINDS: dict[str, Callable[[str, str], Awaitable[Transaction]]] = {
    "psycopg": of_psycopg,
    "psycopg-async": of_psycopg_async,
    "sqlalchemy": of_sqlalchemy,
    "session": of_session,
    "sqlalchemy-async": of_sqlalchemy_async,
    "session-async": of_session_async,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_level = pytest.mark.parametrize("level", LEVELS)


@asynccontextmanager
async def transaction(url: str, kind: str, level: str = LEVELS[0]) -> AsyncIterator[Transaction]:
    """A transaction that is committed at the end and rolled back by an exception."""
    own = await KINDS[kind](url, level)
    try:
        yield own
        await own.call(own.conn.commit)
    except BaseException:
        await own.call(own.conn.rollback)
        raise
    finally:
        await own.call(own.conn.close)


def failed_to_serialize(error: BaseException) -> bool:
    return isinstance(error.orig if isinstance(error, DBAPIError) else error, SerializationFailure)


@pytest.fixture
def shop(database: str) -> str:
    with psycopg.connect(database) as conn:
        FENCE.create(conn)
        conn.execute("CREATE TABLE stock (buyer bigint)")
        conn.execute("INSERT INTO stock VALUES (0)")
        conn.execute("CREATE TABLE log (id bigserial PRIMARY KEY, token bigint)")
    return database


async def sell(url: str, kind: str, level: str, token: int, late: bool = False) -> None:
    async with transaction(url, kind, level) as own:
        if not late:
            await own.check(token)
        await own.sell(token)
        if late:
            await own.check(token)


async def wait_for_blocked_session(url: str) -> None:
    """Wait until a session waits for a lock that another session holds."""
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    async with asyncio.timeout(30):
        while await asyncio.to_thread(ask, url, waiting) == [0]:
            pass


@every_level
@every_kind
@plain
async def test_stale_write_raises_and_changes_nothing(shop: str, kind: str, level: str) -> None:
    await sell(shop, kind, level, 5)
    with pytest.raises(StaleToken, match="token 3 is stale, 5 was seen") as caught:
        await sell(shop, kind, level, 3, late=True)
    assert (caught.value.resource, caught.value.token, caught.value.seen) == (NAME, 3, 5)
    assert ask(shop, "SELECT buyer FROM stock") == [5]
    assert ask(shop, "SELECT token FROM handfast_fence") == [5]
    await sell(shop, kind, level, 5)
    await sell(shop, kind, level, 9)
    assert ask(shop, "SELECT token FROM log ORDER BY id") == [5, 5, 9]


@every_level
@every_kind
@plain
async def test_stale_check_waits_for_newer_writer_and_is_refused(shop: str, kind: str, level: str) -> None:
    await sell(shop, kind, level, 1)
    async with transaction(shop, kind, level) as newer:
        await newer.check(9)
        stale = asyncio.create_task(sell(shop, kind, level, 3))
        await wait_for_blocked_session(shop)
        await newer.sell(9)
    error = (await asyncio.gather(stale, return_exceptions=True))[0]
    assert isinstance(error, StaleToken) if level == LEVELS[0] else failed_to_serialize(error), repr(error)
    with pytest.raises(StaleToken):
        await sell(shop, kind, level, 3)
    assert ask(shop, "SELECT token FROM log ORDER BY id") == [1, 9]


@every_level
@every_kind
@plain
async def test_newer_check_waits_for_commit_of_older_write(shop: str, kind: str, level: str) -> None:
    async with transaction(shop, kind, level) as older:
        await older.check(3)
        newer = asyncio.create_task(sell(shop, kind, level, 9))
        await wait_for_blocked_session(shop)
        await older.sell(3)
    error = (await asyncio.gather(newer, return_exceptions=True))[0]
    if level == LEVELS[0]:
        assert error is None, repr(error)
    else:
        assert failed_to_serialize(error), repr(error)
        await sell(shop, kind, level, 9)
    assert ask(shop, "SELECT token FROM log ORDER BY id") == [3, 9]


@every_kind
@plain
async def test_accepted_tokens_never_decrease_in_commit_order(shop: str, kind: str) -> None:
    """Six concurrent writers with mostly growing tokens, at various isolation levels."""
    dice = random.Random(kind)
    accepted: list[int] = []
    outcomes: dict[str, int] = {"accepted": 0, "stale": 0, "failed": 0}

    async def writer(tokens: list[tuple[int, str, bool]]) -> None:
        for token, level, look_first in tokens:
            try:
                async with transaction(shop, kind, level) as own:
                    if look_first:
                        await own.execute("SELECT 1")  # the snapshot is older than the check
                    await own.check(token)
                    await own.sell(token)
            except StaleToken as stale:
                outcomes["stale" if stale.seen > token else "wrong"] += 1
            except (psycopg.Error, DBAPIError) as error:
                if not failed_to_serialize(error):
                    raise
                outcomes["failed"] += 1
            else:
                accepted.append(token)
                outcomes["accepted"] += 1

    plans = [
        [(turn * 10 + dice.randrange(30) + 1, dice.choice(LEVELS), dice.random() < 0.3) for turn in range(10)]
        for _ in range(6)
    ]
    async with asyncio.timeout(50):
        await asyncio.gather(*map(writer, plans))
    log = ask(shop, "SELECT token FROM log ORDER BY id")
    assert log == sorted(log)
    assert sorted(accepted) == log
    assert sum(outcomes.values()) == 60
    assert min(outcomes["accepted"], outcomes["stale"]) > 0
    assert ask(shop, "SELECT buyer FROM stock") == ask(shop, "SELECT token FROM handfast_fence") == [log[-1]]


@every_kind
@plain
async def test_rolled_back_check_is_forgotten(shop: str, kind: str) -> None:
    own = await KINDS[kind](shop, LEVELS[0])
    await own.check(9)
    await own.call(own.conn.rollback)
    await own.call(own.conn.close)
    await sell(shop, kind, LEVELS[0], 3)
    assert ask(shop, "SELECT token FROM handfast_fence") == [3]


@every_kind
@plain
async def test_concurrent_creation_of_table(database: str, kind: str) -> None:
    fence = SqlFence("public.Tokens_2")

    async def create() -> None:
        async with transaction(database, kind) as own:
            await own.call(fence.create, own.conn)

    for _ in range(3):
        await asyncio.gather(*(create() for _ in range(8)))
        async with transaction(database, kind) as own:
            await own.call(fence.check, own.conn, "a", 1)
            await own.execute('DROP TABLE public."Tokens_2"')


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "psycopg" not in kind])
@plain
async def test_sqlalchemy_in_autocommit_mode_is_refused(shop: str, kind: str) -> None:
    with pytest.raises(ConfigError, match="autocommit"):
        await sell(shop, kind, "AUTOCOMMIT", 1)
    assert ask(shop, "SELECT count(*) FROM handfast_fence") == [0]
