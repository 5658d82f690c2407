"""lose() acts like a real loss: blocking and asyncio clients, one node and a quorum."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast.testing import Proxy, Server, Servers, lose
from tests.support.sync_and_async import Awaited, bootstrap, both, connected, plain


def inner(thing: Any) -> Any:
    return thing.inner if isinstance(thing, Awaited) else thing


@both
async def test_lease_is_lost_at_once_and_for_good(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lease = await client.lock("a").acquire()
        lost = lease.lost
        lose(inner(lease), "the test said so")
        if mode == "asyncio":
            await asyncio.wait_for(lost.wait(), 1)
        assert lost.is_set()
        assert not lease.valid
        assert lease.remaining() == 0.0
        with pytest.raises(handfast.LeaseLost, match="the test said so"):
            lease.check()
        with pytest.raises(handfast.LeaseLost):
            await lease.extend()
        assert await lease.release() is False


@both
async def test_lock_is_free_when_lose_returns(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client, connected(mode, one.url) as rival:
        lease = await client.lock("a").acquire()
        lose(inner(lease))
        heir = await rival.lock("a").acquire(wait=0)
        assert heir.token > lease.token
        # The release of the lost lease must not free the lock of the next holder.
        assert await lease.release() is False
        assert heir.valid
        assert await heir.release() is True


@both
async def test_keys_are_deleted_on_every_node_of_quorum(mode: str, five: Servers) -> None:
    async with connected(mode, five.urls) as client, connected(mode, five.urls) as rival:
        await bootstrap(client)
        lease = await client.lock(["a", "b"]).acquire()
        lose(inner(lease))
        assert [node.command("EXISTS", "handfast:{a}", "handfast:{b}") for node in five] == [0] * 5
        heir = await rival.lock("b").acquire(wait=0)
        assert heir.token > lease.token


@both
async def test_lose_accepts_lock_of_held_lease(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lease = await client.lock("a").acquire()
        other = await client.lock("b").acquire()
        lose(inner(client.lock("a")))
        assert not lease.valid
        assert other.valid


@both
async def test_waiter_gets_lost_lock(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client, connected("asyncio", one.url) as rival:
        began = asyncio.Event()
        rival.listen(lambda event: event.kind == "waiting_began" and began.set())
        for fair in (False, True):
            began.clear()
            lease = await client.lock("a", fair=fair).acquire()
            waiting = asyncio.create_task(rival.lock("a", fair=fair).acquire())
            await began.wait()
            lose(inner(lease))
            heir = await asyncio.wait_for(waiting, 2)
            assert heir.token > lease.token
            await heir.release()


def test_end_of_block_raises_with_reason(client: handfast.Client) -> None:
    with pytest.raises(handfast.LeaseLost, match="lease lost \\(a test wanted it so\\)"), client.lock("a") as lease:
        lose(lease)


def test_error_of_body_takes_precedence(client: handfast.Client) -> None:
    def work() -> None:
        with client.lock("a") as lease:
            lose(lease)
            raise KeyError

    with pytest.raises(KeyError):
        work()


@plain
async def test_async_with_body_is_cancelled(one: Server) -> None:
    seen = []

    async def work(client: handfast.aio.Client) -> None:
        async with client.lock("a") as lease:
            lose(lease)
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

    async with handfast.aio.connect(one.url) as client:
        with pytest.raises(handfast.LeaseLost):
            await work(client)
    assert seen == ["cancelled"]


@plain
async def test_body_continues_with_on_lost_event(one: Server) -> None:
    seen = []

    async def work(client: handfast.aio.Client) -> None:
        async with client.lock("a") as lease:
            lose(lease)
            await asyncio.wait_for(lease.lost.wait(), 1)
            seen.append("went on")

    async with handfast.aio.connect(one.url, on_lost="event") as client:
        with pytest.raises(handfast.LeaseLost):
            await work(client)
    assert seen == ["went on"]


def test_lease_of_another_thread_is_lost_there(client: handfast.Client) -> None:
    entered, ended = threading.Event(), []

    def work() -> None:
        try:
            with client.lock("a") as lease:
                entered.set()
                lease.lost.wait(5)
        except handfast.LeaseLost:
            ended.append("lost")

    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(5)
    lose(client.lock("a"))
    thread.join(5)
    assert ended == ["lost"]


def test_all_entries_of_reentrant_lock_are_lost(client: handfast.Client) -> None:
    lock = client.rlock("a")
    outer, inside = lock.acquire(), lock.acquire()
    lose(inside)
    assert not outer.valid
    again = lock.acquire(wait=0)
    assert again.token > outer.token  # type: ignore[operator]
    again.release()


def test_loss_is_logged(client: handfast.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "handfast"):
        lose(client.lock("a").acquire())
    assert "a: lease lost (a test wanted it so)" in caplog.text


def test_lose_can_be_repeated(client: handfast.Client) -> None:
    lease = client.lock("a").acquire()
    lose(lease, "first")
    lose(lease, "second")
    with pytest.raises(handfast.LeaseLost, match="first"):
        lease.check()


def test_lose_refuses_lease_that_is_not_held(client: handfast.Client) -> None:
    with pytest.raises(RuntimeError, match="a: this client does not hold it"):
        lose(client.lock("a"))
    lease = client.lock("a").acquire()
    lease.release()
    with pytest.raises(RuntimeError, match="a: the lease was released"):
        lose(lease)
    with pytest.raises(RuntimeError, match="a: this client does not hold it"):
        lose(client.lock("a"))


def test_lose_needs_no_answering_server(one: Server) -> None:
    with Proxy(one) as proxy, handfast.connect(proxy.url) as client:
        lease = client.lock("a").acquire()
        lost = lease.lost
        proxy.half_open()
        lose(lease)
        assert lost.is_set()
        proxy.heal()
