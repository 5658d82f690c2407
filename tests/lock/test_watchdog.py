"""Renewal, loss and healing, on real servers that are paused, killed and emptied."""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import handfast
from handfast import LeaseLost, NoQuorum
from handfast.net import clock
from handfast.protocol.scripts import TEXT
from handfast.testing import Server, Servers
from tests.support.eventually import assert_on_time, eventually, renewal_of
from tests.support.tcp_relay import Relay

NAME = "watchdog"


def watchdogs() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "watchdog" in thread.name]


def passed(seconds: float) -> None:
    """Let time pass, for promises about time itself."""
    end = clock.now() + seconds
    eventually(lambda: clock.now() >= end, within=seconds + 1)


def held_for(lease: handfast.Lease, seconds: float) -> None:
    """It is valid all the time."""
    end = clock.now() + seconds
    while clock.now() < end:
        assert lease.valid, lease
        time.sleep(0.005)


def holder(node: Server, name: str = "a") -> str | None:
    value = node.command("GET", f"handfast:{{{name}}}")
    assert value is None or isinstance(value, bytes)
    return None if value is None else value.decode()


def writes(node: Server) -> int:
    """Commands that could change a lock, as the server counted them."""
    found = [re.match(r"calls=(\d+)", node.info(f"cmdstat_{word}")) for word in ("set", "evalsha", "pexpire")]
    return sum(int(match.group(1)) for match in found if match)


@contextmanager
def opened(servers: Servers, **options: Any) -> Iterator[handfast.Client]:
    with handfast.connect(servers.urls, **options) as client:
        if len(servers) > 1:
            handfast.bootstrap(client)
        yield client


