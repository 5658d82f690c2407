"""Waiting on a quorum of five: woken by whatever ends the lock on a majority, also while a minority is away."""

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
    IN_TIME,
    KEY,
    KINDS,
    LONG,
    STALLED,
    Peer,
    commands,
    cycles,
    in_line,
    parked,
    promptly,
    sent_through,
    told,
    wanting,
)
from tests.support.waiters import nothing_fails_in_the_background as _nothing_fails  # noqa: F401

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


def everywhere(servers: Servers, *command: str | int) -> None:
    for server in servers:
        server.command(*command)


# -- causes: see test_waiting_wakeups -----------------------------------------------------------------------------------

Cause = Generator[float, None, None]


def deleted(servers: Servers, peer: Peer) -> Cause:
    everywhere(servers, "SET", KEY, "a stranger", "PX", LONG)
    yield 0.0
    for server in servers.nodes[:3]:  # a majority is enough
        began = time.monotonic()
        server.command("DEL", KEY)
    yield began
    everywhere(servers, "DEL", KEY)


def expired(servers: Servers, peer: Peer) -> Cause:
    for server in servers:
        began = time.monotonic()
        server.command("SET", KEY, "a stranger", "PX", round(PASSED * 1000))
    yield 0.0
    yield began + PASSED


def flushed(servers: Servers, peer: Peer) -> Cause:
    everywhere(servers, "SET", KEY, "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    everywhere(servers, "FLUSHALL")
    yield began


def released_by_a_process(servers: Servers, peer: Peer) -> Cause:
    peer.acquire(*servers.urls)
    yield 0.0
    began = time.monotonic()
    peer.release()
    yield began


CAUSES: dict[str, Callable[[Servers, Peer], Cause]] = {
    each.__name__: each for each in (deleted, expired, flushed, released_by_a_process)
}


@pytest.mark.parametrize("cause", CAUSES)
@both
async def test_a_waiter_is_woken_by_whatever_ends_the_lock(mode: str, cause: str, open_five: Servers, peer: Peer) -> None:
    # Who forgets everything may not vote for a while, unless nobody guards against that.
    async with connected(mode, open_five.urls, guard=cause != "flushed") as client:
        lock = client.lock("a")

        async def lateness() -> float:
            story = CAUSES[cause](open_five, peer)
            next(story)
            want = wanting(lock, wait=STALLED)
            await parked(lock, 1, *open_five)
            free_since = next(story)
            got = await want
            assert got.lease, got.error
            assert cause != "expired" or got.at >= free_since - PASSED / 2
            await got.lease.release()
            next(story, None)
            return got.at - free_since

        await promptly(lateness)


@pytest.mark.parametrize("kind", ["plain", "cohort"])
@both
async def test_no_wake_up_is_lost_when_clients_take_turns(mode: str, kind: str, open_five: Servers) -> None:
    """A lost one would cost the ttl, which is longer than anybody here waits."""
    options: dict[str, Any] = {"ttl": 20.0, "node_timeout": NODE_TIMEOUT}
    async with connected(mode, open_five.urls, **options) as one, connected(mode, open_five.urls, **options) as two:
        locks = [client.lock("a", **KINDS[kind]) for client in (one, two, one, two)]
        await asyncio.gather(*[cycles(lock, 25) for lock in locks])
        await eventually_async(lambda: not any(node.command("EXISTS", KEY) for node in open_five))


@both
async def test_those_who_wait_come_in_the_order_of_their_coming(mode: str, open_five: Servers) -> None:
    came: list[int] = []

    async def turn(i: int) -> None:
        got = await wanting(lock, wait=STALLED)
        assert got.lease, got.error
        came.append(i)
        await got.lease.release()

    async with connected(mode, open_five.urls) as client:
        lock = client.lock("a")
        first = await lock.acquire()
        people: list[asyncio.Task[None]] = []
        for i in range(8):
            people.append(asyncio.create_task(turn(i)))
            await in_line(lock, len(people))
        await first.release()
        await asyncio.gather(*people)
        assert came == list(range(8))
        assert not client._lines.by_keys


FAULTS: dict[str, Callable[[Server], None]] = {"killed": Server.kill, "paused": Server.pause}


@pytest.mark.parametrize("before", [True, False], ids=["before", "meanwhile"])
@pytest.mark.parametrize("fault", FAULTS)
@both
async def test_a_minority_that_is_away_delays_no_wake_up(mode: str, fault: str, before: bool, open_five: Servers) -> None:
    async with connected(mode, open_five.urls) as holding, connected(mode, open_five.urls) as client:
        lock = client.lock("a")
        for each in (holding, client):
            await (await each.lock("warm").acquire()).release()
        if before:
            for node in open_five.nodes[:2]:
                FAULTS[fault](node)

        async def lateness() -> float:
            lease = await holding.lock("a", ttl=20.0).acquire(wait=1)
            want = wanting(lock, wait=STALLED)
            await parked(lock, 1, *open_five.nodes[2:])
            if not before:
                for node in open_five.nodes[:2]:
                    FAULTS[fault](node)
            began = time.monotonic()
            await lease.release()
            got = await want
            assert got.lease, got.error
            await got.lease.release()
            for node in open_five.nodes[:2]:
                node.resume()
            return got.at - began

        await promptly(lateness, 0.1, tries=4 if before or fault == "paused" else 1)


@both
async def test_a_late_answer_that_it_is_free_there_counts_too(mode: str, three: Servers) -> None:
    """One node is dead, one slow: with what the third says the look is decided, so the slow one is not waited for.
    It is asked only after the release; nothing changes there any more, so it will not push anything."""
    with handfast.connect(three.urls, node_timeout=NODE_TIMEOUT) as holding, Relay(three[2].url) as slow:
        handfast.bootstrap(holding)
        async with connected(mode, [*three.urls[:2], slow.url]) as client:
            lock = client.lock("a")
            await (await client.lock("warm").acquire()).release()
            three[0].kill()

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0).acquire(wait=1)
                slow.requests.clear()
                want = wanting(lock, wait=STALLED)
                await parked(lock, 1, three[1])
                lease.release()
                began = time.monotonic()
                slow.requests.set()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await promptly(lateness, 0.2)


