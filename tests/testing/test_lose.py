"""A lease that is lost on demand is lost as any other: both clients, one node and a quorum."""

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
async def test_it_is_lost_at_once_and_for_good(mode: str, one: Server) -> None:
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
async def test_anybody_may_take_the_lock_when_lose_returns(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client, connected(mode, one.url) as rival:
        lease = await client.lock("a").acquire()
        lose(inner(lease))
        heir = await rival.lock("a").acquire(wait=0)
        assert heir.token > lease.token
        # The one who lost it does not take it away from the other.
        assert await lease.release() is False
        assert heir.valid
        assert await heir.release() is True


@both
async def test_the_keys_are_gone_from_every_node_of_a_quorum(mode: str, five: Servers) -> None:
    async with connected(mode, five.urls) as client, connected(mode, five.urls) as rival:
        await bootstrap(client)
        lease = await client.lock(["a", "b"]).acquire()
        lose(inner(lease))
        assert [node.command("EXISTS", "handfast:{a}", "handfast:{b}") for node in five] == [0] * 5
        heir = await rival.lock("b").acquire(wait=0)
        assert heir.token > lease.token


@both
async def test_a_lease_that_only_the_code_under_test_has_is_lost_by_its_lock(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lease = await client.lock("a").acquire()
        other = await client.lock("b").acquire()
        lose(inner(client.lock("a")))
        assert not lease.valid
        assert other.valid


@both
async def test_a_waiter_gets_what_was_lost(mode: str, one: Server) -> None:
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


def test_the_end_of_the_block_raises_with_the_reason(client: handfast.Client) -> None:
    with pytest.raises(handfast.LeaseLost, match="lease lost \\(a test wanted it so\\)"), client.lock("a") as lease:
        lose(lease)


def test_an_error_of_the_body_comes_first(client: handfast.Client) -> None:
    def work() -> None:
        with client.lock("a") as lease:
            lose(lease)
            raise KeyError

    with pytest.raises(KeyError):
        work()


@plain
async def test_the_body_of_an_async_with_is_cancelled(one: Server) -> None:
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
async def test_with_on_lost_event_the_body_goes_on(one: Server) -> None:
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


def test_a_lease_of_another_thread_is_lost_there_too(client: handfast.Client) -> None:
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


def test_all_entries_of_a_reentrant_lock_are_lost(client: handfast.Client) -> None:
    lock = client.rlock("a")
    outer, inside = lock.acquire(), lock.acquire()
    lose(inside)
    assert not outer.valid
    again = lock.acquire(wait=0)
    assert again.token > outer.token  # type: ignore[operator]
    again.release()


def test_it_is_logged_as_a_loss(client: handfast.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "handfast"):
        lose(client.lock("a").acquire())
    assert "a: lease lost (a test wanted it so)" in caplog.text


def test_a_lost_lease_may_be_lost_again(client: handfast.Client) -> None:
    lease = client.lock("a").acquire()
    lose(lease, "first")
    lose(lease, "second")
    with pytest.raises(handfast.LeaseLost, match="first"):
        lease.check()


def test_what_is_not_held_cannot_be_lost(client: handfast.Client) -> None:
    with pytest.raises(RuntimeError, match="a: this client does not hold it"):
        lose(client.lock("a"))
    lease = client.lock("a").acquire()
    lease.release()
    with pytest.raises(RuntimeError, match="a: the lease was released"):
        lose(lease)
    with pytest.raises(RuntimeError, match="a: this client does not hold it"):
        lose(client.lock("a"))


def test_it_needs_no_server_that_answers(one: Server) -> None:
    with Proxy(one) as proxy, handfast.connect(proxy.url) as client:
        lease = client.lock("a").acquire()
        lost = lease.lost
        proxy.half_open()
        lose(lease)
        assert lost.is_set()
        proxy.heal()