@pytest.fixture(params=[1, 3], ids=["one node", "quorum"])
def nodes(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with Servers(request.param) as servers:
        yield servers


# -- the thread ----------------------------------------------------------------------------------------------------


def test_one_watchdog_thread_serves_all_clients_and_ends_with_last_one(one: Server) -> None:
    eventually(lambda: not watchdogs())  # the watchdog of the last test may be ending
    clients = [handfast.connect(one.url) for _ in range(5)]
    leases = [client.lock(f"{NAME}-{i}-{j}").acquire() for i, client in enumerate(clients) for j in range(10)]
    eventually(lambda: len(watchdogs()) == 1)
    for client in clients[:-1]:
        client.close()
    assert len(watchdogs()) == 1
    assert leases[-1].valid
    clients[-1].close()
    eventually(lambda: not watchdogs())
    with handfast.connect(one.url) as client:
        client.lock("a").acquire().release()
        eventually(lambda: len(watchdogs()) == 1)


def test_close_while_servers_hang_does_not_fail(three: Servers) -> None:
    with handfast.connect(three.urls, guard=False, ttl=3.0) as client:
        lease = client.lock("a").acquire(wait=1)
        for node in three:
            node.pause()
        # By this time the first renewal has failed, its connection is closed, and the next one has begun.
        eventually(lambda: lease.remaining() < 0.7, within=3)
        client.close()
    assert not lease.valid


def test_close_waits_for_work_of_watchdog(one: Server) -> None:
    """A lease was dropped, and its release is on its way when the client is closed."""
    client = handfast.connect(one.url, ttl=30.0)
    lease = client.lock("a").acquire()
    one.pause()
    del lease
    dog = client._dog
    assert dog is not None
    eventually(lambda: any(registration.releases for registration in dog._registrations.values()))
    back = threading.Timer(0.1, one.resume)
    back.start()
    client.close()
    back.join()
    assert one.command("EXISTS", "handfast:{a}") == 0


def test_two_threads_can_close_client_at_once(one: Server) -> None:
    client = handfast.connect(one.url)
    client.lock("a").acquire().release()
    threads = [threading.Thread(target=client.close, daemon=True) for _ in range(2)]
    with client._dog_lock:  # neither is before the other
        for thread in threads:
            thread.start()
        passed(0.05)
    for thread in threads:
        thread.join(5)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.usefixtures("small_heap")
def test_close_while_watchdog_connects_leaves_no_connection(three: Servers) -> None:
    with opened(three, max_ttl=1.0):
        pass
    three[2].restart(empty=True)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(10):
            # A node in quarantine makes the watchdog connect at once.
            with handfast.connect(three.urls, max_ttl=1.0) as client:
                client.lock("a").acquire(wait=1).release()
            gc.collect()
    assert [str(warning.message) for warning in seen if issubclass(warning.category, ResourceWarning)] == []


def test_exit_in_watchdogs_thread_does_not_end_it(one: Server) -> None:
    with handfast.connect(one.url) as client:
        lease = client.lock("a", ttl=0.6).acquire()
        assert client._dog is not None
        client._dog.call_soon(sys.exit)
        eventually(renewal_of(lease))


def test_client_closes_and_next_one_is_served_after_watchdog_has_failed(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = handfast.connect(one.url)
    lease = client.lock("a", ttl=0.6).acquire()
    eventually(renewal_of(lease))
    dog = client._dog
    assert dog is not None
    monkeypatch.setattr(dog.schedule, "take_due", sys.exit)
    dog._wake()
    eventually(lambda: not watchdogs())
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(5)
    assert not closing.is_alive()
    with handfast.connect(one.url) as other:
        lease = other.lock("b", ttl=0.6).acquire()
        eventually(renewal_of(lease))


# -- renewal -------------------------------------------------------------------------------------------------------


def test_renewals_of_one_node_share_writes(one: Server) -> None:
    ttl = 0.6
    with handfast.connect(one.url) as client:
        leases = [client.lock(f"many-{i}", ttl=ttl).acquire() for i in range(200)]
        commands, reads = writes(one), int(one.info("total_reads_processed"))
        passed(3 * ttl)
        commands, reads = writes(one) - commands, int(one.info("total_reads_processed")) - reads
        assert all(lease.valid and not lease.lost.is_set() for lease in leases)
        assert commands >= 200 * 6
        assert reads < commands / 4


def test_renewal_survives_short_outage(nodes: Servers) -> None:
    ttl = 0.9
    with opened(nodes, ttl=ttl) as client:
        lease = client.lock("a").acquire(wait=1)
        eventually(lambda: lease.remaining() < 0.75 * ttl)
        for node in nodes:
            node.pause()
        # Beyond the moment of renewal, so that the first one fails.
        eventually(lambda: lease.remaining() < 0.35 * ttl)
        for node in nodes:
            node.resume()
        held_for(lease, 1.2 * ttl)
        assert lease.release()


def test_renewal_survives_broken_connection(one: Server) -> None:
    with Relay(one.url) as relay, handfast.connect(relay.url, ttl=0.9) as client:
        lease = client.lock("a").acquire(wait=1)
        for _ in range(3):
            passed(0.25)
            relay.hang_up()
            assert lease.valid
        held_for(lease, 0.6)
        lease.release()


def test_max_hold_ends_renewal_of_hung_holder(one: Server) -> None:
    ttl = 0.4
    with handfast.connect(one.url, ttl=ttl, max_hold=0.8) as client:
        began = clock.now()
        lease = client.lock("a").acquire()
        assert lease.lost.wait(0.8 + ttl + 0.2)
        assert 0.8 - ttl / 3 <= clock.now() - began <= 0.8 + ttl + 0.1
        with pytest.raises(LeaseLost, match="max_hold was reached"):
            lease.check()
        eventually(lambda: client.lock("a").try_acquire() is not None, within=ttl)


def test_extend_during_renewal_never_outlives_key(one: Server) -> None:
    with handfast.connect(one.url, ttl=0.9) as client:
        lease = client.lock("a").acquire()
        stop = threading.Event()

        def extend() -> None:
            while not stop.is_set():
                lease.extend()

        threads = [threading.Thread(target=extend) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            end = clock.now() + 1.0
            while clock.now() < end:
                before = clock.now()
                promised = lease.remaining()
                kept = one.command("PTTL", "handfast:{a}")
                assert isinstance(kept, int)
                assert promised <= kept / 1000 + clock.now() - before
                assert promised > 0
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        lease.release()


def test_unconfirmed_shorter_extension_shortens_validity() -> None:
    """A node may have carried it out: its key ends early, so the lease must too."""
    with Server() as node, handfast.connect(node.url, ttl=4.0, renew=False, node_timeout=0.1) as client:
        lease = client.lock("a").acquire()
        node.pause()
        with pytest.raises(NoQuorum, match="no answer"):
            lease.extend(ttl=0.3)
        node.resume()
        eventually(lambda: holder(node) is None or not lease.valid, within=6)
        assert not lease.valid


def test_busy_threads_do_not_cost_a_lease(one: Server) -> None:
    stop = threading.Event()

    def hog() -> None:
        while not stop.is_set():
            sum(range(200))

    threads = [threading.Thread(target=hog) for _ in range(4)]
    with handfast.connect(one.url, ttl=1.0) as client:
        lease = client.lock("a").acquire()
        for thread in threads:
            thread.start()
        try:
            held_for(lease, 2.0)
            assert not lease.lost.is_set()
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert lease.release()


# -- loss ----------------------------------------------------------------------------------------------------------


def test_loss_is_declared_at_deadline_while_all_servers_hang(nodes: Servers) -> None:
    def lateness() -> float:
        lease = client.lock("a").acquire(wait=2)
        for node in nodes:
            node.pause()
        # A renewal that was sent before the pause may still be answered: only the deadline from now on counts.
        passed(0.05)
        deadline = clock.now() + lease.remaining()
        assert lease.lost.wait(2.0)
        late = clock.now() - deadline
        assert not lease.valid
        with pytest.raises(LeaseLost):
            lease.check()
        for node in nodes:
            node.resume()
        return late

    with opened(nodes, ttl=0.6) as client:
        assert_on_time(lateness)


def test_lost_lease_sends_nothing_after_servers_wake(nodes: Servers) -> None:
    with opened(nodes, ttl=0.6) as client:
        lease = client.lock("a").acquire(wait=1)
        for node in nodes:
            node.pause()
        assert lease.lost.wait(2.0)
        for node in nodes:
            node.resume()
            # Another owner has it now. Everything under way has been carried out when this is answered.
            eventually(
                lambda node=node: node.command("SET", "handfast:{a}", "stranger", "NX") or holder(node) == "stranger"
            )
        counted = [writes(node) for node in nodes]
        assert lease.release() is False
        with pytest.raises(LeaseLost):
            lease.extend()
        passed(0.6)
        assert [writes(node) for node in nodes] == counted
        assert [holder(node) for node in nodes] == ["stranger"] * len(nodes)
        assert [node.command("PTTL", "handfast:{a}") for node in nodes] == [-1] * len(nodes)


def test_renewal_confirmed_after_deadline_does_not_revive_lease(one: Server) -> None:
    with Relay(one.url) as relay, handfast.connect(relay.url, ttl=0.6) as client:
        lease = client.lock("a").acquire()
        eventually(lambda: lease.remaining() < 0.45)
        eventually(lambda: lease.remaining() > 0.5, what="renewed once: the watchdog is connected")
        relay.replies.clear()
        assert lease.lost.wait(2.0)
        assert holder(one) == lease.owner  # the renewal itself was carried out
        relay.replies.set()
        passed(0.3)
        assert not lease.valid
        assert lease.remaining() == 0.0
        with pytest.raises(LeaseLost, match=r"in time|deadline"):
            lease.check()


def test_next_renewal_finds_key_taken(nodes: Servers) -> None:
    with opened(nodes, ttl=0.9) as client:
        lease = client.lock("a").acquire(wait=1)
        for node in nodes:
            node.command("SET", "handfast:{a}", "stranger")
        assert lease.lost.wait(0.9 / 3 + 0.3)
        with pytest.raises(LeaseLost, match="now held by stranger"):
            lease.check()
        assert [holder(node) for node in nodes] == ["stranger"] * len(nodes)


# -- healing -------------------------------------------------------------------------------------------------------


def test_long_hold_survives_rolling_empty_restart(five: Servers) -> None:
    with opened(five, ttl=0.9, max_ttl=1.0, node_timeout=0.1) as client:
        lease = client.lock("a").acquire(wait=1)
        eventually(lambda: all(holder(node) == lease.owner for node in five))
        for node in five:
            node.restart(empty=True)
            eventually(lambda node=node: holder(node) == lease.owner, within=3.0, what="the vote is given back")
            assert lease.valid
        eventually(lambda: len(lease.votes) == 5, within=3.0)
        assert lease.release()
        eventually(lambda: all(holder(node) is None for node in five), what="no key is left of a healed lease")


class Distant(Relay):
    """A node whose replies come 30 ms later than the others'."""

    def _pass(self, gate: threading.Event) -> None:
        super()._pass(gate)
        if gate is self.replies:
            time.sleep(0.03)


def test_slow_nodes_are_healed(five: Servers) -> None:
    """Their "not yours" comes after the others have already decided the renewal."""
    with Distant(five[3].url) as d, Distant(five[4].url) as e:
        urls = [*five.urls[:3], d.url, e.url]
        with handfast.connect(urls, ttl=0.6, guard=False, node_timeout=0.2) as client:
            lease = client.lock("a").acquire(wait=1)
            for node in five.nodes[3:]:
                eventually(lambda node=node: holder(node) == lease.owner)
            for node in five.nodes[3:]:
                node.command("DEL", "handfast:{a}")
            eventually(lambda: all(holder(node) == lease.owner for node in five), within=2.0)
            lease.release()


def test_healing_waits_for_another_owner_and_restores_full_ttl(three: Servers) -> None:
    with opened(three, ttl=0.6, node_timeout=0.1) as client:
        three[2].command("SET", "handfast:{a}", "stranger", "PX", 900)
        lease = client.lock("a").acquire(wait=1)
        assert three[2].url not in lease.votes
        seen: list[str | None] = []
        eventually(lambda: seen.append(holder(three[2])) or seen[-1] != "stranger", within=2.0)
        eventually(lambda: holder(three[2]) == lease.owner, within=2.0)
        eventually(lambda: three[2].url in lease.votes)
        assert set(seen) <= {"stranger", None, lease.owner}
        left = three[2].command("PTTL", "handfast:{a}")
        assert isinstance(left, int)
        assert 0 < left <= 600
        lease.release()
        eventually(lambda: all(holder(node) is None for node in three))


def test_healing_does_not_shorten_newer_vote(one: Server) -> None:
    """A late grant and an extension may arrive before a healing command that was sent earlier."""
    one.command("SET", "k", "owner", "PX", 60_000)
    assert one.command("EVAL", TEXT["restore_vote"], 3, "k", "k:f", "k:g", "owner", "-", 100, 1, 0, 604800) == 1
    left = one.command("PTTL", "k")
    assert isinstance(left, int)
    assert left > 50_000


def test_healed_node_has_token_as_floor(three: Servers) -> None:
    with opened(three, ttl=0.6, max_ttl=1.0, node_timeout=0.1) as client:
        lease = client.lock("a").acquire(wait=1)
        three[1].restart(empty=True)
        eventually(lambda: holder(three[1]) == lease.owner, within=3.0)
        counter = three[1].command("GET", "handfast:{a}:f")
        assert isinstance(counter, bytes)
        assert int(counter) >= (lease.token or 0)
        lease.release()


def test_release_after_healing_leaves_no_key_on_any_node(three: Servers) -> None:
    with opened(three, ttl=0.6, node_timeout=0.1) as client:
        for _ in range(5):
            lease = client.lock("a").acquire(wait=1)
            three[0].command("DEL", "handfast:{a}")
            eventually(lambda lease=lease: holder(three[0]) == lease.owner, within=2.0)
            assert lease.release()
            eventually(lambda: all(holder(node) is None for node in three))
