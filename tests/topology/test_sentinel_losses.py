"""What a failover under Sentinel loses, and what prevents it: the guard, copies, min-replicas-to-write."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import LeaseLost, NoQuorum
from handfast.testing import SentinelGroup, Servers, available
from tests.support.eventually import eventually_async
from tests.support.sync_and_async import bootstrap, plain
from tests.support.topologies import (
    BACK_WITHIN,
    Promotion,
    all_leases,
    both_clients,
    isolated_sentinel,
    long_only,
    masters_with_key,
    sentinel_addresses,
    url_with,
    wait_for_new_master,
)
from tests.support.waiters import attempt_in_background
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    pytest.mark.timeout(120),
]


@plain
async def test_unreplicated_lock_without_guard_is_granted_twice(doomed: SentinelGroup) -> None:
    """The lock is granted twice. The first holder learns of the loss when it renews."""
    inside = asyncio.Event()

    async def work(client: Any) -> None:
        async with client.lock("body", ttl=2.0):
            inside.set()
            await asyncio.sleep(600)

    async with both_clients(doomed.url, ttl=20) as clients:
        for client in clients.values():
            assert await (await client.lock("warm").acquire(wait=5)).release()
        doomed.cut()
        first = await clients["threads"].lock("a", renew=False).acquire(wait=0)
        renewed = await clients["threads"].lock("renewed", ttl=2.0).acquire(wait=0)
        body = asyncio.create_task(work(clients["asyncio"]))
        await inside.wait()
        await asyncio.to_thread(doomed.failover)
        (second,) = await all_leases([attempt_in_background(clients["asyncio"].lock("a"), wait=BACK_WITHIN)])
        assert first.valid
        assert second.valid, "two holders at once"
        assert second.token > first.token, "a resource that checks tokens can tell them apart"
        await eventually_async(renewed.lost.is_set, within=5)
        with pytest.raises(LeaseLost):
            renewed.check()
        with pytest.raises(LeaseLost):
            await asyncio.wait_for(body, 20)
        assert await second.release()


@plain
async def test_promoted_master_with_guard_grants_nothing_until_missed_leases_ended(
    doomed: SentinelGroup,
) -> None:
    ttl = 8.0
    quarantine = ttl * 1.02
    async with both_clients(doomed.url, ttl=ttl, max_ttl=ttl, guard=True) as clients:
        await bootstrap(clients["threads"])
        for client in clients.values():
            assert await (await client.lock("warm").acquire(wait=5)).release()
        kept = {mode: await client.lock(mode).acquire(wait=5) for mode, client in clients.items()}
        doomed.wait_synced()
        doomed.cut()
        first = await clients["threads"].lock("a", renew=False).acquire(wait=0)
        with Promotion(doomed.replicas) as promotion:
            await asyncio.to_thread(doomed.failover)
        async with both_clients(doomed.url, ttl=ttl, max_ttl=ttl, guard=True) as newcomers:
            for client in (*clients.values(), *newcomers.values()):
                got = await attempt_in_background(client.lock("a"), wait=0)
                assert isinstance(got.error, NoQuorum), got
                assert "no vote for another" in str(got.error)
            assert first.valid, "else this shows nothing"
            wants = [
                attempt_in_background(client.lock("a"), wait=BACK_WITHIN)
                for client in (*clients.values(), *newcomers.values())
            ]
            done, rest = await asyncio.wait(wants, return_when=asyncio.FIRST_COMPLETED)
            assert time.monotonic() - promotion.at >= quarantine
            assert not first.valid
            tokens = [first.token]
            while done:
                for want in done:
                    assert want.result().lease, want.result().error
                    tokens.append(want.result().lease.token)
                    assert await want.result().lease.release()
                done, rest = await asyncio.wait(rest, return_when=asyncio.FIRST_COMPLETED) if rest else (set(), set())
            assert tokens == sorted(set(tokens))
            assert len(tokens) == 5
        for lease in kept.values():
            assert lease.valid, "what the new master knows is renewed there, votes or not"
            assert await lease.release()


# -- copies instead ----------------------------------------------------------------------------------------------------


@plain
async def test_unreplicated_grant_is_undone_and_service_continues(doomed: SentinelGroup) -> None:
    async with both_clients(doomed.url, replicas=1, ttl=20, node_timeout=0.5) as clients:
        kept = {mode: await client.lock(mode).acquire(wait=5) for mode, client in clients.items()}
        doomed.cut()
        for client in clients.values():
            got = await attempt_in_background(client.lock("a"), wait=0)
            assert isinstance(got.error, NoQuorum), got
            assert "0 of 1 replicas confirmed" in str(got.error)
        await eventually_async(lambda: not masters_with_key(doomed, "handfast:{a}"), what="the grant is rolled back")
        for node in doomed:
            node.command("CONFIG", "SET", "masterauth", doomed.password)
        doomed.wait_synced()
        new = await wait_for_new_master(doomed, doomed.kill_master())
        # There is no quarantine: as soon as the new master has a replica there are grants again.
        for mode, client in clients.items():
            (lease,) = await all_leases([attempt_in_background(client.lock("a"), wait=BACK_WITHIN)])
            assert masters_with_key([new], "handfast:{a}") == [new]
            assert await lease.release()
            assert kept[mode].valid
            other = clients["asyncio" if mode == "threads" else "threads"]
            got = await attempt_in_background(other.lock(mode), wait=0)
            assert isinstance(got.error, handfast.Contended), "what was copied is still held"
            assert await kept[mode].release()


@pytest.fixture
def partitioned(doomed: SentinelGroup) -> Iterator[tuple[SentinelGroup, str]]:
    """A group whose master will be cut off, and the URL of a client that is cut off with it."""
    with isolated_sentinel(doomed, doomed.master) as place:
        yield doomed, url_with(doomed, place)


@plain
async def test_holder_at_isolated_master_with_min_replicas_loses_lock(
    partitioned: tuple[SentinelGroup, str],
) -> None:
    group, minority = partitioned
    for node in group:
        node.command("CONFIG", "SET", "min-replicas-to-write", 1)
    old = group.master
    async with both_clients(minority, ttl=2.0) as inside, both_clients(group.url, ttl=2.0) as outside:
        held = {mode: await client.lock(mode).acquire(wait=5) for mode, client in inside.items()}
        lost_at: dict[str, float] = {}
        for mode, lease in held.items():
            lease._hold.when_lost(lambda mode=mode: lost_at.setdefault(mode, time.monotonic()))
        group.wait_synced()
        group.isolate(old)
        wants = {mode: attempt_in_background(client.lock(mode), wait=BACK_WITHIN) for mode, client in outside.items()}
        await wait_for_new_master(group, old)
        for mode, want in wants.items():
            got = await want
            assert got.lease, got.error
            assert lost_at[mode] < got.at, "the one was over before the other began"
            with pytest.raises(LeaseLost, match="NOREPLICAS"):
                held[mode].check()
            assert got.lease.token > held[mode].token
            assert await got.lease.release()
        for client in inside.values():
            got = await attempt_in_background(client.lock("b"), wait=0)
            assert isinstance(got.error, NoQuorum), got
            assert "NOREPLICAS" in str(got.error)


@plain
async def test_holder_at_isolated_master_with_replicas_option_loses_lock(
    partitioned: tuple[SentinelGroup, str],
) -> None:
    """Without copies, and without min-replicas-to-write, it still renews there, and there are two holders."""
    group, minority = partitioned
    old = group.master
    async with both_clients(minority, ttl=2.0) as inside, both_clients(group.url, ttl=2.0) as outside:
        copied = await inside["threads"].lock("copied", replicas=1).acquire(wait=5)
        alone = await inside["asyncio"].lock("alone").acquire(wait=5)
        lost_at: list[float] = []
        copied._hold.when_lost(lambda: lost_at.append(time.monotonic()))
        group.wait_synced()
        group.isolate(old)
        wants = [attempt_in_background(outside["asyncio"].lock(name), wait=BACK_WITHIN) for name in ("copied", "alone")]
        await wait_for_new_master(group, old)
        first, second = await asyncio.gather(*wants)
        assert first.lease, first.error
        assert second.lease, second.error
        assert lost_at[0] < first.at
        assert alone.valid
        assert second.lease.valid, "two holders"
        assert second.lease.token > alone.token


@long_only
@plain
async def test_guard_does_not_help_against_isolated_master(
    partitioned: tuple[SentinelGroup, str],
) -> None:
    """Its holder still renews at the old master, so there are two holders when the new master grants."""
    group, minority = partitioned
    old = group.master
    options: dict[str, Any] = {"ttl": 2.0, "max_ttl": 2.0, "guard": True}
    async with both_clients(minority, **options) as inside, both_clients(group.url, **options) as outside:
        await bootstrap(inside["threads"])
        held = await inside["asyncio"].lock("a").acquire(wait=5)
        group.wait_synced()
        group.isolate(old)
        await wait_for_new_master(group, old)
        (second,) = await all_leases([attempt_in_background(outside["threads"].lock("a"), wait=BACK_WITHIN)])
        assert held.valid
        assert second.valid
        assert second.token > held.token
        assert await second.release()


@plain
async def test_replaced_quorum_member_has_no_vote_until_missed_leases_ended(
    doomed: SentinelGroup,
) -> None:
    ttl = 8.0
    with Servers(2) as two:
        async with both_clients([*two.urls, doomed.url], ttl=ttl, max_ttl=ttl) as clients:
            await bootstrap(clients["threads"])
            for client in clients.values():
                assert await (await client.lock("warm").acquire(wait=5)).release()
            held = {mode: await client.lock(f"held-{mode}").acquire(wait=5) for mode, client in clients.items()}
            doomed.wait_synced()
            with Promotion(doomed.replicas) as promotion:
                await asyncio.to_thread(doomed.failover)
            for mode, client in clients.items():
                (lease,) = await all_leases([attempt_in_background(client.lock(mode), wait=5)])
                assert set(lease.votes) == set(two.urls)
                assert await lease.release()
                assert await held[mode].release()
            assert time.monotonic() - promotion.at < ttl, "else this shows nothing"


@plain
async def test_sentinel_isolated_with_old_master_is_outvoted(
    partitioned: tuple[SentinelGroup, str],
) -> None:
    group, minority = partitioned
    old = group.master
    group.isolate(old)
    new = await wait_for_new_master(group, old)
    place = minority.partition("@")[2].partition("/")[0]
    for places in ([place, *sentinel_addresses(group)], [*sentinel_addresses(group), place]):
        async with both_clients(url_with(group, *places)) as clients:
            for mode, client in clients.items():
                lease = await client.lock(mode).acquire(wait=5)
                assert masters_with_key([old, new], f"handfast:{{{mode}}}") == [new]
                assert await lease.release()
