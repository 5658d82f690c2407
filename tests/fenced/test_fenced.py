"""Fences without a server: imports, refused arguments, and the rules of tokens."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from handfast import ConfigError, StaleToken
from handfast.fenced import FencingMiddleware, MemoryFence, RedisFence, SqlFence
from handfast.fenced.redis import fence_key

HEAVY = ("asyncio", "psycopg", "redis", "sqlalchemy", "sqlite3", "starlette", "valkey")


@pytest.mark.skipif("COVERAGE_RUN" in os.environ, reason="coverage imports sqlite3 into every process")
def test_import_of_fences_imports_no_driver() -> None:
    code = "import sys, handfast.fenced; print([name for name in sys.argv[1:] if name in sys.modules])"
    said = subprocess.run([sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


@pytest.mark.parametrize("table", ["", "a b", 'a"b', "a;b", "1a", "a.b.c", ".a", "a.", "é", "a" * 64, "a\n", None, 7])
def test_bad_table_name_is_refused(table: Any) -> None:
    with pytest.raises(ConfigError, match="table must be"):
        SqlFence(table)


@pytest.mark.parametrize("table", ["fence", "_f1", "main.order", "a" * 63])
def test_good_table_name_is_accepted(table: str) -> None:
    fence, conn = SqlFence(table), sqlite3.connect(":memory:")
    fence.create(conn)
    fence.create(conn)
    fence.check(conn, "a", 2)
    with pytest.raises(StaleToken):
        fence.check(conn, "a", 1)
    conn.close()


@pytest.mark.parametrize("token", [0, -1, 2**53, True, 1.0, "1", b"1"])
def test_invalid_token_is_refused(token: Any) -> None:
    conn = sqlite3.connect(":memory:")
    with pytest.raises(ConfigError, match="token"):
        SqlFence().check(conn, "a", token)
    with pytest.raises(ConfigError, match="token"):
        RedisFence(SimpleNamespace(register_script=None)).set("a", 1, token)
    with pytest.raises(ConfigError, match="token"):
        asyncio.run(MemoryFence().check("a", token))
    conn.close()


def test_check_takes_lease_or_name_with_token() -> None:
    conn, lease = sqlite3.connect(":memory:"), SimpleNamespace(name="a", token=3)
    check: Any = SqlFence().check
    SqlFence().create(conn)
    check(conn, lease)
    with pytest.raises(StaleToken, match="a: token 2"):
        check(conn, "a", 2)
    for args, why in (
        ((lease, 3), "a lease, or a name and a token"),
        (("a",), "a name is checked together with a token"),
        (("", 3), "name must not be empty"),
        ((None,), "a lease or its token, not None"),
        ((5,), "not the token 5 alone"),
    ):
        with pytest.raises(ConfigError, match=why):
            check(conn, *args)
    with pytest.raises(ConfigError, match="a lease with fence=False has no token"):
        check(conn, SimpleNamespace(name="a", token=None))
    conn.close()


@pytest.mark.parametrize("conn", [None, "sqlite://", object(), SimpleNamespace(execute=print)])
def test_invalid_connection_is_refused(conn: Any) -> None:
    with pytest.raises(ConfigError, match="a connection or session of sqlite3, psycopg 3 or SQLAlchemy 2"):
        SqlFence().check(conn, "a", 1)


def test_engine_and_unsupported_database_are_refused() -> None:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(ConfigError, match="Engine"):
        SqlFence().create(engine)
    with engine.connect() as conn:
        conn.dialect.name = "mysql"
        with pytest.raises(ConfigError, match="SQLite and PostgreSQL, not mysql"):
            SqlFence().create(conn)
    engine.dispose()


STEPS = st.tuples(st.sampled_from("ab"), st.integers(1, 6), st.booleans())


@given(st.lists(STEPS, max_size=12))
def test_table_keeps_maximum_token_per_name(steps: list[tuple[str, int, bool]]) -> None:
    """Compare with a dictionary. A step is (name, token, whether it is committed)."""
    fence, conn = SqlFence(), sqlite3.connect(":memory:")
    fence.create(conn)
    newest: dict[str, int] = {}
    for name, token, committed in steps:
        if token < newest.get(name, 0):
            with pytest.raises(StaleToken) as caught, conn:
                fence.check(conn, name, token)
            assert (caught.value.resource, caught.value.token, caught.value.seen) == (name, token, newest[name])
            continue
        fence.check(conn, name, token)
        if committed:
            conn.commit()
            newest[name] = token
        else:
            conn.rollback()
    assert dict(conn.execute("SELECT name, token FROM handfast_fence")) == newest
    conn.close()


# -- Redis

BRACED = st.text("ab{}:", min_size=1, max_size=8).map(str.encode)


@given(BRACED)
def test_fence_is_in_slot_of_its_key(key: bytes) -> None:
    tag = key[key.find(b"{") + 1 :] if b"{" in key else b""
    tagged = b"}" in tag and not tag.startswith(b"}")
    if tagged or b"}" not in key:
        assert key_slot(fence_key(b"fence", key)) == key_slot(key)


@given(BRACED, BRACED)
def test_each_key_has_its_own_fence(one: bytes, other: bytes) -> None:
    assert (fence_key(b"fence", one) == fence_key(b"fence", other)) == (one == other)


@pytest.mark.parametrize("prefix", ["", "a{b", "a}", None, b"a"])
def test_bad_prefix_is_refused(prefix: Any) -> None:
    with pytest.raises(ConfigError, match="prefix must be"):
        RedisFence(SimpleNamespace(register_script=None), prefix=prefix)


def test_bad_client_script_or_keys_are_refused() -> None:
    client: Any = object()
    with pytest.raises(ConfigError, match="redis-py or valkey-py, and no pipeline, not an object of type object"):
        RedisFence(client)
    fence = RedisFence(SimpleNamespace(register_script=None))
    with pytest.raises(ConfigError, match="at least one key"):
        fence.run("return 1", [], [], 1)
    with pytest.raises(ConfigError, match="at least one key"):
        fence.run("return 1", "stock", [], 1)
    stock: Any = 5
    for call in (
        lambda: fence.set(stock, 1, 1),
        lambda: fence.check(stock, 1),
        lambda: fence.run("", ["a", stock], [], 1),
    ):
        with pytest.raises(ConfigError, match="a key is a string or bytes, not 5"):
            call()
    with pytest.raises(ConfigError, match="#!"):
        fence.run("#!lua flags=no-writes\nreturn 1", ["stock"], [], 1)


# -- ASGI


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), max_size=12))
def test_memory_keeps_maximum_token_per_resource(steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        fence, newest = MemoryFence(), {"a": 0, "b": 0}
        for name, token in steps:
            try:
                await fence.check(name, token)
                accepted = True
            except StaleToken as stale:
                accepted = False
                assert stale.seen == newest[name]  # noqa: PT017
            assert accepted == (token >= newest[name])
            newest[name] = max(newest[name], token)

    asyncio.run(main())


async def unused_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not reached")


def test_bad_store_or_methods_are_refused() -> None:
    store: Any = object()
    with pytest.raises(ConfigError, match="store must have check"):
        FencingMiddleware(unused_app, store)
    with pytest.raises(ConfigError, match="methods must be a list"):
        FencingMiddleware(unused_app, MemoryFence(), methods="POST")
