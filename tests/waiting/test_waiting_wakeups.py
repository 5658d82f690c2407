"""What wakes one who waits, on one node: whatever ends the lock, at once; and what does not: nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterator

import pytest
import redis

import handfast
from handfast.testing import Server
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import both, connected
from tests.support.tcp_relay import Relay
from tests.support.waiters import (
    FAIR,
    KEY,
    KINDS,
    LONG,
    STALLED,
    Peer,
    cycles,
    held,
    in_line,
    parked,
    promptly,
    sent_through,
    wanting,
)
from tests.support.waiters import nothing_fails_in_the_background as _nothing_fails  # noqa: F401

PASSED = 0.15
"""Seconds after which a lock ends that expires."""
REFUSED = "client tracking is refused"


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


# -- causes -------------------------------------------------------------------------------------------------------------
# Each holds the lock until it is resumed; then it ends it, and yields since when it has been free.

Cause = Generator[float, None, None]


def deleted(server: Server, peer: Peer, fair: bool) -> Cause:
    server.command("SET", KEY, "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    server.command("DEL", KEY)
    yield began


def released_by_redis_py(server: Server, peer: Peer, fair: bool) -> Cause:
    with redis.Redis(port=server.port) as client:
        theirs = client.lock(KEY, timeout=LONG / 1000)
        assert theirs.acquire(blocking=False)
        yield 0.0
        began = time.monotonic()
        theirs.release()
        yield began


def expired(server: Server, peer: Peer, fair: bool) -> Cause:
    began = time.monotonic()
    server.command("SET", KEY, "a stranger", "PX", round(PASSED * 1000))
    yield 0.0
    yield began + PASSED


def flushed(server: Server, peer: Peer, fair: bool) -> Cause:
    server.command("SET", KEY, "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    server.command("FLUSHALL")
    yield began


def released_by_a_process(server: Server, peer: Peer, fair: bool) -> Cause:
    peer.acquire(server.url, fair=fair)
    yield 0.0
    began = time.monotonic()
    peer.release()
    yield began


def released_by_a_process_of_the_other_kind(server: Server, peer: Peer, fair: bool) -> Cause:
    """A fair lock's holder that is waited for by others than a queue, or the other way round."""
    return released_by_a_process(server, peer, not fair)


CAUSES: dict[str, Callable[[Server, Peer, bool], Cause]] = {
    each.__name__: each
    for each in (
        *(deleted, released_by_redis_py, expired, flushed),
        *(released_by_a_process, released_by_a_process_of_the_other_kind),
    )
}


@FAIR
@pytest.mark.parametrize("cause", CAUSES)
@both
async def test_a_waiter_is_woken_by_whatever_ends_the_lock(
    mode: str, cause: str, fair: bool, server: Server, peer: Peer
) -> None:
    async with connected(mode, server.url) as client:
        lock = client.lock("a", fair=fair)

        async def lateness() -> float:
            story = CAUSES[cause](server, peer, fair)
            next(story)
            want = wanting(lock, wait=STALLED)
            await parked(lock, 1, server)
            free_since = next(story)
            got = await want
            story.close()
            assert got.lease, got.error
            assert got.at >= free_since - 0.001
            await got.lease.release()
            return got.at - free_since

        await promptly(lateness)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@both
async def test_no_wake_up_is_lost_in_hundreds_of_changes(mode: str, kind: str, server: Server) -> None:
    """A lost one would cost the ttl, which is longer than anybody here waits."""
    async with connected(mode, server.url, ttl=20.0) as one, connected(mode, server.url, ttl=20.0) as two:
        locks = [client.lock("a", **KINDS[kind]) for client in (one, two, one, two)]
        await asyncio.gather(*[cycles(lock, 75) for lock in locks])
        await eventually_async(lambda: server.command("EXISTS", KEY, KEY + ":q") == 0)


@both
async def test_several_names_wake_when_the_last_of_them_is_free(mode: str, server: Server) -> None:
    async with connected(mode, server.url) as client:

        async def lateness() -> float:
            for name in ("a", "b"):
                server.command("SET", f"handfast:{{{name}}}", "a stranger", "PX", LONG)
            want = wanting(client.lock(["a", "b"]), wait=STALLED)
            await parked(client.lock(["a", "b"]), 1, server)
            server.command("DEL", KEY)
            # It has looked again, and found the other.
            await eventually_async(lambda: int(server.info("tracking_total_keys")) == 2)
            assert not want.done()
            began = time.monotonic()
            server.command("DEL", "handfast:{b}")
            got = await want
            await got.lease.release()
            return got.at - began

        await promptly(lateness)


