"""Waiting on a quorum: woken by whatever ends the lock on a majority, in the queue and for keys of other programs."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

import handfast
from handfast import ConfigError, Contended, NoQuorum, NotAcquired
from handfast.testing import Server, Servers
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import bootstrap, both, connected
from tests.support.tcp_relay import Relay
from tests.support.waiters import (
    FOREIGN,
    FOREIGN_KEY,
    IN_TIME,
    KEY,
    KINDS,
    LONG,
    STALLED,
    Peer,
    acquire_repeatedly,
    assert_prompt,
    attempt_in_background,
    commands_executed,
    commands_sent,
    resolve,
    wait_for_queued_waiters,
    wait_for_waiters,
)
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

PASSED = 0.2
"""Seconds after which a lock ends that expires."""
NODE_TIMEOUT = 0.2
"""Seconds: patience enough for a busy machine."""


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture
def open_five(five: Servers) -> Servers:
    """Five servers that are open for votes."""
    with handfast.connect(five.urls) as client:
        handfast.bootstrap(client)
    return five


WAYS: dict[str, dict[str, Any]] = {"fair": {}, "foreign": FOREIGN}
"""How a lock is waited for: in the queues of the nodes, or by tracking the keys of other programs."""


def key_of(way: str) -> str:
    return FOREIGN_KEY if way == "foreign" else KEY


def everywhere(servers: Servers, *command: str | int) -> None:
    for server in servers:
        server.command(*command)


# -- causes: see test_waiting_wakeups -----------------------------------------------------------------------------------

Cause = Generator[float, None, None]


def deleted(servers: Servers, peer: Peer, way: str) -> Cause:
    everywhere(servers, "SET", key_of(way), "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    for server in servers.nodes[:3]:  # a majority is enough
        began = time.monotonic()
        server.command("DEL", key_of(way))
    yield began
    everywhere(servers, "DEL", key_of(way))


def expired(servers: Servers, peer: Peer, way: str) -> Cause:
    began = time.monotonic()
    for server in servers:
        began = time.monotonic()
        server.command("SET", key_of(way), "a stranger", "PX", round(PASSED * 1000))
    yield 0.0
    yield began + PASSED


def flushed(servers: Servers, peer: Peer, way: str) -> Cause:
    everywhere(servers, "SET", key_of(way), "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    everywhere(servers, "FLUSHALL")
    yield began


def released_by_a_process(servers: Servers, peer: Peer, way: str) -> Cause:
    peer.acquire(*servers.urls, kind=way)
    yield 0.0
    began = time.monotonic()
    peer.release()
    yield began


CAUSES: dict[str, Callable[[Servers, Peer, str], Cause]] = {
    each.__name__: each for each in (deleted, expired, flushed, released_by_a_process)
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("cause", CAUSES)
@both
async def test_waiter_is_woken_by_every_way_a_lock_can_end(
    mode: str, cause: str, way: str, open_five: Servers, peer: Peer
) -> None:
    # A node that forgets everything may not vote for a while, unless it is not guarded.
    async with connected(mode, open_five.urls, guard=cause != "flushed") as client:
        lock = client.lock("a", **WAYS[way])

        async def lateness() -> float:
            end = CAUSES[cause](open_five, peer, way)
            next(end)
            want = attempt_in_background(lock, wait=STALLED)
            await wait_for_queued_waiters(lock, 1, *open_five)
            free_since = next(end)
            got = await want
            assert got.lease, got.error
            assert cause != "expired" or got.at >= free_since - PASSED / 2
            await got.lease.release()
            next(end, None)
            return got.at - free_since

        await assert_prompt(lateness, 0.1)


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_no_wake_up_is_lost_when_clients_take_turns(mode: str, kind: str, open_five: Servers) -> None:
    """A lost one would cost the ttl, which is longer than anybody here waits."""
    options: dict[str, Any] = {"ttl": 20.0, "node_timeout": NODE_TIMEOUT}
    async with connected(mode, open_five.urls, **options) as one, connected(mode, open_five.urls, **options) as two:
        locks = [client.lock("a", **KINDS[kind]) for client in (one, two, one, two)]
        await asyncio.gather(*[acquire_repeatedly(lock, 25) for lock in locks])
        await eventually_async(lambda: not any(node.command("EXISTS", KEY) for node in open_five))


@both
async def test_late_answer_that_a_key_is_free_counts(mode: str, three: Servers) -> None:
    """One node is dead and one is slow. The slow one is asked only after the release, so nothing changes there any more,
    and it pushes nothing."""
    with handfast.connect(three.urls, node_timeout=NODE_TIMEOUT) as holding, Relay(three[2].url) as slow:
        handfast.bootstrap(holding)
        async with connected(mode, [*three.urls[:2], slow.url]) as client:
            lock = client.lock("a", **FOREIGN)
            await (await client.lock("warm").acquire()).release()
            three[0].kill()

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0, **FOREIGN).acquire(wait=1)
                slow.requests.clear()
                want = attempt_in_background(lock, wait=STALLED)
                await wait_for_queued_waiters(lock, 1, three[1])
                lease.release()
                began = time.monotonic()
                slow.requests.set()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await assert_prompt(lateness, 0.2)


@both
async def test_several_names_of_other_programs_wake_when_the_last_is_free(mode: str, open_five: Servers) -> None:
    async with connected(mode, open_five.urls) as client:

        async def lateness() -> float:
            for name in ("a", "b"):
                everywhere(open_five, "SET", name, "a stranger", "PX", LONG)
            want = attempt_in_background(client.lock(["a", "b"], **FOREIGN), wait=STALLED)
            await wait_for_queued_waiters(client.lock(["a", "b"], **FOREIGN), 1, *open_five)
            everywhere(open_five, "DEL", "a")
            # It has looked again, and found the other.
            await eventually_async(
                lambda: sum(int(node.info("tracking_total_keys")) == 2 for node in open_five) >= 3, what="a second look"
            )
            assert not want.done()
            everywhere(open_five, "DEL", "b")
            began = time.monotonic()
            got = await want
            assert got.lease, got.error
            await got.lease.release()
            return got.at - began

        await assert_prompt(lateness)


@pytest.mark.parametrize("way", WAYS)
@both
async def test_waiter_whose_connections_are_cut_gets_the_lock_at_once(mode: str, way: str, open_five: Servers) -> None:
    with handfast.connect(open_five.urls) as holding:
        async with connected(mode, [url + "?client_name=waiter" for url in open_five.urls]) as client:
            lock = client.lock("a", **WAYS[way])

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0, **WAYS[way]).acquire(wait=1)
                want = attempt_in_background(lock, wait=STALLED)
                await wait_for_queued_waiters(lock, 1, *open_five)
                for node in open_five:
                    clients = node.command("CLIENT", "LIST")
                    assert isinstance(clients, bytes)
                    for line in clients.decode().splitlines():
                        if " name=waiter " in line:
                            node.command("CLIENT", "KILL", "ID", line.split()[0].removeprefix("id="))
                began = time.monotonic()
                lease.release()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await assert_prompt(lateness, 0.2)


# -- what it costs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@both
async def test_many_waiters_are_one_silent_waiter_to_each_server(mode: str, way: str, open_five: Servers) -> None:
    crowd = 1000 if mode == "asyncio" else 50
    with handfast.connect(open_five.urls, node_timeout=NODE_TIMEOUT) as holding:
        lease = holding.lock("a", ttl=20.0, **WAYS[way]).acquire()
        async with connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT) as client:
            lock = client.lock("a", **WAYS[way])
            waiters = [attempt_in_background(lock, wait=10)]
            await wait_for_queued_waiters(lock, 1, *open_five)
            waiters += [attempt_in_background(lock, wait=10) for _ in range(crowd - 1)]
            await wait_for_waiters(lock, crowd)
            before = commands_executed(*open_five)
            await asyncio.sleep(0.3)  # a time to be silent in
            assert commands_executed(*open_five) - before == Counter()
            await client.close()
            assert {type((await each).error) for each in waiters} == {ConfigError}
            assert not client._queues.by_key
        lease.release()


@pytest.mark.parametrize("way", WAYS)
@both
async def test_holder_that_extends_all_the_time_does_not_keep_its_waiters_busy(
    mode: str, way: str, open_five: Servers
) -> None:
    stop = threading.Event()
    extended = 0

    def extend(lease: handfast.Lease) -> None:
        nonlocal extended
        while not stop.wait(0.005):
            lease.extend()
            extended += 1

    with handfast.connect(open_five.urls) as holding, Relay(open_five[0].url) as relay:
        lease = holding.lock("a", node_timeout=NODE_TIMEOUT, **WAYS[way]).acquire()
        thread = threading.Thread(target=extend, args=(lease,))
        async with connected(mode, [relay.url, *open_five.urls[1:]]) as client:
            lock = client.lock("a", **WAYS[way])
            want = attempt_in_background(lock, wait=10)
            await wait_for_queued_waiters(lock, 1, *open_five)
            thread.start()
            await eventually_async(lambda: extended > 20)
            before, began, extended = commands_sent(relay.sent), time.monotonic(), 0
            await eventually_async(lambda: extended > 50)
            per_second = (commands_sent(relay.sent) - before) / (time.monotonic() - began)
            stop.set()
            thread.join()
            assert per_second < 200
            released = time.monotonic()
            lease.release()
            got = await want
            assert got.at - released < STALLED
            await got.lease.release()


@pytest.mark.parametrize("deaf", [2, 3])
@both
async def test_tracking_may_be_refused_by_some_nodes(
    mode: str, deaf: int, open_five: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """A minority makes no difference. Without a majority the waiter asks now and then."""
    for node in open_five.nodes[:deaf]:
        refused = "-client" if node.info("redis_version").startswith("6.") else "-client|tracking"
        node.command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", refused)
    login = [node.url.replace("//", "//limited:secret@") for node in open_five.nodes[:deaf]]
    async with connected(mode, login + open_five.urls[deaf:]) as client:
        lock = client.lock("a", **FOREIGN)

        async def lateness() -> float:
            everywhere(open_five, "SET", FOREIGN_KEY, "a stranger", "PX", LONG)
            want = attempt_in_background(lock, wait=STALLED)
            await wait_for_queued_waiters(lock, 1, *open_five.nodes[deaf:])
            everywhere(open_five, "DEL", FOREIGN_KEY)
            began = time.monotonic()
            got = await want
            assert got.lease, got.error
            await got.lease.release()
            return got.at - began

        await assert_prompt(lateness, 0.05 if deaf == 2 else 0.5)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("client tracking is refused" in record.getMessage() for record in said) == (deaf == 3)


# -- ends ---------------------------------------------------------------------------------------------------------------


FAULTS: dict[str, Callable[[Server], None]] = {"killed": Server.kill, "paused": Server.pause}


@pytest.mark.parametrize("fault", ["held", *FAULTS])
@both
async def test_wait_on_quorum_ends_at_its_deadline_despite_any_server_fault(mode: str, fault: str) -> None:
    # The first in line outlasts some and is outlasted by others, who then are the first.
    waits = (0.35, 0.25, 0.45, 0.3)

    async def lateness() -> float:
        with Servers(3) as servers:
            async with connected(mode, servers.urls) as client:
                await bootstrap(client)
                everywhere(servers, "SET", KEY, "a stranger", "PX", LONG)
                lock = client.lock("a")
                waiters = []
                for wait in waits:
                    waiters.append(attempt_in_background(lock, wait=wait))
                    await wait_for_waiters(lock, len(waiters))
                await wait_for_queued_waiters(lock, 4, *servers)
                for node in servers.nodes[:2] if fault in FAULTS else ():
                    FAULTS[fault](node)
                all_got = await asyncio.gather(*waiters)
                for node in servers:
                    node.resume()
        assert all(isinstance(got.error, NotAcquired) for got in all_got)
        if fault != "paused":  # of a server that hangs nobody knows before it is asked again
            assert {type(got.error) for got in all_got} == {Contended if fault == "held" else NoQuorum}
        late = [got.took - wait for got, wait in zip(all_got, waits, strict=True)]
        assert min(late) > -0.001
        return max(late)

    await assert_prompt(lateness, IN_TIME)


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "connected"])
@both
async def test_silent_servers_are_an_outage_and_not_contention(mode: str, known: bool) -> None:
    async def lateness() -> float:
        with Servers(3) as servers:
            async with connected(mode, servers.urls, node_timeout=NODE_TIMEOUT) as client:
                lock = client.lock("a")
                if known:
                    await bootstrap(client)
                    await (await lock.acquire()).release()
                for node in servers.nodes[:2]:
                    node.pause()
                all_got = await asyncio.gather(*[attempt_in_background(lock, wait=0.3) for _ in range(3)])
                for node in servers:
                    node.resume()
        assert {type(got.error) for got in all_got} == {NoQuorum}
        assert min(got.took for got in all_got) > 0.299
        return max(got.took for got in all_got) - 0.3

    await assert_prompt(lateness, IN_TIME)


@both
async def test_holder_and_waiters_are_the_same_for_all_clients(mode: str, open_five: Servers) -> None:
    async with (
        connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT) as client,
        connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT, label="them") as rival,
    ):
        lock, theirs = client.lock("a"), rival.lock("a")
        assert await resolve(lock.holder()) is None
        lease = await lock.acquire()
        want = attempt_in_background(lock, wait=10)
        await wait_for_waiters(lock, 1)
        for dead in range(3):
            for node in open_five.nodes[:dead]:
                node.kill()
            holder = await resolve(theirs.holder())
            assert (holder.owner, holder.token) == (lease.owner, lease.token)
            assert 5 < holder.remaining <= 10
        (who,) = await resolve(lock.waiters())
        assert who.startswith(lease.owner.rpartition(":")[0])
        (seen,) = await resolve(theirs.waiters())
        assert seen.rpartition(":")[0] == who.rpartition(":")[0]
        await lease.release()
        lease = (await want).lease
        assert (await resolve(theirs.holder())).owner == lease.owner
        assert await resolve(lock.waiters()) == []
        await lease.release()
        assert await resolve(theirs.holder()) is None
        for count, node in enumerate(open_five.nodes[2:], 1):  # no majority has one owner
            node.command("SET", KEY, f"stranger {count}")
        assert await resolve(theirs.holder()) is None
        open_five[2].kill()
        with pytest.raises(NoQuorum) as raised:
            await resolve(theirs.holder())
        assert set(raised.value.nodes) == set(open_five.urls)