@both
async def test_several_names_wake_when_the_last_of_them_is_free(mode: str, open_five: Servers) -> None:
    async with connected(mode, open_five.urls) as client:

        async def lateness() -> float:
            for name in ("a", "b"):
                everywhere(open_five, "SET", f"handfast:{{{name}}}", "a stranger", "PX", LONG)
            want = wanting(client.lock(["a", "b"]), wait=STALLED)
            await parked(client.lock(["a", "b"]), 1, *open_five)
            everywhere(open_five, "DEL", KEY)
            # It has looked again, and found the other.
            await eventually_async(
                lambda: sum(int(node.info("tracking_total_keys")) == 2 for node in open_five) >= 3, what="a second look"
            )
            assert not want.done()
            everywhere(open_five, "DEL", "handfast:{b}")
            began = time.monotonic()
            got = await want
            assert got.lease, got.error
            await got.lease.release()
            return got.at - began

        await promptly(lateness)


@both
async def test_a_waiter_whose_connections_are_cut_still_gets_it_at_once(mode: str, open_five: Servers) -> None:
    with handfast.connect(open_five.urls) as holding:
        async with connected(mode, [url + "?client_name=waiter" for url in open_five.urls]) as client:
            lock = client.lock("a")

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0).acquire(wait=1)
                want = wanting(lock, wait=STALLED)
                await parked(lock, 1, *open_five)
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

            await promptly(lateness, 0.2)


# -- what it costs ------------------------------------------------------------------------------------------------------


@both
async def test_a_crowd_costs_each_server_one_waiter_and_that_is_silent(mode: str, open_five: Servers) -> None:
    crowd = 1000 if mode == "asyncio" else 50
    everywhere(open_five, "SET", KEY, "a stranger", "PX", LONG)
    async with connected(mode, open_five.urls) as client:
        lock = client.lock("a")
        people = [wanting(lock, wait=10)]
        await parked(lock, 1, *open_five)
        people += [wanting(lock, wait=10) for _ in range(crowd - 1)]
        await in_line(lock, crowd)
        before = commands(*open_five)
        await asyncio.sleep(0.3)  # a time to be silent in
        assert commands(*open_five) - before == Counter()
        await client.close()
        assert {type((await each).error) for each in people} == {ConfigError}
        assert not client._lines.by_keys


