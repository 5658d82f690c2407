"""SqlFence on real SQLite files: several writing processes, and a paused holder."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import event, orm, text
from sqlalchemy.pool import NullPool

import handfast
from handfast import ConfigError, StaleToken
from handfast.fenced import SqlFence
from handfast.testing import Server, reaper

FENCE = SqlFence()
NAME = "stock:7"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    conn = sqlite3.connect(path)
    with conn:
        FENCE.create(conn)
        conn.execute("CREATE TABLE stock (buyer INTEGER)")
        conn.execute("INSERT INTO stock VALUES (0)")
        conn.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, token INTEGER)")
    conn.close()
    return path


@pytest.fixture
def conn(shop: Path) -> Iterator[sqlite3.Connection]:
    conn = sqlite3.connect(shop)
    yield conn
    conn.close()


def sell(conn: sqlite3.Connection, token: int) -> None:
    with conn:
        FENCE.check(conn, NAME, token)
        conn.execute("UPDATE stock SET buyer = ?", [token])


def ask(conn: sqlite3.Connection, question: str) -> list[Any]:
    return [row[0] for row in conn.execute(question)]


def test_stale_write_raises_and_changes_nothing(conn: sqlite3.Connection) -> None:
    sell(conn, 5)
    with pytest.raises(StaleToken, match="token 3 is stale, 5 was seen") as caught:
        sell(conn, 3)
    assert (caught.value.resource, caught.value.token, caught.value.seen) == (NAME, 3, 5)
    assert not conn.in_transaction
    assert ask(conn, "SELECT buyer FROM stock") == ask(conn, "SELECT token FROM handfast_fence") == [5]
    sell(conn, 5)
    sell(conn, 2**53 - 1)
    assert ask(conn, "SELECT buyer FROM stock") == ask(conn, "SELECT token FROM handfast_fence") == [2**53 - 1]


def test_rolled_back_check_is_forgotten(conn: sqlite3.Connection) -> None:
    FENCE.check(conn, NAME, 9)
    conn.rollback()
    sell(conn, 3)


def test_cursor_and_row_factory_of_caller_are_unchanged(conn: sqlite3.Connection) -> None:
    conn.row_factory = lambda cursor, row: {"row": row}
    cursor = conn.execute("SELECT 42")
    FENCE.check(cursor, NAME, 5)
    with pytest.raises(StaleToken):
        FENCE.check(cursor, NAME, 4)
    assert cursor.fetchall() == [{"row": (42,)}]


def test_check_locks_database_until_commit(conn: sqlite3.Connection, shop: Path) -> None:
    other = sqlite3.connect(shop, timeout=0)
    FENCE.check(conn, NAME, 5)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        FENCE.check(other, NAME, 6)
    conn.commit()
    sell(other, 6)
    with pytest.raises(StaleToken):
        FENCE.check(conn, NAME, 5)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        FENCE.check(other, NAME, 7)  # a refused check also keeps the lock until its transaction ends
    conn.rollback()
    other.close()


def test_old_snapshot_raises_sqlite_error(conn: sqlite3.Connection, shop: Path) -> None:
    conn.execute("PRAGMA journal_mode = wal")
    conn.execute("BEGIN")
    ask(conn, "SELECT buyer FROM stock")
    other = sqlite3.connect(shop)
    sell(other, 6)
    other.close()
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        FENCE.check(conn, NAME, 7)


def test_autocommit_is_refused_outside_transaction(shop: Path) -> None:
    conn = sqlite3.connect(shop, isolation_level=None)
    with pytest.raises(ConfigError, match="autocommit"):
        FENCE.check(conn, NAME, 5)
    with pytest.raises(ConfigError, match="autocommit"):
        FENCE.check(conn.cursor(), NAME, 5)
    assert ask(conn, "SELECT count(*) FROM handfast_fence") == [0]
    conn.execute("BEGIN")
    FENCE.check(conn, NAME, 5)
    conn.execute("COMMIT")
    assert ask(conn, "SELECT token FROM handfast_fence") == [5]
    conn.close()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has the autocommit attribute since Python 3.12")
def test_autocommit_attribute_is_respected(shop: Path) -> None:
    conn = sqlite3.connect(shop, autocommit=True)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="autocommit"):
        FENCE.check(conn, NAME, 5)
    conn.execute("BEGIN")
    FENCE.check(conn, NAME, 5)
    conn.execute("COMMIT")
    conn.close()
    conn = sqlite3.connect(shop, autocommit=False, isolation_level=None)  # type: ignore[call-overload]
    FENCE.check(conn, NAME, 6)
    conn.commit()
    conn.close()


def test_concurrent_creation_of_table(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)
    errors: list[BaseException] = []

    def create(path: Path) -> None:
        conn = sqlite3.connect(path, timeout=30)
        barrier.wait()
        try:
            FENCE.create(conn)
        except sqlite3.Error as error:
            errors.append(error)
        conn.close()

    for turn in range(5):
        threads = [threading.Thread(target=create, args=(tmp_path / f"{turn}.db",)) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


# -- SQLAlchemy


def engine(path: Path, **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(f"sqlite:///{path}", poolclass=NullPool, **options)


@pytest.mark.parametrize("kind", ["connection", "session", "scoped"])
def test_sqlalchemy_checks_in_its_transaction(shop: Path, conn: sqlite3.Connection, kind: str) -> None:
    own = engine(shop)
    makers = {"connection": own.connect, "session": lambda: orm.Session(own)}
    for token, accepted in ((5, True), (3, False), (5, True), (8, True)):
        held: Any = makers[kind]() if kind in makers else orm.scoped_session(orm.sessionmaker(own))
        try:
            held.execute(text("UPDATE stock SET buyer = :token"), {"token": token})
            FENCE.check(held, NAME, token)
            held.commit()
        except StaleToken as stale:
            held.rollback()
            assert (accepted, stale.seen) == (False, 5)  # noqa: PT017
        else:
            assert accepted
        held.close()
    assert ask(conn, "SELECT buyer FROM stock") == ask(conn, "SELECT token FROM handfast_fence") == [8]


def test_sqlalchemy_in_autocommit_mode_is_refused(shop: Path, conn: sqlite3.Connection) -> None:
    with engine(shop, isolation_level="AUTOCOMMIT").begin() as held, pytest.raises(ConfigError, match="autocommit"):
        FENCE.check(held, NAME, 5)
    assert ask(conn, "SELECT count(*) FROM handfast_fence") == [0]


def test_sqlalchemy_begin_recipe_is_allowed(shop: Path, conn: sqlite3.Connection) -> None:
    own = engine(shop)

    @event.listens_for(own, "connect")
    def disable_pysqlite_begin(dbapi: sqlite3.Connection, record: object) -> None:
        dbapi.isolation_level = None

    @event.listens_for(own, "begin")
    def _begin(held: sqlalchemy.Connection) -> None:
        held.exec_driver_sql("BEGIN")

    with own.connect() as held:
        FENCE.check(held, NAME, 5)
        held.rollback()
        FENCE.check(held, NAME, 4)
        held.commit()
    assert ask(conn, "SELECT token FROM handfast_fence") == [4]


# -- several processes

WRITER = """
import json, random, sqlite3, sys
from handfast import StaleToken
from handfast.fenced import SqlFence

