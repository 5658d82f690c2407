"""What `handfast.operate.locks` tells of locks is what their holders and waiters know."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import handfast
from handfast.operate.breaking import break_lock
from handfast.operate.locks import LockInfo, detail, held, look, parse_owner
from handfast.operate.servers import Deployment
from handfast.testing import Cluster, SentinelGroup, Server, Servers
from tests.support.eventually import eventually
from tests.support.topologies import BACK_WITHIN, SENTINEL_PASSWORD


@contextmanager
def waiting(client: handfast.Client, name: str) -> Iterator[list[handfast.Lease | BaseException]]:
    """Another thread waits for the lock; what it gets is in the list."""
    got: list[handfast.Lease | BaseException] = []

    def wait() -> None:
        try:
            got.append(client.lock(name).acquire(wait=20))
        except BaseException as error:
            got.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: client.lock(name).waiters(), 5, "nobody waits")
    try:
        yield got
    finally:
        thread.join(20)
        for lease in got:
            assert isinstance(lease, handfast.Lease), lease
            lease.release()


def by_name(deployment: Deployment, pattern: str = "*") -> dict[str, LockInfo]:
    found = list(held(deployment, pattern))
    assert len({info.name for info in found}) == len(found)
    return {info.name: info for info in found}


NAMES = ["plain", "with space", "tagged{shard}", "}odd", "a:f", "x>y]z", "日本", "{}", "*"]


def test_lists_every_kind_of_name(server: Server) -> None:
    with handfast.connect(server.url, label="tests") as client, Deployment(server.url) as deployment:
        leases = {name: client.lock(name).acquire() for name in NAMES}
        assert {name: info.token for name, info in by_name(deployment).items()} == {
            name: lease.token for name, lease in leases.items()
        }


def test_lock_info_names_the_holder(server: Server) -> None:
    with handfast.connect(server.url, label="tests", ttl=10) as client, Deployment(server.url) as deployment:
        lease = client.lock("a").acquire()
        with waiting(client, "a"):
            (info,) = held(deployment)
            assert (info.kind, info.state, info.token) == ("lock", "held", lease.token)
            assert info.owner.text == lease.owner
            assert info.owner == parse_owner(lease.owner)
            assert info.owner.label == "tests"
            assert info.waiters == 1
            assert info.ttl is not None
            assert 0 < info.ttl <= 10
            assert info.since is not None
            assert 0 <= info.since < 60
            assert [vote.owner for vote in info.votes] == [lease.owner]
            found = detail(deployment, "a")
            assert [waiter.owner.label for waiter in found.waiters] == ["tests"]
            assert found.last_token == lease.token
            lease.release()


def test_explicit_owner_and_unfenced_lock_are_distinguished(one: Server) -> None:
    with handfast.connect(one.url) as client, Deployment(one.url) as deployment:
        shared = client.lock("shared", owner="me:and:you").acquire()
        unfenced = client.lock("unfenced", fence=False).acquire()
        found = by_name(deployment)
        assert (found["shared"].kind, found["shared"].owner.short) == ("explicit owner", "me:and:you")
        assert found["shared"].token == shared.token
        assert (found["unfenced"].kind, found["unfenced"].token) == ("lock", None)
        assert found["unfenced"].owner.text == unfenced.owner


def test_pattern_is_that_of_a_shell(one: Server) -> None:
    with handfast.connect(one.url) as client, Deployment(one.url) as deployment:
        leases = [client.lock(name).acquire() for name in ("orders:1", "orders:2", "users:1")]
        assert set(by_name(deployment, "orders:*")) == {"orders:1", "orders:2"}
        assert set(by_name(deployment, "*:[1]")) == {"orders:1", "users:1"}
        assert all(lease.release() for lease in leases)


@pytest.mark.parametrize("prefix", ["a*[b]?\\", "other:", ""])
def test_prefix_is_taken_literally(one: Server, prefix: str) -> None:
    with (
        handfast.connect(one.url) as other,
        other.lock("not mine"),
        handfast.connect(one.url, prefix=prefix) as client,
        client.lock("mine"),
        Deployment(one.url, prefix=prefix) as deployment,
    ):
        assert set(by_name(deployment)) == {"mine"}


def test_other_keys_are_no_locks(one: Server) -> None:
    one.command("SET", "handfast:{a}:f", "1")
    one.command("SET", "handfast:nonsense}", "1")
    one.command("LPUSH", "handfast:{list}", "1")
    with Deployment(one.url) as deployment:
        assert by_name(deployment) == {}


def test_quorum_shows_the_vote_of_each_node(quorum: handfast.Client, five: Servers) -> None:
    lease = quorum.lock("a").acquire()
    other = quorum.lock("b").acquire()
    five[0].command("DEL", "handfast:{a}")
    five[1].kill()
    with Deployment(five.urls) as deployment:
        found = by_name(deployment)
        info = found["a"]
        assert {name: each.owner.text for name, each in found.items()} == {"a": lease.owner, "b": other.owner}
        assert (info.state, info.token) == ("held", lease.token)
        assert [vote.owner for vote in info.votes] == [None, None, *[lease.owner] * 3]
        assert [bool(vote.error) for vote in info.votes] == [False, True, False, False, False]
        assert "refused the connection" in info.votes[1].error


def test_minority_is_distinguished_from_a_majority(quorum: handfast.Client, five: Servers) -> None:
    with Deployment(five.urls) as deployment:
        for server in list(five)[3:]:
            server.command("SET", "handfast:{a}", "somebody", "PX", 60000)
        assert by_name(deployment)["a"].state == "minority"


def test_waiters_of_a_quorum_are_counted_once(quorum: handfast.Client, five: Servers) -> None:
    lease = quorum.lock("a").acquire()
    with waiting(quorum, "a"), Deployment(five.urls) as deployment:
        eventually(lambda: detail(deployment, "a").waiters, 5)
        (waiter,) = detail(deployment, "a").waiters
        assert waiter.nodes >= 3
        assert waiter.since < 60
        lease.release()


def test_cluster_is_scanned_on_all_its_nodes(handfast_cluster: Cluster) -> None:
    with handfast.connect(handfast_cluster.url) as client, Deployment(handfast_cluster.url) as deployment:
        leases = [client.lock(f"n{i}").acquire() for i in range(30)]
        found = by_name(deployment)
        assert {info.owner.text for info in found.values()} == {lease.owner for lease in leases}
        assert detail(deployment, "n7").last_token == leases[7].token


def test_sentinel_names_the_server(handfast_sentinel: SentinelGroup) -> None:
    url = handfast_sentinel.url
    with handfast.connect(url) as client, client.lock("a"), Deployment(url) as deployment:
        assert set(by_name(deployment)) == {"a"}


def test_failover_is_followed(doomed: SentinelGroup) -> None:
    with handfast.connect(doomed.url) as client, Deployment(doomed.url) as deployment:
        assert list(held(deployment)) == []
        old = doomed.master
        with doomed.sentinels[0].connect() as link:
            link.command("AUTH", SENTINEL_PASSWORD)
            link.command("SENTINEL", "FAILOVER", doomed.name)
        doomed.wait_replaced(old, BACK_WITHIN)
        with client.lock("a", wait=BACK_WITHIN):
            eventually(lambda: set(_names(deployment)) == {"a"}, 10)


def test_master_that_is_none_any_more_is_not_believed(doomed: SentinelGroup) -> None:
    """It answers as before, but what it knows is what the new master tells it."""
    with Deployment(doomed.url) as deployment:
        deployment.check()
        for sentinel in doomed.sentinels:
            sentinel.pause()
        replica = doomed.replicas[0]
        doomed.master.command("REPLICAOF", "127.0.0.1", replica.port)
        try:
            assert look(deployment, ["a"]) == [None]
            assert "another server has taken its place" in str(deployment.faults)
        finally:
            for sentinel in doomed.sentinels:
                sentinel.resume()


def _names(deployment: Deployment) -> list[str]:
    try:
        return [info.name for info in held(deployment)]
    except ConnectionError:
        return []


def test_dead_server_is_one_error(one: Server) -> None:
    with Deployment("redis://127.0.0.1:1") as deployment, pytest.raises(ConnectionError, match="refused the connection"):
        list(held(deployment))


def test_server_that_comes_back_is_asked_again() -> None:
    with Server() as server, Deployment(server.url) as deployment:
        assert list(held(deployment)) == []
        server.restart()
        with pytest.raises(ConnectionError):
            list(held(deployment))
        eventually(lambda: not _fails(deployment), 5)


def _fails(deployment: Deployment) -> bool:
    try:
        list(held(deployment))
    except ConnectionError:
        return True
    return False


# -- breaking


def test_broken_lock_goes_to_the_next_waiter(server: Server) -> None:
    with (
        handfast.connect(server.url, ttl=3) as client,
        handfast.connect(server.url, ttl=3) as other,
        Deployment(server.url) as deployment,
    ):
        lease = client.lock("a").acquire()
        with waiting(other, "a") as got:
            (seen,) = look(deployment, ["a"])
            assert seen is not None
            result = break_lock(deployment, seen, by="op@desk", reason="hangs")
            assert (result.outcome, list(result.nodes.values())) == ("broken", ["handed over"])
            eventually(lambda: got, 5)
        assert lease.lost.wait(5)
        with pytest.raises(handfast.LeaseLost):
            lease.check()
        heir = got[0]
        assert isinstance(heir, handfast.Lease)
        assert heir.token is not None
        assert lease.token is not None
        assert heir.token > lease.token
        (line,) = detail(deployment, "a").audit
        assert (line.name, line.owner.text, line.token, line.by, line.reason) == (
            "a", lease.owner, lease.token, "op@desk", "hangs",
        )  # fmt: skip


def test_broken_lock_without_waiters_is_free_and_its_next_token_larger(server: Server) -> None:
    with handfast.connect(server.url) as client, Deployment(server.url) as deployment:
        first = client.lock("a").acquire()
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        assert break_lock(deployment, seen).nodes == {server.url: "broken"}
        second = client.lock("a").acquire(wait=0)
        assert second.token is not None
        assert first.token is not None
        assert second.token > first.token


def test_lock_that_changed_hands_is_left_alone(server: Server) -> None:
    with handfast.connect(server.url) as client, Deployment(server.url) as deployment:
        client.lock("a").acquire().release()
        first = client.lock("a").acquire()
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        first.release()
        second = client.lock("a").acquire()
        result = break_lock(deployment, seen)
        assert (result.outcome, list(result.nodes.values())) == ("changed", ["changed"])
        second.extend()
        assert detail(deployment, "a").audit == ()


def test_explicit_owner_that_came_again_is_left_alone(one: Server) -> None:
    with handfast.connect(one.url) as client, Deployment(one.url) as deployment:
        lock = client.lock("a", owner="me")
        leases = [lock.acquire(), lock.acquire()]
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        assert break_lock(deployment, seen).outcome == "broken"
        again = lock.acquire(wait=0)
        assert break_lock(deployment, seen).outcome == "changed"
        again.extend()
        assert all(lease.lost.wait(10) for lease in leases)


def test_break_on_a_quorum_frees_every_node(quorum: handfast.Client, five: Servers) -> None:
    with handfast.connect(five.urls) as other, Deployment(five.urls) as deployment:
        lease = quorum.lock("a").acquire()
        with waiting(other, "a") as got:
            (seen,) = look(deployment, ["a"])
            assert seen is not None
            result = break_lock(deployment, seen)
            assert result.outcome == "broken"
            assert set(result.nodes.values()) <= {"handed over", "broken"}
            eventually(lambda: got, 5)
            assert lease.lost.wait(15)
            heir = got[0]
            assert isinstance(heir, handfast.Lease)
            assert (heir.token or 0) > (lease.token or 0)
            assert len(detail(deployment, "a").audit) == 1


def test_break_beside_dead_nodes_is_noticed_at_the_next_renewal(three: Servers) -> None:
    with handfast.connect(three.urls, ttl=3) as client, Deployment(three.urls) as deployment:
        handfast.bootstrap(client)
        three[2].kill()
        lease = client.lock("a").acquire()
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        assert break_lock(deployment, seen).outcome == "broken"
        assert lease.lost.wait(10)
        with pytest.raises(handfast.LeaseLost, match="a majority of the nodes no longer holds it"):
            lease.check()


def test_break_needs_a_majority_of_nodes(quorum: handfast.Client, five: Servers) -> None:
    lease = quorum.lock("a").acquire()
    with Deployment(five.urls) as deployment:
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        for server in list(five)[:3]:
            server.kill()
        result = break_lock(deployment, seen)
        assert result.outcome == "unknown"
        assert sorted(result.nodes.values())[:2] == ["broken", "broken"]
        assert result.lock.owner.text == lease.owner


def test_break_on_a_cluster(handfast_cluster: Cluster) -> None:
    with handfast.connect(handfast_cluster.url) as client, Deployment(handfast_cluster.url) as deployment:
        leases = [client.lock(f"n{i}").acquire() for i in range(6)]
        for seen in look(deployment, [f"n{i}" for i in range(6)]):
            assert seen is not None
            assert break_lock(deployment, seen).outcome == "broken"
        assert list(held(deployment)) == []
        assert [len(detail(deployment, f"n{i}").audit) for i in range(6)] == [1] * 6
        assert all(lease.lost.wait(10) for lease in leases)


def test_nothing_is_broken_without_an_audit_line(one: Server) -> None:
    one.command("SET", "handfast:audit", "not a stream")
    with handfast.connect(one.url) as client, Deployment(one.url) as deployment:
        lease = client.lock("a").acquire()
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        result = break_lock(deployment, seen)
        assert result.outcome == "unknown"
        assert "audit line could not be written" in result.nodes[one.url]
        lease.extend()


def test_audit_is_bounded(one: Server) -> None:
    with one.connect() as link:
        for i in range(1010):
            link.command("XADD", "handfast:audit", "*", "name", f"n{i}")
    with handfast.connect(one.url) as client, Deployment(one.url) as deployment:
        lease = client.lock("a").acquire()
        (seen,) = look(deployment, ["a"])
        assert seen is not None
        assert break_lock(deployment, seen).lock.owner.text == lease.owner
        assert one.command("XLEN", "handfast:audit") == 1000
        assert len(detail(deployment, "a").audit) == 1