@FAIR
@pytest.mark.parametrize("again", [False, True], ids=["unheard", "reconnected"])
@both
async def test_a_waiter_whose_connection_is_cut_still_gets_it_at_once(
    mode: str, again: bool, fair: bool, server: Server
) -> None:
    """Released while nobody listens, or after it has made itself heard again."""

    def cut() -> None:
        clients = server.command("CLIENT", "LIST")
        assert isinstance(clients, bytes)
        cut = [line.split()[0].split("=")[1] for line in clients.decode().splitlines() if " name=waiter " in line]
        assert cut
        for each in cut:
            server.command("CLIENT", "KILL", "ID", each)

    async def heard_again(lease: handfast.Lease, claim: object) -> None:
        if fair:
            await eventually_async(lambda: server.command("LINDEX", KEY + ":q", 0) != claim)
        else:
            lease.extend()  # whoever has asked to be told of it has to ask anew
            await eventually_async(lambda: int(server.info("tracking_total_keys")))

    with handfast.connect(server.url) as holding:
        async with connected(mode, server.url + "?client_name=waiter") as client:
            lock = client.lock("a", fair=fair)

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0, fair=fair).acquire(wait=1)
                want = wanting(lock, wait=STALLED)
                await parked(lock, 1, server)
                claim = server.command("LINDEX", KEY + ":q", 0)
                cut()
                if again:
                    await heard_again(lease, claim)
                began = time.monotonic()
                lease.release()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await promptly(lateness, 0.05 if again else 0.15)


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_a_grant_that_is_lost_with_its_connection_is_not_waited_for(mode: str, kind: str, one: Server) -> None:
    """The server has given the lock to an attempt that was never told so; nobody may have to wait for its ttl."""
    with Relay(one.url) as relay:
        async with connected(mode, relay.url, ttl=20.0) as client:
            lock = client.lock("a", **KINDS[kind])
            await (await lock.acquire()).release()
            relay.cut_after = 0
            got = await wanting(lock, wait=STALLED)
            assert relay.cut_after is None
            assert got.lease, got.error
            await got.lease.release()


@FAIR
@both
async def test_a_waiter_outlives_its_server(mode: str, fair: bool) -> None:
    """A restarted server has forgotten the lock and all who wait."""
    with Server() as server:
        async with connected(mode, server.url) as client:
            server.command("SET", KEY, "a stranger", "PX", LONG)
            lock = client.lock("a", fair=fair)
            people = [wanting(lock, wait=10)]
            await in_line(lock, 1)
            people.append(wanting(lock, wait=10))
            await in_line(lock, 2)
            server.restart()
            first = await asyncio.wait_for(people[0], 1)
            await first.lease.release()
            second = await asyncio.wait_for(people[1], 1)
            await second.lease.release()


# -- what it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@FAIR
@both
async def test_while_nothing_happens_nothing_is_sent(mode: str, fair: bool, server: Server) -> None:
    with held(server), Relay(server.url) as relay:
        async with connected(mode, relay.url) as client:
            lock = client.lock("a", fair=fair)
            want = wanting(lock, wait=1)
            await parked(lock, 1, server)
            await eventually_async(lambda: any(b"CACHING" in record for record in relay.sent), what="it listens")
            before = sent_through(relay.sent)
            await asyncio.sleep(0.3)  # a time to be silent in
            assert sent_through(relay.sent) == before
            assert not want.done()
            await client.close()
            await want


@pytest.mark.slow
@FAIR
@both
async def test_a_holder_that_extends_all_the_time_does_not_keep_its_waiters_busy(
    mode: str, fair: bool, server: Server
) -> None:
    stop = threading.Event()
    extended = 0

    def extend(lease: handfast.Lease) -> None:
        nonlocal extended
        while not stop.wait(0.005):
            lease.extend()
            extended += 1

    with handfast.connect(server.url) as holding, Relay(server.url) as relay:
        lease = holding.lock("a", fair=fair).acquire()
        thread = threading.Thread(target=extend, args=(lease,))
        async with connected(mode, relay.url) as client:
            lock = client.lock("a", fair=fair)
            want = wanting(lock, wait=10)
            await parked(lock, 1, server)
            thread.start()
            await eventually_async(lambda: extended > 20)
            before, began, extended = sent_through(relay.sent), time.monotonic(), 0
            await eventually_async(lambda: extended > 60)
            per_second = (sent_through(relay.sent) - before) / (time.monotonic() - began)
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
async def test_where_tracking_is_refused_a_waiter_asks_now_and_then(
    mode: str, server: Server, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Relay(server.url) as relay:
        async with connected(mode, limited.replace(str(server.port), str(relay.port))) as client:
            lock = client.lock("a")
            with held(server):
                people = [wanting(lock, wait=10)]
                await in_line(lock, 1)
                people.append(wanting(lock, wait=10))
                await in_line(lock, 2)
                await eventually_async(lambda: warnings(caplog))
                assert server.info("tracking_total_keys") == "0"
                asked = sent_through(relay.sent)
                await asyncio.sleep(0.5)  # a time to be quiet in
                asked = sent_through(relay.sent) - asked
                assert 0 < asked < 60
            freed = time.monotonic()
            for each in people:
                got = await each
                assert got.at - freed < 0.8
                await got.lease.release()
            assert warnings(caplog) == 1, "once for each client"


@both
async def test_where_tracking_is_refused_a_wait_still_ends_with_the_holder_s_ttl(
    mode: str, server: Server, limited: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connected(mode, limited) as client:
        lock = client.lock("a")

        async def lateness() -> float:
            began = time.monotonic()
            server.command("SET", KEY, "a stranger", "PX", 100)
            got = await wanting(lock, wait=STALLED)
            await got.lease.release()
            return got.at - began - 0.1

        await promptly(lateness)
    assert warnings(caplog) == 1
