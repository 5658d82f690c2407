"""A cluster whose slots move and whose masters change, while locks have holders and waiters."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

import pytest

import handfast
from handfast import NoQuorum
from handfast.testing import Cluster, available
from handfast.testing.cluster_node import ClusterNode
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import MODES, both, connected, plain
from tests.support.topologies import (
    BACK_WITHIN,
    KIND_OPTIONS,
    LONG_RUN,
    Promotion,
    Service,
    all_leases,
    both_clients,
    key_of,
    masters_with_key,
    name_on,
    slot_and_target,
)
from tests.support.waiters import WaitResult, attempt_in_background, wait_for_waiters
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    pytest.mark.timeout(120),
]

TAG = "{t}"


# -- a slot on its way -------------------------------------------------------------------------------------------------


@both
async def test_fenced_lock_waits_until_slot_has_moved(mode: str, sharded: Cluster) -> None:
    """Its two keys may be on different nodes: the error names the reply TRYAGAIN, or the wait outlasts it."""
    name = TAG + mode
    slot, target = slot_and_target(sharded, key_of(name))
    async with connected(mode, sharded.url) as client:
        first = await client.lock(name).acquire(wait=5)
        assert await first.release()
        with sharded.moving(slot, target):
            got = await attempt_in_background(client.lock(name), wait=0)
            assert isinstance(got.error, NoQuorum), got
            assert "TRYAGAIN: its cluster is just moving the keys of this name" in str(got.error)
            short = await attempt_in_background(client.lock(name), wait=0.3)
            assert isinstance(short.error, NoQuorum), short
            assert 0.3 <= short.took < 1.0
            want = attempt_in_background(client.lock(name), wait=BACK_WITHIN)
            await asyncio.wait([want], timeout=0.2)
            assert not want.done()
        (lease,) = await all_leases([want])
        assert lease.token > first.token
        assert masters_with_key(sharded, key_of(name)) == [target]
        assert await lease.release()


@plain
async def test_lease_is_renewed_while_its_slot_moves(sharded: Cluster) -> None:
    """Some of the keys move first, so that the leases of one write are on two nodes."""
    ttl = 2.0  # a busy machine may keep the watchdog from running for half a second
    slot, target = slot_and_target(sharded, TAG)
    async with both_clients(sharded.url, ttl=ttl) as clients:
        leases = [
            await client.lock(f"{TAG}{mode}-{number}").acquire(wait=5)
            for mode, client in clients.items()
            for number in range(10)
        ]
        with sharded.moving(slot, target) as move:
            for keys in (15, 1000):
                move.step(keys)
                await asyncio.sleep(1.25 * ttl)
                assert [lease for lease in leases if not lease.valid] == []
        await asyncio.sleep(1.25 * ttl)
        assert [lease for lease in leases if not lease.valid] == []
        assert {server for lease in leases for server in masters_with_key(sharded, key_of(lease.name))} == {target}
        assert all([await lease.release() for lease in leases])


@plain
async def test_waiter_is_woken_after_slot_has_moved(sharded: Cluster) -> None:
    """Two waiters of each kind of lock and of both clients, in order of arrival; no waiter has to wait for an expiry."""
    ttl = 20.0
    slot, target = slot_and_target(sharded, TAG)
    with handfast.connect(sharded.url, ttl=ttl) as holder:
        async with both_clients(sharded.url, ttl=ttl) as clients:
            names = {f"{TAG}{kind}-{mode}": (kind, mode) for kind in KIND_OPTIONS for mode in MODES}
            locks = {name: clients[mode].lock(name, **KIND_OPTIONS[kind]) for name, (kind, mode) in names.items()}
            held = {name: holder.lock(name, **KIND_OPTIONS[kind]).acquire(wait=5) for name, (kind, _) in names.items()}
            wants: dict[str, list[asyncio.Future[WaitResult]]] = {name: [] for name in names}
            for n in (1, 2):
                for name, lock in locks.items():
                    wants[name].append(attempt_in_background(lock, wait=2 * ttl))
                    await wait_for_waiters(lock, n)
            sharded.move_slot(slot, target)
            assert masters_with_key(sharded, key_of(TAG + "plain-threads")) == [target]
            late: dict[str, float] = {}
            for name, lease in held.items():
                released = time.monotonic()
                assert lease.release(), name
                first, second = wants[name]
                got = await first
                late[name] = time.monotonic() - released
                assert got.lease, f"{name}: {got.error}"
                assert got.lease.token > lease.token
                assert not second.done()
                assert await got.lease.release()
                (last,) = await all_leases([second])
                assert last.token > got.lease.token
                assert await last.release()
            assert max(late.values()) < ttl / 4, late


# -- failover of a shard -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "stopped", *(["asked for"] if LONG_RUN else [])])
@plain
async def test_leases_and_waiters_survive_failover_of_shard(
    how: str, sharded: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "handfast")
    old = sharded.masters[0]
    ttl = 15.0
    async with both_clients(sharded.url, ttl=ttl) as clients, AsyncExitStack() as stack:
        holder = await stack.enter_async_context(connected("threads", sharded.url, ttl=ttl))
        touched = {mode: name_on(sharded, old, mode) for mode in MODES}
        elsewhere = name_on(sharded, sharded.masters[1], "elsewhere")
        held = {name: await holder.lock(name).acquire(wait=5) for name in (*touched.values(), elsewhere)}
        wants = {
            mode: attempt_in_background(client.lock(touched[mode]), wait=BACK_WITHIN) for mode, client in clients.items()
        }
        for mode, client in clients.items():
            await wait_for_waiters(client.lock(touched[mode]), 1)
        services = [
            await stack.enter_async_context(Service(clients[mode], name_on(sharded, old, f"s{mode}"))) for mode in MODES
        ]
        sharded.wait_ok()
        with Promotion(sharded.replicas_of(old)) as promotion:
            if how == "asked for":
                await asyncio.to_thread(sharded.failover, old)
            elif how == "killed":
                old.kill()
            else:
                old.pause()
            await asyncio.to_thread(promotion.wait)
        for service in services:
            await service.serves(since=promotion.at + 1.0)
        for name, lease in held.items():
            assert lease.valid, name
            assert await lease.release(), name
        for mode, lease in zip(wants, await all_leases(wants.values()), strict=True):
            assert lease.token > held[touched[mode]].token
            assert await lease.release()
        gaps = [service.gap(promotion.at) for service in services]
    assert max(gaps) < 4.0, gaps
    if how == "killed":
        changes = [line for line in caplog.messages if f":{old.port} is " in line]
        assert any("is replaced by" in line for line in changes), changes
        assert not any("is back" in line for line in changes), changes


@plain
async def test_shard_with_replicas_option_grants_nothing_unreplicated(sharded: Cluster) -> None:
    old = sharded.masters[0]
    replica = sharded.replica_of(old)
    async with both_clients(sharded.url, ttl=15.0, replicas=1, node_timeout=0.4) as clients:
        names = {mode: name_on(sharded, old, mode) for mode in MODES}
        kept = {mode: await client.lock(names[mode]).acquire(wait=5) for mode, client in clients.items()}
        sharded.cut(replica)
        lost = name_on(sharded, old, "lost")
        for client in clients.values():
            got = await attempt_in_background(client.lock(lost), wait=0)
            assert isinstance(got.error, NoQuorum), got
            assert "0 of 1 replicas confirmed" in str(got.error)
        await eventually_async(lambda: not masters_with_key(sharded, key_of(lost)), what="the grant is rolled back")
        old.kill()
        await asyncio.to_thread(sharded.wait_replaced, old)
        for mode, client in clients.items():
            (free,) = await all_leases([attempt_in_background(client.lock(lost, replicas=0), wait=BACK_WITHIN)])
            assert await free.release()
            other = clients["asyncio" if mode == "threads" else "threads"]
            got = await attempt_in_background(other.lock(names[mode], replicas=0), wait=0)
            assert not got.lease, "what was copied is still held"
            assert kept[mode].valid
            assert await kept[mode].release()


@plain
async def test_stale_replica_without_replicas_option_grants_lock_twice(sharded: Cluster) -> None:
    old = sharded.masters[0]
    name = name_on(sharded, old)
    async with both_clients(sharded.url, ttl=20.0) as clients:
        sharded.cut(sharded.replica_of(old))
        first = await clients["threads"].lock(name, renew=False).acquire(wait=5)
        old.kill()
        (second,) = await all_leases([attempt_in_background(clients["asyncio"].lock(name), wait=BACK_WITHIN)])
        assert first.valid
        assert second.valid
        assert second.token > first.token
        assert await second.release()


@plain
async def test_cluster_that_is_down_is_outage_until_it_returns(sharded: Cluster) -> None:
    """Two of three masters are dead: the third has no majority, and serves nothing either."""
    first, second, third = sharded.masters
    async with both_clients(sharded.url) as clients:
        name = name_on(sharded, third)
        for client in clients.values():
            assert await (await client.lock(name).acquire(wait=5)).release()
        second.kill()
        first.kill()
        third.wait_for(lambda: isinstance(third, ClusterNode) and third.state() == "fail", within=20)
        for client in clients.values():
            # The first try may still have reached a node that was just killed.
            for _ in range(5):
                got = await attempt_in_background(client.lock(name), wait=0.2)
                assert isinstance(got.error, NoQuorum), got
                if "CLUSTERDOWN" in str(got.error):
                    break
            assert "CLUSTERDOWN: its cluster is down" in str(got.error)
        wants = [attempt_in_background(client.lock(name), wait=BACK_WITHIN) for client in clients.values()]
        first.restart()
        second.restart()
        for want in asyncio.as_completed(wants):
            got = await want
            assert got.lease, got.error
            assert await got.lease.release()
