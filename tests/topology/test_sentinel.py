"""A master under Sentinel: found, lost and found again; and the locks during that."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, NoQuorum
from handfast.testing import SentinelGroup, Server, available
from handfast.testing.servers import reserve_port
from tests.lock.test_fork import in_child
from tests.support.eventually import eventually, eventually_async, renewal_of
from tests.support.sync_and_async import MODES, both, connected, plain
from tests.support.topologies import (
    BACK_WITHIN,
    KIND_OPTIONS,
    KINDS,
    LONG_RUN,
    Promotion,
    Service,
    all_leases,
    binary,
    both_clients,
    long_only,
    masters_with_key,
    no_threads_or_files_left,
    sentinel_addresses,
    sentinel_group,
    url_with,
    wait_for_new_master,
)
from tests.support.waiters import WaitResult, attempt_in_background, wait_for_waiters
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    pytest.mark.timeout(120),
]

LATE = 0.5
"""Seconds by which an answer may be late on a busy machine."""


# -- finding the master ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@plain
async def test_master_is_found_before_and_after_failover(kind: str) -> None:
    with sentinel_group(binary=binary(kind), sentinels=1, replicas=1) as group:
        async with both_clients(group.url) as clients:
            first = group.master
            leases = {mode: await client.lock(mode).acquire(wait=5) for mode, client in clients.items()}
            assert [masters_with_key(group, f"handfast:{{{mode}}}") for mode in MODES] == [[first], [first]]
            group.wait_synced()
            second = await asyncio.to_thread(group.failover)
            for mode, lease in leases.items():
                await settled_on(second, clients[mode])
                await lease.extend()
                assert await lease.release()
                assert not masters_with_key([second], f"handfast:{{{mode}}}")


async def settled_on(new: Server, client: Any) -> None:
    """Wait until the client uses this master. It learns of it a moment after the sentinels."""
    end = time.monotonic() + 5
    while True:
        (lease,) = await all_leases([attempt_in_background(client.lock("where"), wait=BACK_WITHIN)])
        there = masters_with_key([new], "handfast:{where}")
        assert await lease.release()
        if there:
            return
        assert time.monotonic() < end, "it stays with the old master"


@both
async def test_unknown_master_name_is_config_error(mode: str, watched: SentinelGroup) -> None:
    async with connected(mode, url_with(watched, name="yourmaster")) as client:
        began = time.monotonic()
        with pytest.raises(ConfigError, match="no sentinel names a master 'yourmaster'") as raised:
            await client.lock("a").acquire(wait=20)
        assert time.monotonic() - began < 10, "waiting does not mend it"
        assert all(f"{place} does not know it" in str(raised.value) for place in sentinel_addresses(watched))


@both
async def test_outage_of_all_sentinels_names_each_of_them(mode: str, watched: SentinelGroup) -> None:
    with reserve_port() as one, reserve_port() as two:
        places = [f"127.0.0.1:{sock.getsockname()[1]}" for sock in (one, two)]
        async with connected(mode, url_with(watched, *places)) as client:
            with pytest.raises(NoQuorum) as raised:
                await client.lock("a").acquire(wait=0)
            (said,) = raised.value.nodes.values()
            assert all(f"{place} did not answer" in said for place in places)
            began = time.monotonic()
            with pytest.raises(NoQuorum):
                await client.lock("a").acquire(wait=0.3)
            assert 0.3 <= time.monotonic() - began < 0.3 + LATE


@both
async def test_dead_and_hung_sentinels_are_tolerated(mode: str, watched: SentinelGroup) -> None:
    with reserve_port() as closed:
        dead = f"127.0.0.1:{closed.getsockname()[1]}"
        watched.sentinels[1].pause()
        try:
            async with connected(mode, url_with(watched, dead, *sentinel_addresses(watched)[:2])) as client:
                began = time.monotonic()
                lease = await client.lock("a").acquire(wait=5)
                assert time.monotonic() - began < 2, "no wait for the sentinel that hangs"
                assert masters_with_key(watched, "handfast:{a}") == [watched.master]
                assert await lease.release()
        finally:
            watched.sentinels[1].resume()


# -- a failover --------------------------------------------------------------------------------------------------------


def stop(group: SentinelGroup, how: str) -> Server:
    """End the master, and return it."""
    old = group.master
    if how == "killed":
        old.kill()
    elif how == "stopped":
        old.pause()
    else:
        threading.Thread(target=group.failover).start()
    return old


@pytest.mark.parametrize("how", ["killed", "stopped", *(["asked for"] if LONG_RUN else [])])
@plain
async def test_service_is_back_within_a_second_of_promotion(how: str) -> None:
    """One of three tries is enough, because a machine may be slow now and then. A late design is late each time."""
    gaps: list[dict[str, float]] = []
    while not gaps or (max(gaps[-1].values()) >= 1.0 and len(gaps) < 3):
        with sentinel_group(failover_timeout=20.0 if how == "killed" else 3.0) as group:
            gaps.append(await without_service(group, how))
    assert max(gaps[-1].values()) < 1.0, gaps


async def without_service(group: SentinelGroup, how: str) -> dict[str, float]:
    """The longest time for which a client of either mode was not served after the promotion.

    If the master is killed, one replica cannot follow the new one: the leader of the failover waits for a timeout,
    and nobody else should.
    """
    async with both_clients(group.url, ttl=6.0) as clients, AsyncExitStack() as stack:
        services = {mode: await stack.enter_async_context(Service(clients[mode], mode)) for mode in MODES}
        held = {mode: await client.lock(f"held-{mode}").acquire(wait=5) for mode, client in clients.items()}
        group.wait_synced()
        with Promotion(group.replicas) as promotion:
            if how == "killed":
                group.cut(group.replicas[0])
            stop(group, how)
            if how != "asked for":
                await check_impatient(clients)
            await asyncio.to_thread(promotion.wait)
        for service in services.values():
            await service.serves(since=promotion.at + 1.0)
        for mode, lease in held.items():
            await eventually_async(renewal_of(lease), within=10, what="it is renewed on the new master")
            assert masters_with_key([promotion.of], f"handfast:{{held-{mode}}}")
            assert lease.token < services[mode].tokens[-1]
            assert await lease.release()
    return {mode: service.gap(promotion.at) for mode, service in services.items()}


async def check_impatient(clients: dict[str, Any]) -> None:
    """A shorter wait ends in time."""
    wants = [attempt_in_background(client.lock("impatient"), wait=0.2) for client in clients.values()]
    for got in await asyncio.gather(*wants):
        assert isinstance(got.error, NoQuorum)
        assert 0.2 <= got.took < 0.2 + LATE


def options_of(name: str) -> dict[str, Any]:
    """Of a lock, by the first word of its name."""
    return KIND_OPTIONS[name.partition("-")[0]]


@plain
async def test_queued_waiter_acquires_after_failover(doomed: SentinelGroup) -> None:
    """Two waiters of each kind of lock and of both clients, while a third client holds it; none waits for its expiry."""
    ttl = 25.0
    with handfast.connect(doomed.url, ttl=ttl) as holder:
        async with both_clients(doomed.url, ttl=ttl) as clients:
            locks = {
                f"{kind}-{mode}": client.lock(f"{kind}-{mode}", **KIND_OPTIONS[kind])
                for kind in KIND_OPTIONS
                for mode, client in clients.items()
            }
            held = {name: holder.lock(name, **options_of(name)).acquire(wait=5) for name in locks}
            wants: dict[str, list[asyncio.Future[WaitResult]]] = {name: [] for name in locks}
            for n in (1, 2):
                for name, lock in locks.items():
                    wants[name].append(attempt_in_background(lock, wait=BACK_WITHIN))
                    await wait_for_waiters(lock, n)
            doomed.wait_synced()
            await wait_for_new_master(doomed, doomed.kill_master())
            released = time.monotonic()
            for name, lease in held.items():
                assert lease.release(), name
            for name, (first, second) in wants.items():
                got = await first
                assert got.lease, f"{name}: {got.error}"
                assert got.lease.token > held[name].token
                assert await got.lease.release()
                (last,) = await all_leases([second])
                assert last.token > got.lease.token
                assert await last.release()
            assert time.monotonic() - released < ttl / 2, "they were woken"


@plain
async def test_clients_of_stopped_master_disconnect_when_it_is_replaced(doomed: SentinelGroup) -> None:
    """Nothing demotes the old master: when it is resumed, it still answers its connections as a master."""
    async with both_clients(doomed.url) as clients:
        for client in clients.values():
            assert await (await client.lock("warm").acquire(wait=5)).release()
        old = doomed.master
        old.pause()
        new = await wait_for_new_master(doomed, old)
        for sentinel in doomed.sentinels:
            sentinel.pause()
        old.resume()
        for sentinel in doomed.sentinels[:2]:
            sentinel.resume()
        for mode, client in clients.items():
            (lease,) = await all_leases([attempt_in_background(client.lock(mode), wait=10)])
            assert masters_with_key([new], f"handfast:{{{mode}}}") == [new]
            assert await lease.release()


@long_only
@plain
async def test_returned_old_master_is_not_used(doomed: SentinelGroup) -> None:
    """It comes back as a master, empty, until the sentinels see it."""
    async with both_clients(doomed.url) as clients:
        before = {mode: await client.lock(mode).acquire(wait=5) for mode, client in clients.items()}
        doomed.wait_synced()
        old = doomed.kill_master()
        new = await wait_for_new_master(doomed, old)
        old.restart()
        async with both_clients(doomed.url) as others:
            for mode in MODES:
                got = await attempt_in_background(others[mode].lock(mode), wait=0)
                assert isinstance(got.error, handfast.Contended), got
                assert masters_with_key([new], f"handfast:{{{mode}}}") == [new]
                assert await before[mode].release()


# -- ends --------------------------------------------------------------------------------------------------------------


@both
async def test_closed_client_ends_its_sentinel_listener(mode: str, watched: SentinelGroup) -> None:
    others = set(threading.enumerate())
    async with connected(mode, watched.url) as first:  # what is loaded and started once in a process
        assert await (await first.lock("a").acquire(wait=5)).release()
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("handfast") and t not in others])
    with no_threads_or_files_left():
        for _ in range(3):
            async with connected(mode, watched.url) as client:
                lease = await client.lock("a").acquire(wait=5)
                assert "handfast-sentinel" in {thread.name for thread in threading.enumerate()}
                assert await lease.release()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_has_own_sentinel_listener(watched: SentinelGroup) -> None:
    with handfast.connect(watched.url) as client:
        mine = client.lock("a").acquire(wait=5)

        def child() -> list[bool]:
            contended = client.lock("a").try_acquire() is None
            lease = client.lock("b").acquire(wait=5)
            listens = "handfast-sentinel" in {thread.name for thread in threading.enumerate()}
            return [contended, lease.release(), listens]

        assert in_child(child) == [True, True, True]
        assert mine.valid
        mine.extend()
        assert mine.release()
