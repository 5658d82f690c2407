"""What wakes a waiter on one node: whatever ends the lock, at once, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
import redis

import handfast
from handfast.testing import Server
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import both, connected
from tests.support.tcp_relay import Relay
from tests.support.waiters import (
    FOREIGN,
    FOREIGN_KEY,
    KEY,
    KINDS,
    LONG,
    QUEUE,
    STALLED,
    Peer,
    acquire_repeatedly,
    assert_prompt,
    attempt_in_background,
    commands_sent,
    held_by_another_program,
    wait_for_queued_waiters,
    wait_for_waiters,
)
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = pytest.mark.slow

PASSED = 0.15
"""Seconds after which a lock ends that expires."""
REFUSED = "client tracking is refused"


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


WAYS: dict[str, dict[str, Any]] = {"fair": {}, "barging": {"fair": False}, "foreign": FOREIGN}
"""How a lock is waited for: in the queue, or by tracking the key of other programs."""


def key_of(way: str) -> str:
    return FOREIGN_KEY if way == "foreign" else KEY


# -- causes -------------------------------------------------------------------------------------------------------------
# Each holds the lock until it is resumed; then it ends it, and yields since when it has been free.

Cause = Generator[float, None, None]


def deleted(server: Server, peer: Peer, way: str) -> Cause:
    server.command("SET", key_of(way), "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    server.command("DEL", key_of(way))
    yield began


def released_by_redis_py(server: Server, peer: Peer, way: str) -> Cause:
    with redis.Redis(port=server.port) as client:
        theirs = client.lock(key_of(way), timeout=LONG / 1000)
        assert theirs.acquire(blocking=False)
        yield 0.0
        began = time.monotonic()
        theirs.release()
        yield began


def expired(server: Server, peer: Peer, way: str) -> Cause:
    began = time.monotonic()
    server.command("SET", key_of(way), "a stranger", "PX", round(PASSED * 1000))
    yield 0.0
    yield began + PASSED


def flushed(server: Server, peer: Peer, way: str) -> Cause:
    server.command("SET", key_of(way), "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    server.command("FLUSHALL")
    yield began


def released_by_a_process(server: Server, peer: Peer, way: str) -> Cause:
    peer.acquire(server.url, kind=way)
    yield 0.0
    began = time.monotonic()
    peer.release()
    yield began


def released_by_a_process_of_the_other_kind(server: Server, peer: Peer, way: str) -> Cause:
    """A fair waiter behind a barging holder, or the other way round."""
    return released_by_a_process(server, peer, {"fair": "barging", "barging": "fair"}.get(way, way))


CAUSES: dict[str, Callable[[Server, Peer, str], Cause]] = {
    each.__name__: each
    for each in (
        *(deleted, released_by_redis_py, expired, flushed),
        *(released_by_a_process, released_by_a_process_of_the_other_kind),
    )
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cause", CAUSES)
@both
async def test_waiter_is_woken_by_every_way_a_lock_can_end(
    mode: str, cause: str, way: str, server: Server, peer: Peer
) -> None:
    async with connected(mode, server.url) as client:
        lock = client.lock("a", **WAYS[way])

        async def lateness() -> float:
            end = CAUSES[cause](server, peer, way)
            next(end)
            want = attempt_in_background(lock, wait=STALLED)
            await wait_for_queued_waiters(lock, 1, server)
            free_since = next(end)
            got = await want
            end.close()
            assert got.lease, got.error
            assert got.at >= free_since - 0.001
            await got.lease.release()
            return got.at - free_since

        # A waiter in the queue does not know at once that the holder is another program, and looks again until it does.
        await assert_prompt(lateness, 0.1)


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_no_wake_up_is_lost_in_hundreds_of_hand_overs(mode: str, kind: str, server: Server) -> None:
    """A lost one would cost the ttl, which is longer than anybody here waits."""
    async with connected(mode, server.url, ttl=20.0) as one, connected(mode, server.url, ttl=20.0) as two:
        locks = [client.lock("a", **KINDS[kind]) for client in (one, two, one, two)]
        await asyncio.gather(*[acquire_repeatedly(lock, 75) for lock in locks])
        await eventually_async(lambda: server.command("EXISTS", KEY, KEY + ":q") == 0)


@both
async def test_several_names_of_other_programs_wake_when_the_last_is_free(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:

        async def lateness() -> float:
            for name in ("a", "b"):
                server.command("SET", name, "a stranger", "PX", LONG)
            lock = client.lock(["a", "b"], **FOREIGN)
            want = attempt_in_background(lock, wait=STALLED)
            await wait_for_queued_waiters(lock, 1, server)
            server.command("DEL", "a")
            # It has looked again, and found the other.
            await eventually_async(lambda: int(server.info("tracking_total_keys")) == 2)
            assert not want.done()
            began = time.monotonic()
            server.command("DEL", "b")
            got = await want
            await got.lease.release()
            return got.at - began

        await assert_prompt(lateness)


@both
async def test_several_names_wake_when_the_last_is_released(mode: str, server: Server) -> None:
    async with connected(mode, server.url, ttl=20.0) as holding, connected(mode, server.url) as client:

        async def lateness() -> float:
            first, second = [await holding.lock(name).acquire() for name in ("a", "b")]
            want = attempt_in_background(client.lock(["a", "b"]), wait=STALLED)
            await eventually_async(lambda: server.command("EXISTS", QUEUE))
            await first.release()
            await eventually_async(lambda: server.command("EXISTS", "handfast:{b}:q"))
            assert not want.done()
            began = time.monotonic()
            await second.release()
            got = await want
            await got.lease.release()
            return got.at - began

        await assert_prompt(lateness)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("again", [False, True], ids=["unheard", "reconnected"])
@both
async def test_waiter_whose_connection_is_cut_gets_the_lock_at_once(
    mode: str, again: bool, way: str, server: Server
) -> None:
    """The lock is released while nobody listens, or after the waiter has connected again."""

    def cut() -> None:
        clients = server.command("CLIENT", "LIST")
        assert isinstance(clients, bytes)
        cut = [line.split()[0].split("=")[1] for line in clients.decode().splitlines() if " name=waiter " in line]
        assert cut
        for each in cut:
            server.command("CLIENT", "KILL", "ID", each)

    def claims() -> object:
        return server.command("HVALS", KEY + ":c")

    async def heard_again(lease: handfast.Lease, before: object) -> None:
        if way == "foreign":
            lease.extend()  # a waiter that tracks the key has to ask anew
            await eventually_async(lambda: int(server.info("tracking_total_keys")))
        else:
            await eventually_async(lambda: claims() != before, what="a claim with another channel")

    with handfast.connect(server.url) as holding:
        async with connected(mode, server.url + "?client_name=waiter") as client:
            lock = client.lock("a", **WAYS[way])

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0, **WAYS[way]).acquire(wait=1)
                want = attempt_in_background(lock, wait=STALLED)
                await wait_for_queued_waiters(lock, 1, server)
                before = claims()
                cut()
                if again:
                    await heard_again(lease, before)
                began = time.monotonic()
                lease.release()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await assert_prompt(lateness, 0.05 if again else 0.15)


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_grant_lost_with_its_connection_does_not_block_the_lock(mode: str, kind: str, one: Server) -> None:
    """The server has given the lock to an attempt that was never told so; nobody may have to wait for its ttl."""
    with Relay(one.url) as relay:
        async with connected(mode, relay.url, ttl=20.0) as client:
            lock = client.lock("a", **KINDS[kind])
            await (await lock.acquire()).release()
            relay.cut_after = 0
            got = await attempt_in_background(lock, wait=STALLED)
            assert relay.cut_after is None
            assert got.lease, got.error
            await got.lease.release()


@pytest.mark.parametrize("way", WAYS)
@both
async def test_waiters_outlive_a_restart_of_the_server(mode: str, way: str) -> None:
    """A restarted server has forgotten the lock and all waiters."""
    with Server() as server:
        async with connected(mode, server.url) as client:
            server.command("SET", key_of(way), "a stranger", "PX", LONG)
            lock = client.lock("a", **WAYS[way])
            waiters = [attempt_in_background(lock, wait=10)]
            await wait_for_waiters(lock, 1)
            waiters.append(attempt_in_background(lock, wait=10))
            await wait_for_waiters(lock, 2)
            server.restart()
            first = await asyncio.wait_for(waiters[0], 1)
            await first.lease.release()
            second = await asyncio.wait_for(waiters[1], 1)
            await second.lease.release()


# -- what it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@both
async def test_waiters_send_nothing_while_the_lock_is_held(mode: str, way: str, server: Server) -> None:
    with handfast.connect(server.url, ttl=20.0) as holding, Relay(server.url) as relay:
        lease = holding.lock("a", **WAYS[way]).acquire()
        async with connected(mode, relay.url) as client:
            want = attempt_in_background(client.lock("a", **WAYS[way]), wait=1)
            asked = b"CACHING" if way == "foreign" else b"handfast:wake:"
            await eventually_async(lambda: sum(record.count(asked) for record in relay.sent) > (way != "foreign"))
            await eventually_async(lambda: server.command("EXISTS", QUEUE) or way == "foreign")
            before = commands_sent(relay.sent)
            await asyncio.sleep(0.3)  # a time to be silent in
            assert commands_sent(relay.sent) == before
            assert not want.done()
            await client.close()
            await want
        assert lease.release()


@pytest.mark.parametrize("way", WAYS)
@both
async def test_holder_that_extends_all_the_time_does_not_keep_its_waiters_busy(
    mode: str, way: str, server: Server
) -> None:
    stop = threading.Event()
    extended = 0

    def extend(lease: handfast.Lease) -> None:
        nonlocal extended
        while not stop.wait(0.005):
            lease.extend()
            extended += 1

    with handfast.connect(server.url) as holding, Relay(server.url) as relay:
        lease = holding.lock("a", **WAYS[way]).acquire()
        thread = threading.Thread(target=extend, args=(lease,))
        async with connected(mode, relay.url) as client:
            lock = client.lock("a", **WAYS[way])
            want = attempt_in_background(lock, wait=10)
            await wait_for_queued_waiters(lock, 1, server)
            thread.start()
            await eventually_async(lambda: extended > 20)
            before, began, extended = commands_sent(relay.sent), time.monotonic(), 0
            await eventually_async(lambda: extended > 60)
            per_second = (commands_sent(relay.sent) - before) / (time.monotonic() - began)
            stop.set()
            thread.join()
            assert per_second < 130
            released = time.monotonic()
            lease.release()
            got = await want
            assert got.at - released < STALLED
            await got.lease.release()


# -- without tracking ---------------------------------------------------------------------------------------------------


@pytest.fixture
def limited(server: Server) -> Iterator[str]:
    """The URL of a user who may not track; before Redis 7 that is one who may do nothing with CLIENT."""
    old = server.info("redis_version").startswith("6.")
    server.command(
        "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-client" if old else "-client|tracking"
    )
    yield server.url.replace("redis://", "redis://limited:secret@")
    server.command("ACL", "DELUSER", "limited")


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(record.levelno == logging.WARNING and REFUSED in record.getMessage() for record in caplog.records)


@both
async def test_waiter_polls_where_tracking_is_refused(
    mode: str, server: Server, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Relay(server.url) as relay:
        async with connected(mode, limited.replace(str(server.port), str(relay.port))) as client:
            lock = client.lock("a", **FOREIGN)
            with held_by_another_program(server):
                waiters = [attempt_in_background(lock, wait=10)]
                await wait_for_waiters(lock, 1)
                waiters.append(attempt_in_background(lock, wait=10))
                await wait_for_waiters(lock, 2)
                await eventually_async(lambda: warnings(caplog))
                assert server.info("tracking_total_keys") == "0"
                asked = commands_sent(relay.sent)
                await asyncio.sleep(0.5)  # a time to be quiet in
                asked = commands_sent(relay.sent) - asked
                assert 0 < asked < 60
            freed = time.monotonic()
            for each in waiters:
                got = await each
                assert got.at - freed < 0.8
                await got.lease.release()
            assert warnings(caplog) == 1, "once for each client"


@both
async def test_wait_ends_with_the_ttl_of_the_holder_where_tracking_is_refused(
    mode: str, server: Server, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(mode, limited) as client:
        lock = client.lock("a", **FOREIGN)

        async def lateness() -> float:
            began = time.monotonic()
            server.command("SET", FOREIGN_KEY, "a stranger", "PX", 100)
            got = await attempt_in_background(lock, wait=STALLED)
            await got.lease.release()
            return got.at - began - 0.1

        await assert_prompt(lateness)
    assert warnings(caplog) == 1
