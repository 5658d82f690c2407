"""The contract of a lock. It is the same for the blocking client and for asyncio, on every kind of server."""

# ruff: noqa: PT012 - the exit of an `async with` raises, so the block has a body.

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from handfast import Contended, LeaseLost, NoQuorum
from handfast.testing import Server
from tests.support.eventually import eventually_async, renewal_of
from tests.support.sync_and_async import both, connected

LONG = 25.0
"""A ttl beyond every deadline in here: a key that is gone was released, not expired."""


def key(name: str) -> str:
    return f"handfast:{{{name}}}"


def holder_of(server: Server, name: str) -> str | None:
    value = server.command("GET", key(name))
    return value.decode() if isinstance(value, bytes) else None


def holders_of(server: Server, names: str) -> set[str | None]:
    return {holder_of(server, name) for name in names}


def pttl(server: Server, name: str) -> float:
    left = server.command("PTTL", key(name))
    assert isinstance(left, int)
    return left / 1000


@asynccontextmanager
async def two(mode: str, server: Server) -> AsyncIterator[tuple[Any, Any]]:
    async with connected(mode, server.url) as client, connected(mode, server.url) as rival:
        yield client, rival


# -- acquire and release ------------------------------------------------------------------------------------------------


@both
async def test_lock_excludes_until_it_is_released(mode: str, server: Server) -> None:
    async with two(mode, server) as (client, rival):
        lease = await client.lock("a").acquire()
        assert holder_of(server, "a") == lease.owner
        assert lease.votes == (server.url,)
        began = time.monotonic()
        assert await rival.lock("a", wait=30).try_acquire() is None
        assert time.monotonic() - began < 1, "try_acquire() does not wait"
        with pytest.raises(Contended) as caught:
            await rival.lock("a").acquire(wait=0.1)
        assert caught.value.holder == lease.owner == holder_of(server, "a")
        assert [await lease.release(), await lease.release()] == [True, False]
        assert holder_of(server, "a") is None
        other = await rival.lock("a").try_acquire()
        assert other.valid
        assert other.token > lease.token
        assert await lease.release() is False
        assert other.check() is None
        assert await other.release()


@both
async def test_body_runs_only_while_lock_is_held(mode: str, server: Server) -> None:
    ran: list[str] = []
    async with two(mode, server) as (client, rival):
        async with client.lock("a") as lease:
            assert holder_of(server, "a") == lease.owner
            assert lease.valid
            for wait in (0, 0.3):
                with pytest.raises(Contended):
                    async with rival.lock("a", wait=wait):
                        ran.append("while another held it")
        assert holder_of(server, "a") is None
        assert not lease.valid
        with pytest.raises(ZeroDivisionError):
            async with client.lock("a"):
                raise ZeroDivisionError
        assert holder_of(server, "a") is None
        async with await client.lock("a").acquire() as lease:
            assert holder_of(server, "a") == lease.owner
        assert holder_of(server, "a") is None
    assert not ran


@both
async def test_release_leaves_lock_of_another_owner_alone(mode: str, server: Server) -> None:
    async with two(mode, server) as (client, rival):
        late = await client.lock("a", ttl=0.15, renew=False).acquire()
        other = await rival.lock("a", wait=2).acquire()
        assert await late.release() is False
        assert holder_of(server, "a") == other.owner
        assert await other.release() is True
        for names in ("b", ["b", "c"]):
            for fence in (True, False):
                lease = await client.lock(names, fence=fence).acquire()
                server.command("SET", key("b"), "a stranger", "PX", 3000)
                assert lease.valid, "so the server compares the owner, not the client"
                assert await lease.release() is False, names
                assert (holder_of(server, "b"), holder_of(server, "c")) == ("a stranger", None)
                server.command("DEL", key("b"))


