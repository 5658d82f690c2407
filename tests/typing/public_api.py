"""What type checkers know of the public API. Nothing here is run: test_typing.py has mypy and basedpyright read it.

`assert_type` fails where a type changes. An ignored error fails where it is no error any more, because both checkers
report ignores that they do not need.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

from psycopg import AsyncConnection

import handfast
import handfast.aio
from handfast import backoff
from handfast.fenced import SqlFence


def clients() -> None:
    assert_type(handfast.__version__, str)
    assert_type(handfast.connect(), handfast.Client)
    assert_type(handfast.connect("redis://localhost", ttl=5, wait=None, guard=True), handfast.Client)
    assert_type(handfast.connect(["redis://a", "redis://b", "redis://c"]), handfast.Client)
    assert_type(handfast.from_client(object(), label="shop"), handfast.Client)
    assert_type(handfast.aio.connect(("redis://a",), on_lost="event"), handfast.aio.Client)
    with handfast.connect() as client:
        assert_type(client, handfast.Client)
        assert_type(handfast.bootstrap(client), dict[str, str])
        assert_type(client.close(), None)


def locks(client: handfast.Client) -> None:
    assert_type(client.lock("a"), handfast.Lock)
    assert_type(client.lock(["a", "b"], owner="job-42", ttl=timedelta(seconds=5)), handfast.Lock)
    assert_type(client.lock("a", fair=True, tries=3, backoff=backoff.exponential(0.1)), handfast.Lock)
    assert_type(client.lock("a", cohort=8, replicas=1, durable=True, max_hold=60), handfast.Lock)
    assert_type(client.rlock("a", wait=0), handfast.Lock)
    lock = client.lock("a")
    assert_type(lock.acquire(wait=1.5, ttl=2), handfast.Lease)
    assert_type(lock.acquire(wait=None), handfast.Lease)
    assert_type(lock.try_acquire(), handfast.Lease | None)
    assert_type(lock.waiters(), list[str])
    holder = lock.holder()
    if holder is not None:
        assert_type(holder.owner, str)
        assert_type(holder.remaining, float | None)
        assert_type(holder.token, int | None)
    assert_type(client.listen(lambda event: assert_type(event.name, str)), Callable[[], None])


def leases(client: handfast.Client) -> None:
    with client.lock("a") as lease:
        assert_type(lease, handfast.Lease)
        assert_type(lease.name, str)
        assert_type(lease.owner, str)
        assert_type(lease.token, int | None)
        assert_type(lease.votes, tuple[str, ...])
        assert_type(lease.valid, bool)
        assert_type(lease.remaining(), float)
        assert_type(lease.lost, threading.Event)
        assert_type(lease.check(need=1.0), None)
        assert_type(lease.extend(ttl=timedelta(seconds=3)), None)
        assert_type(lease.release(), bool)
    with client.lock("a").acquire() as again:
        assert_type(again, handfast.Lease)


def decorated(client: handfast.Client) -> None:
    @client.locked("report:{user}", wait=5)
    def report(user: int, *, pages: int = 1) -> str:
        return f"{user} {pages}"

    assert_type(report(1, pages=2), str)
    report("one")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def errors(client: handfast.Client) -> None:
    try:
        client.lock("a").acquire(wait=0)
    except handfast.Contended as contended:
        assert_type(contended.holder, str | None)
        assert_type(contended.remaining, float | None)
        assert_type(contended.name, str)
    except handfast.NoQuorum as outage:
        assert_type((outage.granted, outage.needed, outage.total), tuple[int, int, int])
        assert_type(outage.nodes["a"], str)
    except handfast.LeaseLost as loss:
        assert_type(loss.reason, str)
        assert_type(loss.token, int | None)
    except handfast.StaleToken as stale:
        assert_type((stale.resource, stale.token, stale.seen), tuple[str, int, int])
    caught: list[handfast.HandfastError] = []
    caught.append(handfast.ConfigError("wrong"))
    assert_type(isinstance(caught[0], handfast.NotAcquired), bool)


async def tasks() -> None:
    async with handfast.aio.connect() as client:
        assert_type(client, handfast.aio.Client)
        assert_type(await handfast.aio.bootstrap(client), dict[str, str])
        lock = client.lock("a")
        assert_type(lock, handfast.aio.Lock)
        assert_type(await lock.acquire(wait=1), handfast.aio.Lease)
        assert_type(await lock.try_acquire(), handfast.aio.Lease | None)
        assert_type(await lock.waiters(), list[str])
        holder = await lock.holder()
        if holder is not None:
            assert_type(holder.token, int | None)
        async with lock as lease:
            assert_type(lease, handfast.aio.Lease)
            assert_type(lease.lost, asyncio.Event)
            assert_type(lease.token, int | None)
            assert_type(await lease.extend(), None)
            assert_type(await lease.release(), bool)

        @client.locked("mail:{address}")
        async def send(address: str) -> int:
            return len(address)

        sending: Callable[[str], Coroutine[Any, Any, int]] = send
        assert_type(await sending("ann"), int)
        assert_type(await send("ann"), int)
    assert_type(await client.close(), None)


async def fences(lease: handfast.Lease, db: sqlite3.Connection, remote: AsyncConnection[Any]) -> None:
    assert_type(SqlFence().check(db, lease), None)
    assert_type(SqlFence().check(db, "a", 7), None)
    assert_type(await SqlFence("fences").check(remote, lease), None)
    SqlFence().create(remote)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    SqlFence().check(db, "a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def mistakes(client: handfast.Client, other: handfast.aio.Client) -> None:
    client.lock(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.lock("a", 5)  # type: ignore[call-arg, arg-type]  # pyright: ignore[reportCallIssue]
    client.lock("a", ttl="5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    client.lock("a", timeout=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    client.lock("a", guard=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    handfast.connect(on_lost="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    handfast.bootstrap(other)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with other.lock("a"):  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass


async def forgotten_await(lock: handfast.aio.Lock) -> None:
    lock.acquire()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    lease = await lock.acquire()
    lease.release()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