@both
async def test_a_holder_that_extends_all_the_time_does_not_keep_its_waiters_busy(mode: str, open_five: Servers) -> None:
    stop = threading.Event()
    extended = 0

    def extend(lease: handfast.Lease) -> None:
        nonlocal extended
        while not stop.wait(0.005):
            lease.extend()
            extended += 1

    with handfast.connect(open_five.urls) as holding, Relay(open_five[0].url) as relay:
        lease = holding.lock("a", node_timeout=NODE_TIMEOUT).acquire()
        thread = threading.Thread(target=extend, args=(lease,))
        async with connected(mode, [relay.url, *open_five.urls[1:]]) as client:
            lock = client.lock("a")
            want = wanting(lock, wait=10)
            await parked(lock, 1, *open_five)
            thread.start()
            await eventually_async(lambda: extended > 20)
            before, began, extended = sent_through(relay.sent), time.monotonic(), 0
            await eventually_async(lambda: extended > 50)
            per_second = (sent_through(relay.sent) - before) / (time.monotonic() - began)
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
async def test_tracking_may_be_refused_by_some(
    mode: str, deaf: int, open_five: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """By a minority without a difference; else the waiter asks now and then."""
    for node in open_five.nodes[:deaf]:
        refused = "-client" if node.info("redis_version").startswith("6.") else "-client|tracking"
        node.command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", refused)
    login = [node.url.replace("//", "//limited:secret@") for node in open_five.nodes[:deaf]]
    async with connected(mode, login + open_five.urls[deaf:]) as client:
        lock = client.lock("a")

        async def lateness() -> float:
            everywhere(open_five, "SET", KEY, "a stranger", "PX", LONG)
            want = wanting(lock, wait=STALLED)
            await parked(lock, 1, *open_five.nodes[deaf:])
            everywhere(open_five, "DEL", KEY)
            began = time.monotonic()
            got = await want
            assert got.lease, got.error
            await got.lease.release()
            return got.at - began

        await promptly(lateness, 0.05 if deaf == 2 else 0.5)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("client tracking is refused" in record.getMessage() for record in said) == 1


# -- ends ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["held", *FAULTS])
@both
async def test_a_wait_ends_at_its_deadline_whatever_becomes_of_the_servers(mode: str, fault: str) -> None:
    # The first in line outlasts some and is outlasted by others, who then are the first.
    waits = (0.35, 0.25, 0.45, 0.3)

    async def lateness() -> float:
        with Servers(3) as servers:
            async with connected(mode, servers.urls) as client:
                await bootstrap(client)
                everywhere(servers, "SET", KEY, "a stranger", "PX", LONG)
                lock = client.lock("a")
                people = []
                for wait in waits:
                    people.append(wanting(lock, wait=wait))
                    await in_line(lock, len(people))
                await parked(lock, 4, *servers)
                for node in servers.nodes[:2] if fault in FAULTS else ():
                    FAULTS[fault](node)
                all_got = await asyncio.gather(*people)
                for node in servers:
                    node.resume()
        assert all(isinstance(got.error, NotAcquired) for got in all_got)
        if fault != "paused":  # of a server that hangs nobody knows before it is asked again
            assert {type(got.error) for got in all_got} == {Contended if fault == "held" else NoQuorum}
        late = [got.took - wait for got, wait in zip(all_got, waits, strict=True)]
        assert min(late) > -0.001
        return max(late)

    await promptly(lateness, IN_TIME)


@pytest.mark.parametrize("known", [False, True], ids=["unknown", "connected"])
@both
async def test_servers_that_do_not_answer_are_an_outage_at_the_deadline_not_contention(mode: str, known: bool) -> None:
    async def lateness() -> float:
        with Servers(3) as servers:
            async with connected(mode, servers.urls, node_timeout=NODE_TIMEOUT) as client:
                lock = client.lock("a")
                if known:
                    await bootstrap(client)
                    await (await lock.acquire()).release()
                for node in servers.nodes[:2]:
                    node.pause()
                all_got = await asyncio.gather(*[wanting(lock, wait=0.3) for _ in range(3)])
                for node in servers:
                    node.resume()
        assert {type(got.error) for got in all_got} == {NoQuorum}
        assert min(got.took for got in all_got) > 0.299
        return max(got.took for got in all_got) - 0.3

    await promptly(lateness, IN_TIME)


@both
async def test_holder_and_waiters_tell_the_truth(mode: str, open_five: Servers) -> None:
    async with (
        connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT) as client,
        connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT, label="them") as rival,
    ):
        lock, theirs = client.lock("a"), rival.lock("a")
        assert await told(lock.holder()) is None
        lease = await lock.acquire()
        want = wanting(lock, wait=10)
        await in_line(lock, 1)
        for dead in range(3):
            for node in open_five.nodes[:dead]:
                node.kill()
            holder = await told(theirs.holder())
            assert (holder.owner, holder.token) == (lease.owner, lease.token)
            assert 5 < holder.remaining <= 10
        (who,) = await told(lock.waiters())
        assert who.startswith(lease.owner.rpartition(":")[0])
        assert await told(theirs.waiters()) == [], "those of other processes are not known"
        await lease.release()
        lease = (await want).lease
        assert (await told(theirs.holder())).owner == lease.owner
        assert await told(lock.waiters()) == []
        await lease.release()
        assert await told(theirs.holder()) is None
        for count, node in enumerate(open_five.nodes[2:], 1):  # no majority has one owner
            node.command("SET", KEY, f"stranger {count}")
        assert await told(theirs.holder()) is None
        open_five[2].kill()
        with pytest.raises(NoQuorum) as raised:
            await told(theirs.holder())
        assert set(raised.value.nodes) == set(open_five.urls)
