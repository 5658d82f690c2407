"""What wakes a waiter, on one node and on five: every way a lock can end, at once, and nothing else."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis

import handfast
from handfast.testing import Server, Servers, available
from tests.conftest import KINDS as SERVERS
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

PASSED = 0.2
"""Seconds after which a lock ends that expires."""
NODE_TIMEOUT = 0.2
"""Seconds: enough for a busy machine."""
REFUSED = "client tracking is refused"
FIVE = "five nodes"
WAYS: dict[str, dict[str, Any]] = {"fair": {}, "barging": {"fair": False}, "foreign": FOREIGN}
"""How a lock is waited for: in the queue, or by tracking the key of other programs."""


@pytest.fixture(scope="module")
def peer() -> Iterator[Peer]:
    with Peer() as peer:
        yield peer


@pytest.fixture(scope="module")
def _started() -> Iterator[Callable[[str], list[Server]]]:
    """Starts one server of a kind, or five, when they are first needed."""
    started: dict[str, list[Server]] = {}
    with ExitStack() as stack:

        def start(place: str) -> list[Server]:
            if place not in started:
                if place != FIVE and place not in available():
                    pytest.skip(f"no {place} on this machine")
                servers = Servers(5) if place == FIVE else Servers(1, available()[place])
                started[place] = stack.enter_context(servers).nodes
            return started[place]

        yield start


@pytest.fixture
def nodes(request: pytest.FixtureRequest, _started: Callable[[str], list[Server]]) -> list[Server]:
    """One empty server of the kind that is the parameter, or five that are open for votes."""
    nodes = _started(request.param)
    everywhere(nodes, "FLUSHALL")
    if len(nodes) > 1:
        with handfast.connect(urls_of(nodes), node_timeout=5.0) as client:
            handfast.bootstrap(client)
    return nodes


def places(names: str, one: Iterable[Any], five: Iterable[Any]) -> Any:
    """Parametrise a test: with `one` on each kind of server, and with `five` on five nodes."""
    cases = [(place, each) for place in SERVERS for each in one] + [(FIVE, each) for each in five]
    values = [(place, *each) if isinstance(each, tuple) else (place, each) for place, each in cases]
    return pytest.mark.parametrize(f"nodes,{names}", values, indirect=["nodes"])


def urls_of(nodes: list[Server]) -> Any:
    """What connect() takes: one URL, or a list of URLs."""
    return [node.url for node in nodes] if len(nodes) > 1 else nodes[0].url


def key_of(way: str) -> str:
    return FOREIGN_KEY if way == "foreign" else KEY


def everywhere(nodes: list[Server], *command: str | int) -> None:
    for node in nodes:
        node.command(*command)


# -- causes -------------------------------------------------------------------------------------------------------------
# Each holds the lock until it is resumed. It ends the lock, and yields the time since which it is free.

Cause = Generator[float, None, None]


def deleted(nodes: list[Server], peer: Peer, way: str) -> Cause:
    everywhere(nodes, "SET", key_of(way), "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    for node in nodes[: len(nodes) // 2 + 1]:  # a majority is enough
        began = time.monotonic()
        node.command("DEL", key_of(way))
    yield began
    everywhere(nodes, "DEL", key_of(way))


def released_by_redis_py(nodes: list[Server], peer: Peer, way: str) -> Cause:
    with redis.Redis(port=nodes[0].port) as client:
        theirs = client.lock(key_of(way), timeout=LONG / 1000)
        assert theirs.acquire(blocking=False)
        yield 0.0
        began = time.monotonic()
        theirs.release()
        yield began


def expired(nodes: list[Server], peer: Peer, way: str) -> Cause:
    began = []
    for node in nodes:
        began.append(time.monotonic())
        node.command("SET", key_of(way), "a stranger", "PX", round(PASSED * 1000))
    yield 0.0
    yield began[len(nodes) // 2] + PASSED  # a majority is free


def flushed(nodes: list[Server], peer: Peer, way: str) -> Cause:
    everywhere(nodes, "SET", key_of(way), "a stranger", "PX", LONG)
    yield 0.0
    began = time.monotonic()
    everywhere(nodes, "FLUSHALL")
    yield began


def flushed_while_a_process_holds_it(nodes: list[Server], peer: Peer, way: str) -> Cause:
    """A waiter does not poll for such a lock: it relies on pushes."""
    peer.acquire(*(node.url for node in nodes), kind=way)
    yield 0.0
    began = time.monotonic()
    everywhere(nodes, "FLUSHALL")
    yield began
    peer.release()


def released_by_a_process(nodes: list[Server], peer: Peer, way: str) -> Cause:
    peer.acquire(*(node.url for node in nodes), kind=way)
    yield 0.0
    began = time.monotonic()
    peer.release()
    yield began


def released_by_a_process_of_the_other_kind(nodes: list[Server], peer: Peer, way: str) -> Cause:
    """A fair waiter behind a barging holder, or the other way round."""
    return released_by_a_process(nodes, peer, {"fair": "barging", "barging": "fair"}.get(way, way))


EVERYWHERE = (deleted, expired, flushed, flushed_while_a_process_holds_it, released_by_a_process)
CAUSES: dict[str, Callable[[list[Server], Peer, str], Cause]] = {
    each.__name__: each for each in (*EVERYWHERE, released_by_redis_py, released_by_a_process_of_the_other_kind)
}


@places(
    "cause, way",
    one=[(cause, way) for cause in CAUSES for way in WAYS],
    five=[(each.__name__, way) for each in EVERYWHERE for way in ("fair", "foreign")],
)
@both
async def test_waiter_is_woken_by_every_way_a_lock_can_end(
    mode: str, cause: str, way: str, nodes: list[Server], peer: Peer
) -> None:
    # A guarded node that loses all its data may not vote for a while.
    async with connected(mode, urls_of(nodes), guard=False if cause.startswith("flushed") else None) as client:
        lock = client.lock("a", **WAYS[way])

        async def lateness() -> float:
            end = CAUSES[cause](nodes, peer, way)
            next(end)
            want = attempt_in_background(lock, wait=STALLED)
            if cause != "expired":  # which does not wait for the waiter
                await wait_for_queued_waiters(lock, 1, *nodes)
            free_since = next(end)
            got = await want
            assert got.lease, got.error
            if len(nodes) == 1 or cause == "expired":
                assert got.at >= free_since - 0.001
            await got.lease.release()
            next(end, None)
            return got.at - free_since

        # A waiter in the queue does not know at once that the holder is another program, and looks again until it does.
        await assert_prompt(lateness, 0.1)


@places("kind", one=KINDS, five=KINDS)
@both
async def test_no_wake_up_is_lost_in_hundreds_of_hand_overs(mode: str, kind: str, nodes: list[Server]) -> None:
    """A lost wake-up would cost the ttl, which is longer than any wait here."""
    urls, options = urls_of(nodes), {"ttl": 20.0, "node_timeout": None if len(nodes) == 1 else NODE_TIMEOUT}
    async with connected(mode, urls, **options) as one, connected(mode, urls, **options) as two:
        locks = [client.lock("a", **KINDS[kind]) for client in (one, two, one, two)]
        await asyncio.gather(*[acquire_repeatedly(lock, 75 if len(nodes) == 1 else 25) for lock in locks])
        await eventually_async(lambda: not any(node.command("EXISTS", KEY, QUEUE) for node in nodes))


@places("way", one=["foreign"], five=["foreign"])
@both
async def test_several_names_of_other_programs_wake_when_the_last_is_free(
    mode: str, way: str, nodes: list[Server]
) -> None:
    async with connected(mode, urls_of(nodes)) as client:

        async def lateness() -> float:
            for name in ("a", "b"):
                everywhere(nodes, "SET", name, "a stranger", "PX", LONG)
            lock = client.lock(["a", "b"], **WAYS[way])
            want = attempt_in_background(lock, wait=STALLED)
            await wait_for_queued_waiters(lock, 1, *nodes)
            everywhere(nodes, "DEL", "a")
            # It has looked again, and found the new holder.
            await eventually_async(
                lambda: sum(int(node.info("tracking_total_keys")) == 2 for node in nodes) > len(nodes) // 2,
                what="a second look",
            )
            assert not want.done()
            began = time.monotonic()
            everywhere(nodes, "DEL", "b")
            began = time.monotonic() if len(nodes) > 1 else began
            got = await want
            assert got.lease, got.error
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


def _cut_connections(server: Server) -> None:
    """End the connections of the client with the label `waiter`."""
    clients = server.command("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    found = [line.split()[0].split("=")[1] for line in clients.decode().splitlines() if " name=waiter " in line]
    assert found
    for each in found:
        server.command("CLIENT", "KILL", "ID", each)


@places(
    "way, again",
    one=[(way, again) for way in WAYS for again in (False, True)],
    five=[("fair", False), ("foreign", False)],
)
@both
async def test_waiter_whose_connection_is_cut_gets_the_lock_at_once(
    mode: str, again: bool, way: str, nodes: list[Server]
) -> None:
    """The lock is released while the waiter is not connected, or after it has connected again."""

    def claims() -> object:
        return nodes[0].command("HVALS", KEY + ":c")

    async def heard_again(lease: handfast.Lease, before: object) -> None:
        if way == "foreign":
            lease.extend()  # a waiter that tracks the key has to ask again
            await eventually_async(lambda: int(nodes[0].info("tracking_total_keys")))
        else:
            await eventually_async(lambda: claims() != before, what="a claim with another channel")

    named = [node.url + "?client_name=waiter" for node in nodes]
    with handfast.connect(urls_of(nodes)) as holding:
        async with connected(mode, named if len(nodes) > 1 else named[0]) as client:
            lock = client.lock("a", **WAYS[way])

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0, **WAYS[way]).acquire(wait=1)
                want = attempt_in_background(lock, wait=STALLED)
                await wait_for_queued_waiters(lock, 1, *nodes)
                before = claims()
                for node in nodes:
                    _cut_connections(node)
                if again:
                    await heard_again(lease, before)
                began = time.monotonic()
                lease.release()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await assert_prompt(lateness, 0.2 if len(nodes) > 1 else 0.05 if again else 0.15)


@places("guard", one=[], five=[True, False])
@both
async def test_waiter_is_soon_in_the_queue_again_of_the_one_node_that_cut_its_connection(
    mode: str, guard: bool, nodes: list[Server]
) -> None:
    """The other nodes are a majority, and the waiter has nothing to send to them for seconds."""

    def claims() -> object:
        return nodes[0].command("HVALS", KEY + ":c")

    named = [node.url + "?client_name=waiter" for node in nodes]
    with handfast.connect(urls_of(nodes), guard=guard) as holding:
        lease = holding.lock("a", ttl=20.0).acquire(wait=1)
        async with connected(mode, named, guard=guard) as client:
            want = attempt_in_background(client.lock("a"), wait=STALLED)
            for node in nodes:
                await eventually_async(lambda node=node: node.command("HLEN", KEY + ":c"))
            before = claims()
            _cut_connections(nodes[0])
            await eventually_async(lambda: claims() != before, 2.0, "a claim with another channel")
            lease.release()
            got = await want
            assert got.lease, got.error
            await got.lease.release()


@pytest.mark.parametrize("kind", KINDS)
@both
async def test_grant_lost_with_its_connection_does_not_block_the_lock(mode: str, kind: str, one: Server) -> None:
    """The server has granted an attempt whose reply was lost; no waiter may have to wait for its ttl."""
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


@both
async def test_waiter_for_key_of_another_program_sends_nothing_while_it_is_held(mode: str, server: Server) -> None:
    """test_queue_costs shows the same for waiters in the queue."""
    with handfast.connect(server.url, ttl=20.0) as holding, Relay(server.url) as relay:
        lease = holding.lock("a", **FOREIGN).acquire()
        async with connected(mode, relay.url) as client:
            want = attempt_in_background(client.lock("a", **FOREIGN), wait=1)
            await eventually_async(lambda: any(b"CACHING" in record for record in relay.sent))
            before = commands_sent(relay.sent)
            await asyncio.sleep(0.3)  # no synchronisation: a time without commands
            assert commands_sent(relay.sent) == before
            assert not want.done()
            await client.close()
            await want
        assert lease.release()


@places("way", one=WAYS, five=["fair", "foreign"])
@both
async def test_holder_that_extends_all_the_time_does_not_keep_its_waiters_busy(
    mode: str, way: str, nodes: list[Server]
) -> None:
    stop = threading.Event()
    extended = 0

    def extend(lease: handfast.Lease) -> None:
        nonlocal extended
        while not stop.wait(0.005):
            lease.extend()
            extended += 1

    with handfast.connect(urls_of(nodes)) as holding, Relay(nodes[0].url) as relay:
        lease = holding.lock("a", node_timeout=NODE_TIMEOUT, **WAYS[way]).acquire()
        thread = threading.Thread(target=extend, args=(lease,))
        urls = [relay.url, *(node.url for node in nodes[1:])]
        async with connected(mode, urls if len(nodes) > 1 else relay.url) as client:
            lock = client.lock("a", **WAYS[way])
            want = attempt_in_background(lock, wait=10)
            await wait_for_queued_waiters(lock, 1, *nodes)
            thread.start()
            await eventually_async(lambda: extended > 20)
            before, began, extended = commands_sent(relay.sent), time.monotonic(), 0
            await eventually_async(lambda: extended > 60, within=4)
            per_second = (commands_sent(relay.sent) - before) / (time.monotonic() - began)
            stop.set()
            thread.join()
            assert per_second < (130 if len(nodes) == 1 else 200)
            released = time.monotonic()
            lease.release()
            got = await want
            assert got.at - released < STALLED
            await got.lease.release()


# -- without tracking ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["client|tracking", "client|caching"])
def limited(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a user without one of the rights for client tracking, before Redis 7 without any right to CLIENT."""
    old = server.info("redis_version").startswith("6.")
    server.command(
        "ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-client" if old else f"-{request.param}"
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

        async def lateness() -> float | None:
            began = time.monotonic()
            server.command("SET", FOREIGN_KEY, "a stranger", "PX", 100)
            got = await attempt_in_background(lock, wait=STALLED)
            await got.lease.release()
            # Without the warning, the key had expired before the first attempt, and nobody has waited.
            return got.at - began - 0.1 if warnings(caplog) else None

        await assert_prompt(lateness)
    assert warnings(caplog) == 1