path, seed = sys.argv[1:]
dice, fence = random.Random(seed), SqlFence()
conn = sqlite3.connect(path, timeout=40)
tally = {"accepted": [], "stale": 0}
print("ready", flush=True)
sys.stdin.readline()
for turn in range(60):
    token = turn * 4 + dice.randrange(40) + 1
    try:
        with conn:
            if dice.random() < 0.5:
                conn.execute("INSERT INTO log (token) VALUES (?)", [token])
                fence.check(conn, "stock:7", token)
            else:
                fence.check(conn, "stock:7", token)
                conn.execute("INSERT INTO log (token) VALUES (?)", [token])
            conn.execute("UPDATE stock SET buyer = ?", [token])
    except StaleToken as stale:
        assert stale.seen > token
        tally["stale"] += 1
    else:
        tally["accepted"].append(token)
print(json.dumps(tally), flush=True)
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_accepted_tokens_never_decrease_in_commit_order(shop: Path, conn: sqlite3.Connection, journal: str) -> None:
    conn.execute(f"PRAGMA journal_mode = {journal}")
    conn.execute("PRAGMA synchronous = off")
    writers = [start(WRITER, str(shop), str(seed)) for seed in range(4)]
    for writer in writers:
        assert line(writer) == "ready"
    for writer in writers:
        go_on(writer)
    tallies = [json.loads(finish(writer)) for writer in writers]
    log = ask(conn, "SELECT token FROM log ORDER BY id")
    assert log == sorted(log)
    assert sorted(token for tally in tallies for token in tally["accepted"]) == log
    assert sum(tally["stale"] for tally in tallies) == 240 - len(log) > 0
    assert ask(conn, "SELECT buyer FROM stock") == ask(conn, "SELECT token FROM handfast_fence") == [log[-1]]


HOLDER = """
import sqlite3, sys
import handfast
from handfast.fenced import SqlFence

url, path = sys.argv[1:]
client = handfast.connect(url)
lease = client.lock("stock:7", ttl=0.5).acquire()
assert lease.valid
print("valid", flush=True)
sys.stdin.readline()  # paused here, as a long garbage collection would do
conn = sqlite3.connect(path)
try:
    with conn:
        SqlFence().check(conn, lease)
        conn.execute("UPDATE stock SET buyer = ?", [lease.token])
except handfast.StaleToken as stale:
    print(stale.token, stale.seen, flush=True)
"""


def test_holder_paused_beyond_ttl_cannot_write(one: Server, shop: Path, conn: sqlite3.Connection) -> None:
    holder = start(HOLDER, one.url, str(shop))
    assert line(holder) == "valid"
    os.kill(holder.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, holder.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    with handfast.connect(one.url) as client, client.lock(NAME, wait=30.0) as lease:
        with conn:
            FENCE.check(conn, lease)
            conn.execute("UPDATE stock SET buyer = ?", [lease.token])
        os.kill(holder.pid, signal.SIGCONT)
        go_on(holder)
        older, newer = map(int, finish(holder).split())
        assert older < newer == lease.token
    assert ask(conn, "SELECT buyer FROM stock") == [newer]


def start(code: str, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *args]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    reaper.watch(process.pid, None)  # it may still be paused when the test ends
    return process


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> str:
    """Its last line of output."""
    reaper.forget(process.pid)
    said, _ = process.communicate(timeout=50)
    assert process.returncode == 0
    return said.strip()
