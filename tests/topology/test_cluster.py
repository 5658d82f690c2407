"""Locks on a cluster: each on the node that has its slot, also after the slot moves."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import handfast
from handfast import ConfigError, Contended
from handfast.testing import Cluster, available
from handfast.testing.cluster_node import ClusterNode
from handfast.testing.resharding import SlotMove
from tests.lock.test_fork import in_child
from tests.support.eventually import eventually
from tests.support.sync_and_async import both, connected, plain
from tests.support.topologies import (
    BACK_WITHIN,
    KINDS,
    all_leases,
    binary,
    both_clients,
    key_of,
    long_only,
    masters_with_key,
    no_threads_or_files_left,
    slot_and_target,
)
from tests.support.waiters import attempt_in_background, commands_executed, wait_for_waiters
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

pytestmark = [
    pytest.mark.skipif(not available(), reason="no server binary on this machine"),
    pytest.mark.timeout(120),
]

TAG = "{t}"


# -- at rest -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@plain
async def test_locks_are_on_all_shards_and_follow_their_slots(kind: str) -> None:
    with Cluster(3, 0, binary(kind)) as cluster:
        async with both_clients(cluster.url) as clients, both_clients(cluster.url) as rivals:
            for mode, client in clients.items():
                await check_all_shards(cluster, client, rivals[mode], mode)
            for mode, client in clients.items():
                await check_many_waiters(cluster, client, mode)


async def check_all_shards(cluster: Cluster, client: Any, rival: Any, mode: str) -> None:
    """Each lock is on its node, where it excludes others and is handed over to waiters."""
    names = [f"{mode}-{number}" for number in range(9)]
    leases = {name: await client.lock(name).acquire(wait=5) for name in names}
    homes = {name: cluster.node_for(key_of(name)) for name in names}
    assert {name: masters_with_key(cluster, key_of(name)) for name in names} == {
        name: [home] for name, home in homes.items()
    }
    assert len(set(homes.values())) == 3
    for name, lease in leases.items():
        assert await rival.lock(name).try_acquire() is None
        await lease.extend()
        want = attempt_in_background(rival.lock(name), wait=5)
        await wait_for_waiters(rival.lock(name), 1)
        assert await lease.release()
        (next_one,) = await all_leases([want])
        assert next_one.token > lease.token
        assert await next_one.release()
        assert masters_with_key(cluster, key_of(name)) == []


async def check_many_waiters(cluster: Cluster, client: Any, mode: str) -> None:
    """A slot moves. Its holders release, its waiters acquire, and no caller gets an error."""
    names = [f"{TAG}{mode}-{number}" for number in range(20)]
    slot, target = slot_and_target(cluster, TAG)
    leases = await all_leases([attempt_in_background(client.lock(name), wait=5) for name in names])
    cluster.move_slot(slot, target)
    rivals = await asyncio.gather(*[attempt_in_background(client.lock(name), wait=0) for name in names])
    assert {type(got.error) for got in rivals} == {Contended}
    for lease in leases[:3]:
        await lease.extend()
    assert all([await lease.release() for lease in leases])
    again = await all_leases([attempt_in_background(client.lock(name), wait=0) for name in names])
    assert {server for name in names for server in masters_with_key(cluster, key_of(name))} == {target}
    assert all(b.token > a.token for a, b in zip(leases, again, strict=True))
    assert all([await lease.release() for lease in again])


@long_only
@both
async def test_cluster_of_one_node_works(mode: str, single_node_cluster: Cluster) -> None:
    async with connected(mode, single_node_cluster.url) as client:
        lease = await client.lock("a").acquire(wait=5)
        assert await client.lock("a").try_acquire() is None
        assert await lease.release()


@pytest.fixture(scope="module")
def single_node_cluster() -> Iterator[Cluster]:
    with Cluster(1, 0) as cluster:
        yield cluster


# -- names -------------------------------------------------------------------------------------------------------------


@both
async def test_names_with_common_tag_are_acquired_together(mode: str, sharded: Cluster) -> None:
    async with connected(mode, sharded.url) as client, connected(mode, sharded.url) as rival:
        single = await client.lock("{order-42}stock").acquire(wait=5)
        assert await rival.lock(["{order-42}stock", "{order-42}bill"]).try_acquire() is None
        assert await single.release()
        both_names = await client.lock(["{order-42}stock", "{order-42}bill"]).acquire(wait=5)
        assert both_names.token > single.token
        for name in ("{order-42}stock", "{order-42}bill"):
            assert await rival.lock(name).try_acquire() is None
        await both_names.extend()
        assert await both_names.release()


@both
async def test_names_of_different_slots_are_refused_without_sending(mode: str) -> None:
    async with connected(mode, "redis+cluster://192.0.2.1:7000") as client:
        with pytest.raises(ConfigError, match="common hash tag") as raised:
            client.lock(["stock", "bill"])
        assert "'{t}bill' and '{t}stock'" in str(raised.value)
        client.lock(["{t}bill", "{t}stock"])


NASTY = [
    "a", "a}", "{a", "{a}", "{}a", "a{}", "{a}b", "b{a}", "<a>", "{a}:f", "a:f", "a}:f", "{a}:q", "a:w", "<{a}>", "{{a}}",
    "}{", "}{a}", "{a}>", "{a}>:f", "<{a}", "a>:f", "{<a>}", ":f", "{:f}", "{a}{b}", "{", "}", "{}", "<", ">",
]  # fmt: skip


@both
async def test_different_names_have_different_keys_and_counters(mode: str, sharded: Cluster) -> None:
    async with connected(mode, sharded.url) as client:
        locks = [client.lock(name) for name in NASTY]
        keys = [bytes(lock.key) for lock in locks]
        everything = [key + end for key in keys for end in (b"", b":f", b":q", b":w")]
        assert len(set(everything)) == len(everything)
        for key in keys:
            assert len({sharded.slot_of((key + end).decode()) for end in (b"", b":f", b":q", b":w")}) == 1
        leases = [await lock.acquire(wait=5) for lock in locks]
        assert all([await lease.release() for lease in leases])
        fair = [await client.lock(name, fair=True).acquire(wait=5) for name in NASTY]
        assert all([await lease.release() for lease in fair])


# -- nodes come and go -------------------------------------------------------------------------------------------------


@plain
async def test_joined_node_is_used_and_removed_node_is_not(sharded: Cluster) -> None:
    source = sharded.node_for(TAG)
    assert isinstance(source, ClusterNode)
    masters = [master for master in sharded.masters if isinstance(master, ClusterNode)]
    slot = sharded.slot_of(TAG)
    with ClusterNode(source.binary, config=source.config) as newcomer:
        async with both_clients(sharded.url) as clients:
            held = {mode: await client.lock(TAG + mode).acquire(wait=5) for mode, client in clients.items()}
            newcomer.command("CLUSTER", "MEET", "127.0.0.1", source.port)
            for node in (*masters, newcomer):
                node.wait_for(lambda node=node: newcomer.id in node.view().reached and node.state() == "ok", within=20)
            come = SlotMove(slot, source, newcomer, [*masters, newcomer], 100)
            come.begin()
            come.finish()
            for mode, client in clients.items():
                assert await held[mode].release()
                lease = await client.lock(TAG + mode).acquire(wait=10)
                assert masters_with_key([newcomer], key_of(TAG + mode))
                held[mode] = lease
            go = SlotMove(slot, newcomer, source, [*masters, newcomer], 100)
            go.begin()
            while go.step(100):
                pass
            # A node without slots becomes a replica when it learns of the move, sometimes before the command.
            source.command("CLUSTER", "SETSLOT", slot, "NODE", source.id)
            newcomer.wait_for(lambda: newcomer.info("role") == "slave", within=20)
            go.finish()
            for node in sharded:
                node.command("CLUSTER", "FORGET", newcomer.id)
            newcomer.kill()
            for mode, client in clients.items():
                held[mode].check()
                assert await held[mode].release()
                (lease,) = await all_leases([attempt_in_background(client.lock(TAG + mode), wait=BACK_WITHIN)])
                assert masters_with_key(sharded, key_of(TAG + mode)) == [source]
                assert await lease.release()


@both
async def test_cluster_is_found_while_one_listed_member_is_reachable(mode: str, sharded: Cluster) -> None:
    place = f"127.0.0.1:{sharded.masters[2].port}"
    url = re.sub(r"@.*", f"@192.0.2.1:1,127.0.0.1:1,{place}", sharded.url)
    async with connected(mode, url) as client:
        (lease,) = await all_leases([attempt_in_background(client.lock("a"), wait=BACK_WITHIN)])
        assert await lease.release()


# -- the watchdog, and ends --------------------------------------------------------------------------------------------


@plain
async def test_many_leases_are_renewed_with_few_writes_to_each_node(sharded: Cluster) -> None:
    count, ttl = 300, 4.0
    async with connected("asyncio", sharded.url, ttl=ttl) as client:
        leases = await asyncio.gather(*[client.lock(f"many-{n}").acquire(wait=10) for n in range(count)])
        began = [commands_executed(master)["evalsha"] for master in sharded.masters]
        reads = [int(master.info("total_reads_processed")) for master in sharded.masters]
        await asyncio.sleep(ttl / 2)  # a third of it until they are due
        renewals = [commands_executed(m)["evalsha"] - before for m, before in zip(sharded.masters, began, strict=True)]
        assert sum(renewals) >= count
        read = [int(m.info("total_reads_processed")) - before for m, before in zip(sharded.masters, reads, strict=True)]
        # Some belong to replication, to the bus and to this test; one for each renewal would be a hundred more.
        assert all(each > 50 for each in renewals), renewals
        assert all(each < 60 for each in read), read
        assert [lease for lease in leases if not lease.valid] == []
        assert all(await asyncio.gather(*[lease.release() for lease in leases]))


@both
async def test_closed_cluster_client_leaves_no_threads_and_sockets(mode: str, sharded: Cluster) -> None:
    async with connected(mode, sharded.url) as first:  # what is loaded and started once in a process
        assert await (await first.lock("a").acquire(wait=5)).release()
    eventually(lambda: not [t for t in threading.enumerate() if t.name.startswith("handfast")], within=5)
    slot, target = slot_and_target(sharded, key_of("name-0"))
    with no_threads_or_files_left():
        for turn in range(2):
            async with connected(mode, sharded.url) as client:
                leases = [await client.lock(f"name-{n}").acquire(wait=5) for n in range(9)]
                if turn == 0:
                    sharded.move_slot(slot, target)
                    await leases[0].extend()
                assert all([await lease.release() for lease in leases])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_uses_cluster_client(sharded: Cluster) -> None:
    with handfast.connect(sharded.url) as client:
        mine = [client.lock(f"mine-{n}").acquire(wait=5) for n in range(5)]

        def child() -> list[bool]:
            contended = [client.lock(f"mine-{n}").try_acquire() is None for n in range(5)]
            return [*contended, *(client.lock(f"ours-{n}").acquire(wait=5).release() for n in range(5))]

        assert in_child(child) == [True] * 10
        for lease in mine:
            lease.extend()
            assert lease.release()