@both
async def test_extend_leaves_lock_of_another_owner_alone(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lease = await client.lock("a").acquire()
        server.command("SET", key("a"), "a stranger", "PX", 3000)
        with pytest.raises(LeaseLost, match="now held by a stranger"):
            await lease.extend(ttl=20)
        assert lease.lost.is_set()
        assert not lease.valid
        assert holder_of(server, "a") == "a stranger"
        assert pttl(server, "a") <= 3
        server.command("SET", key("a"), lease.owner)
        with pytest.raises(LeaseLost):  # final, though the key has its owner again
            await lease.extend()


# -- time ---------------------------------------------------------------------------------------------------------------


@both
async def test_lease_can_be_extended_and_checked_until_it_expires(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lease = await client.lock("a", ttl=1, renew=False).acquire()
        await eventually_async(lambda: lease.remaining() < 0.9)
        await lease.extend()
        assert lease.remaining() > 0.9
        lease.check(need=0.5)
        with pytest.raises(LeaseLost):
            lease.check(need=5)
        await lease.extend(ttl=timedelta(seconds=20))
        assert 19 < lease.remaining() <= pttl(server, "a") <= 20
        await lease.extend(ttl=0.2)
        assert lease.remaining() < 0.2
        await eventually_async(lease.lost.is_set)
        assert (lease.valid, lease.remaining()) == (False, 0.0)
        with pytest.raises(LeaseLost):
            lease.check()
        with pytest.raises(LeaseLost):
            await lease.extend()
        assert await lease.release() is False


@both
async def test_renewed_lease_outlives_its_ttl(mode: str, server: Server) -> None:
    async with two(mode, server) as (client, rival), client.lock("a", ttl=0.8) as lease:
        end = time.monotonic() + 1.6
        while time.monotonic() < end:
            lease.check()
            assert await rival.lock("a").try_acquire() is None
            await asyncio.sleep(0.02)  # no synchronisation: it is watched for twice its ttl
        assert holder_of(server, "a") == lease.owner


@both
async def test_lost_is_set_when_first_read_after_loss(mode: str, one: Server) -> None:
    async with connected(mode, one.url) as client:
        lease = await client.lock("a", ttl=0.1, renew=False).acquire()
        await eventually_async(lambda: "lost" in repr(getattr(lease, "inner", lease)))
        assert lease.lost.is_set()


@both
async def test_exit_raises_lease_lost_when_release_finds_key_gone(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        with pytest.raises(LeaseLost):
            async with client.lock("a") as lease:
                server.command("SET", key("a"), "a stranger")
                assert lease.valid  # the client cannot know yet
        assert holder_of(server, "a") == "a stranger"
        async with client.lock("b") as lease:
            assert await lease.release() is True  # by the body itself: no loss


# -- several names, owners, reentrant locks -----------------------------------------------------------------------------


@both
async def test_several_names_are_acquired_all_or_none(mode: str, server: Server) -> None:
    async with two(mode, server) as (client, rival):
        async with rival.lock("b"):
            assert await client.lock(["a", "b", "c"]).try_acquire() is None
            assert holders_of(server, "ac") == {None}
            with pytest.raises(Contended):
                await client.lock(["a", "b", "c"]).acquire(wait=0.1)
            if mode == "threads":
                assert holders_of(server, "ac") == {None}
            await eventually_async(lambda: holders_of(server, "ac") == {None})  # asyncio does not await the replies
        async with client.lock(["c", "a", "b", "a"]) as lease:
            assert lease.name == "a, b, c"
            assert holders_of(server, "abc") == {lease.owner}
            for name in "abc":
                assert await rival.lock(name).try_acquire() is None
            await lease.extend(ttl=20)
            assert all(pttl(server, name) > 15 for name in "abc")
        assert holders_of(server, "abc") == {None}


@both
async def test_explicit_owner_reenters_with_full_ttl_and_same_token(mode: str, server: Server) -> None:
    async with two(mode, server) as (client, rival):
        first = await client.lock("a", owner="job-42", ttl=5).acquire()
        assert first.owner == holder_of(server, "a") == "job-42"
        second = await rival.lock("a", owner="job-42", ttl=20).acquire(wait=0)
        assert (second.token, second.owner) == (first.token, "job-42")
        assert 15 < pttl(server, "a") <= 20
        assert await rival.lock("a", owner="job-43").try_acquire() is None
        assert await rival.lock("a").try_acquire() is None
        assert await second.release() is True
        assert holder_of(server, "a") == "job-42", "the first acquisition goes on"
        assert first.valid
        assert await first.release() is True
        assert holder_of(server, "a") is None
        third = await rival.lock("a", owner="job-42").acquire(wait=0)
        assert third.token > first.token
        assert await third.release()


@both
async def test_reentrant_lock_is_reacquired_without_round_trip(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lock = client.rlock("a")
        async with lock as outer:
            before = int(server.info("total_commands_processed"))
            for _ in range(5):
                async with lock as inner, client.rlock("a") as innermost:
                    assert inner.token == innermost.token == outer.token
                    assert inner.owner == innermost.owner == outer.owner
                    assert inner is not outer
            assert int(server.info("total_commands_processed")) == before + 1  # the INFO itself
            assert holder_of(server, "a") == outer.owner
        assert holder_of(server, "a") is None


@both
async def test_lost_reentrant_lock_is_acquired_again_from_server(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:
        lock = client.rlock("a", renew=False)
        first = await lock.acquire(ttl=0.2)
        await eventually_async(first.lost.is_set)
        async with lock as second:
            assert second.token > first.token
            assert second.owner != first.owner
            # The end of the first has no effect on the second.
            assert await first.release() is False
            assert holder_of(server, "a") == second.owner
            async with lock as third:
                assert third.token == second.token
        assert holder_of(server, "a") is None


# -- ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("small_heap")
@both
async def test_dropped_lease_is_released_unless_it_is_not_renewed(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        lease = await client.lock("a").acquire()
        assert holder_of(one, "a") == lease.owner
        owner = (await client.lock("b", renew=False, ttl=2.5).acquire()).owner
        del lease
        gc.collect()
        await eventually_async(lambda: holder_of(one, "a") is None)
        assert holder_of(one, "b") == owner
        await eventually_async(lambda: holder_of(one, "b") is None, within=5)


@both
async def test_closing_client_releases_renewed_leases_only(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=LONG) as client:
        renewed = [await client.lock(name).acquire() for name in "abc"]
        fixed = await client.lock("f", renew=False).acquire()
        reentrant = await client.rlock("r").acquire()
        await client.close()
        assert holders_of(one, "abcr") == {None}
        assert holder_of(one, "f") == fixed.owner
        assert not any(lease.valid for lease in renewed)
        for lease in (renewed[0], reentrant):  # nothing is left to do, and that is no error
            assert await lease.release() is False


@both
async def test_closing_client_is_quick_and_silent_while_server_hangs(mode: str) -> None:
    with Server() as own:
        async with connected(mode, own.url, ttl=LONG) as client:
            lease = await client.lock("a").acquire()
            own.pause()
            began = time.monotonic()
            await client.close()
            assert time.monotonic() - began < 4
            assert not lease.valid
            own.resume()


@both
async def test_outage_is_not_reported_as_contention_and_leaves_no_key(mode: str) -> None:
    with Server() as own:
        async with connected(mode, own.url, ttl=0.4) as client:
            await (await client.lock("a").acquire()).release()
            own.pause()
            with pytest.raises(NoQuorum, match="no answer in 100 ms"):
                await client.lock("a").try_acquire()
            with pytest.raises(NoQuorum):
                await client.lock("b", ttl=20, node_timeout=0.05).try_acquire()
            own.resume()
            # The claims wait in the server's socket, and the releases behind them.
            await eventually_async(lambda: int(own.info("cmdstat_evalsha").split("calls=")[1].split(",")[0]) >= 6)
            await eventually_async(lambda: holders_of(own, "ab") == {None})


@both
async def test_client_reconnects_after_connection_was_killed(mode: str, one: Server) -> None:
    async with connected(mode, one.url, ttl=0.5) as client:
        async with client.lock("a") as lease:
            await eventually_async(renewal_of(lease))
            one.command("CLIENT", "KILL", "TYPE", "normal")
            await eventually_async(renewal_of(lease))
            await lease.extend()
        async with client.lock("a", wait=2):
            pass
