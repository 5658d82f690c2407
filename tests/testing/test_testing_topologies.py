"""Replicas, Sentinel and Cluster of the launcher, on every installed server, with their faults."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from redis.cluster import RedisCluster

from handfast.embedded.resp import ReplyError
from handfast.testing import Cluster, Proxy, Replicated, SentinelGroup, Server, available
from handfast.testing.plugin import _healed, _Kept
from handfast.testing.ports import reserve_with_bus
from tests.support.eventually import eventually

KINDS = ("valkey-9.1", "redis-7.0", "redis-6.2")
PASSWORD, QUOTED = 'a "word" of\\ mine', "a%20%22word%22%20of%5C%20mine"

every_kind = pytest.mark.parametrize("kind", KINDS)


def binary(kind: str) -> Path:
    if kind not in available():
        pytest.skip(f"no {kind} on this machine")
    return available()[kind]


def role(server: Server) -> bytes:
    said = server.command("ROLE")
    assert isinstance(said, list)
    assert isinstance(said[0], bytes)
    return said[0]


# -- a server ----------------------------------------------------------------------------------------------------------


def test_server_gets_environment_and_is_watched_process(tmp_path: Path) -> None:
    program = tmp_path / "server"
    program.write_text(f'#!/bin/sh\necho "told: $WORD"\nexec {next(iter(available().values()))} "$@"\n')
    program.chmod(0o755)
    with Server(program, env={"WORD": "two words"}) as server:
        assert "told: two words\n" in server.log
        assert int(server.info("process_id")) == server.pid


def test_users_are_part_of_configuration() -> None:
    with Server(config={"user": "alice on >secret ~a* +get"}) as server, server.connect() as link:
        link.command("AUTH", "alice", "secret")
        assert link.command("GET", "a") is None
        with pytest.raises(ReplyError, match="NOPERM"):
            link.command("SET", "a", 1)


# -- replicas ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def _replicated() -> Iterator[Replicated]:
    with Replicated(2, binary("redis-7.0")) as group:  # this version synchronizes fastest
        yield group


@pytest.fixture
def replicated(_replicated: Replicated) -> Replicated:
    _replicated.heal()
    return _replicated


@every_kind
def test_master_starts_with_synchronized_replicas(kind: str) -> None:
    with Replicated(2, binary(kind), password=PASSWORD, config={"min-replicas-to-write": "2"}) as group:
        group.master.command("SET", "a", 1)
        group.wait_synced()
        assert [replica.command("GET", "a") for replica in group.replicas] == [b"1", b"1"]
        assert [role(node) for node in group] == [b"master", b"slave", b"slave"]
        group.cut(group.replicas[1])
        with pytest.raises(ReplyError, match="NOREPLICAS"):
            group.master.command("SET", "a", 2)


def test_promoted_replica_lacks_writes_made_while_cut_off(replicated: Replicated) -> None:
    old, (behind, other) = replicated.master, replicated.replicas
    replicated.cut(behind)
    old.command("SET", "lock", "mine")
    assert (old.command("GET", "lock"), behind.command("GET", "lock")) == (b"mine", None)
    replicated.promote(behind)
    replicated.wait_synced()
    assert (replicated.master, replicated.replicas) == (behind, [other])
    assert (old.command("GET", "lock"), other.command("GET", "lock")) == (b"mine", None)
    assert role(old) == b"master", "nobody told it"
    replicated.heal()
    assert old.command("GET", "lock") is None
    assert [role(node) for node in (old, behind, other)] == [b"slave", b"master", b"slave"]


def test_promoted_replica_is_master_after_restart(replicated: Replicated) -> None:
    replicated.promote(replicated.replicas[0])
    replicated.master.restart()
    assert role(replicated.master) == b"master"
    replicated.wait_synced()


def test_replica_can_use_proxy() -> None:
    with Server() as master, Proxy(master) as network, Server(replica_of=network) as replica:
        # A master sends no commands before the replica has acknowledged the first copy. A network that fails earlier
        # holds back that acknowledgement, and the master stays silent.
        master.command("SET", "before", 1)
        replica.wait_for(lambda: replica.command("GET", "before") == b"1")
        network.half_open()
        master.command("SET", "a", 1)
        eventually(lambda: network.down.held, within=20)
        assert replica.command("GET", "a") is None
        network.heal()
        replica.wait_for(lambda: replica.command("GET", "a") == b"1")


def test_readiness_timeout_says_what_is_missing(replicated: Replicated) -> None:
    replica = replicated.replicas[0]
    replicated.cut(replica)
    with pytest.raises(TimeoutError, match=f"port {replica.port} has no link to its master"):
        replicated.wait_synced(within=0.1)


# -- Sentinel ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def _sentinel(request: pytest.FixtureRequest) -> Iterator[SentinelGroup]:
    """A group with passwords; everything must work with them."""
    config = {"min-replicas-to-write": "1"}
    with SentinelGroup(binary=binary(request.param), password=PASSWORD, sentinel_password="s/?#", config=config) as group:
        yield group


@pytest.fixture
def sentinel(_sentinel: SentinelGroup) -> SentinelGroup:
    _sentinel.heal()
    return _sentinel


on_valkey = pytest.mark.parametrize("_sentinel", KINDS[:1], indirect=True)
on_redis_7 = pytest.mark.parametrize("_sentinel", KINDS[1:2], indirect=True)


def test_sentinels_start_and_see_all_servers(sentinel: SentinelGroup) -> None:
    for each in sentinel.sentinels:
        assert str(each.command("SENTINEL", "CKQUORUM", "mymaster")).startswith("OK 3 usable Sentinels")
    assert (role(sentinel.master), [role(node) for node in sentinel.replicas]) == (b"master", [b"slave", b"slave"])
    members = ",".join(f"127.0.0.1:{each.port}" for each in sentinel.sentinels)
    assert sentinel.url == f"redis+sentinel://:{QUOTED}@{members}/mymaster/0?sentinel_password=s%2F%3F%23"


@on_redis_7
def test_isolated_master_is_replaced_without_noticing(sentinel: SentinelGroup) -> None:
    old = sentinel.master
    sentinel.isolate(old)
    assert role(sentinel.wait_replaced(old)) == b"master"
    assert role(old) == b"master"
    with pytest.raises(ReplyError, match="NOREPLICAS"):
        old.command("SET", "a", 1)
    sentinel.heal()
    assert sorted(role(node) for node in sentinel) == [b"master", b"slave", b"slave"]


@on_valkey
def test_missing_member_of_group_is_reported(sentinel: SentinelGroup) -> None:
    sentinel.sentinels[0].pause()
    with pytest.raises(TimeoutError, match=f"port {sentinel.sentinels[0].port} is dead or paused"):
        sentinel.wait_ready(within=0)
    assert sentinel.master in sentinel.nodes, "the other two are asked"
    with pytest.raises(RuntimeError, match="the sentinels promote"):
        sentinel.promote(sentinel.replicas[0])


@on_valkey
def test_master_is_replaced_on_demand_and_after_crash(sentinel: SentinelGroup) -> None:
    first = sentinel.master
    first.command("SET", "a", 1)
    sentinel.wait_synced()
    second = sentinel.failover()
    assert (sentinel.master, role(second), second.command("GET", "a")) == (second, b"master", b"1")
    sentinel.wait_ready()
    assert role(first) == b"slave"
    assert sentinel.kill_master() is second
    third = sentinel.wait_replaced(second)
    assert (role(third), third.command("GET", "a")) == (b"master", b"1")
    second.restart()


# -- Cluster -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=KINDS)
def _cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(binary=binary(request.param), password=PASSWORD) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    _cluster.heal()
    return _cluster


on_newer_clusters = pytest.mark.parametrize("_cluster", KINDS[:2], indirect=True)


def test_cluster_starts_with_all_slots_and_a_replica_per_master(cluster: Cluster) -> None:
    assert cluster.url == f"redis+cluster://:{QUOTED}@" + ",".join(f"127.0.0.1:{node.port}" for node in cluster)
    first, second, third = cluster.masters
    assert {cluster.replica_of(master) for master in cluster.masters} | {first, second, third} == set(cluster.nodes)
    edges = [0, 5460, 5461, 10921, 10922, 16383]
    assert [cluster.owner(slot) for slot in edges] == [first, first, second, second, third, third]
    with RedisCluster("127.0.0.1", first.port, password=PASSWORD) as client:
        for number in range(20):
            client.set(f"key-{number}", number)
            assert cluster.node_for(f"key-{number}").command("GET", f"key-{number}") == b"%d" % number


@on_newer_clusters
def test_migrating_slot_answers_ask_and_tryagain_and_arrives(cluster: Cluster) -> None:
    source, target = cluster.node_for("{tag}"), next(m for m in cluster.masters if m is not cluster.node_for("{tag}"))
    slot = cluster.slot_of("{tag}")
    for number in range(12):
        source.command("SET", f"{{tag}}{number}", number, "PX", 60_000)
    with cluster.moving(slot, target, keys_per_step=5) as move:
        assert move.step(4) == 4
        left, moved = keys_in(source, slot), keys_in(target, slot)
        assert (len(left), len(moved)) == (8, 4)
        with pytest.raises(ReplyError, match=f"ASK {slot} 127.0.0.1:{target.port}"):
            source.command("GET", moved[0])
        with pytest.raises(ReplyError, match="TRYAGAIN"):
            source.command("MGET", *left, *moved)
        with pytest.raises(TimeoutError, match=f"slots on their way: .{slot}."):
            cluster.wait_ok(within=0)
    cluster.wait_ok()
    assert cluster.node_for("{tag}") is target
    assert [target.command("GET", f"{{tag}}{n}") for n in range(12)] == [b"%d" % n for n in range(12)]
    assert target.command("PTTL", "{tag}0") in range(1, 60_001)
    with pytest.raises(ReplyError, match=f"MOVED {slot} 127.0.0.1:{target.port}"):
        source.command("GET", "{tag}0")
    cluster.move_slot(slot, source)
    assert cluster.node_for("{tag}") is source


def keys_in(node: Server, slot: int) -> list[bytes]:
    said = node.command("CLUSTER", "GETKEYSINSLOT", slot, 100)
    assert isinstance(said, list)
    return [key for key in said if isinstance(key, bytes)]


@on_newer_clusters
def test_cluster_with_migrating_slot_is_not_whole(cluster: Cluster) -> None:
    _, second, _ = cluster.masters
    with pytest.raises(ZeroDivisionError), cluster.moving(0, second):
        raise ZeroDivisionError
    assert not _healed(cluster, within=0.2)
    cluster.move_slot(0, second)
    assert _healed(cluster)


@on_newer_clusters
def test_shard_changes_master_on_demand(cluster: Cluster) -> None:
    master = cluster.node_for("a")
    replica = cluster.replica_of(master)
    master.command("SET", "a", 1)
    assert cluster.failover(master) is replica
    assert (cluster.node_for("a"), replica.command("GET", "a")) == (replica, b"1")
    cluster.wait_ok()
    assert cluster.replica_of(replica) is master


@pytest.mark.parametrize("_cluster", KINDS[:1], indirect=True)
def test_shard_changes_master_after_crash(cluster: Cluster) -> None:
    master = cluster.node_for("b")
    replica = cluster.replica_of(master)
    cluster.cut(replica)
    master.command("SET", "b", 1)
    master.kill()
    assert cluster.wait_replaced(master) is replica
    cluster.wait_ok()
    assert replica.command("GET", "b") is None, "it was cut off"
    master.restart()
    cluster.heal()
    assert cluster.replica_of(replica) is master


def test_cluster_without_replicas() -> None:
    def serves(masters: int) -> int:
        with Cluster(masters, replicas=0) as cluster:
            assert cluster.masters == cluster.nodes
            cluster.node_for("a").command("SET", "a", 1)
            return len(cluster)

    with ThreadPoolExecutor() as side_by_side:
        assert list(side_by_side.map(serves, [1, 6])) == [1, 6]


def test_cluster_node_reserves_port_of_its_bus() -> None:
    first, second = reserve_with_bus(), reserve_with_bus()
    try:
        ports = [reserved.getsockname()[1] for reserved in (*first, *second)]
        assert len(set(ports)) == 4
        assert (ports[1] - ports[0], ports[3] - ports[2]) == (10000, 10000)
    finally:
        for reserved in (*first, *second):
            reserved.close()


# -- all ---------------------------------------------------------------------------------------------------------------


def test_groups_end_with_killed_process() -> None:
    code = (
        "import sys; from handfast.testing import Cluster, SentinelGroup\n"
        "group, cluster = SentinelGroup(sentinels=1, replicas=0), Cluster(1, 0)\n"
        "group.start(), cluster.start()\n"
        "group.sentinels[0].pause()\n"
        "for server in (group.master, group.sentinels[0], cluster[0]): print(server.port, server.folder)\n"
        "print(flush=True), sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout
        servers = [starter.stdout.readline().split() for _ in range(3)]
        starter.kill()
    for port, folder in servers:
        eventually(lambda folder=folder: not Path(folder).exists(), within=10)
        with socket.socket() as client:
            eventually(lambda port=port, client=client: client.connect_ex(("127.0.0.1", int(port))), within=10)


def test_fixture_heals_group_or_replaces_it() -> None:
    with closing(_Kept(lambda: Replicated(1, binary("redis-7.0")))) as kept:
        group = kept.whole_and_empty()
        old = group.master
        old.command("SET", "a", 1)
        group.cut()
        group.promote(group.replicas[0])
        group.master.pause()
        assert kept.whole_and_empty() is group
        assert (role(old), [node.command("DBSIZE") for node in group]) == (b"slave", [0, 0])
        group.replicas[0].kill()
        another = kept.whole_and_empty()
        assert another is not group
        assert [role(node) for node in another] == [b"master", b"slave"]
        assert not group.master.folder.exists()
