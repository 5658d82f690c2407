"""Two races: they happen to a lock without a guard, and do not happen to a guarded one.

1. A master dies before its lock has reached the replica, which is promoted: the next client gets the same lock.
2. A quorum of five: client 1 holds A, B, C; C restarts and has forgotten; client 2 gets C, D, E.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

import handfast
from handfast import NoQuorum, NotAcquired
from handfast.testing import Server, Servers
from handfast.testing.servers import reserve_port
from tests.support.eventually import eventually
from tests.support.tcp_relay import Relay

TTL = 1.0
OPTIONS: dict[str, Any] = {"ttl": TTL, "max_ttl": TTL, "renew": False, "node_timeout": 0.2}


class Address(Relay):
    """An address that a failover moves: it leads to the present master."""

    def move_to(self, server: Server) -> None:
        self._target = urlsplit(server.url)
        self.hang_up()


class Pair:
    """A master, its replica behind a link that can be cut, and the address that clients know."""

    def __init__(self, master: Server, replica: Server, link: Relay, address: Address) -> None:
        self.master, self.replica, self.link, self.address = master, replica, link, address

    @property
    def url(self) -> str:
        return self.address.url

    def wait_in_step(self) -> None:
        offset = self.master.info("master_repl_offset")
        eventually(lambda: int(self.replica.info("slave_repl_offset")) >= int(offset))

    def cut(self) -> None:
        """From here on nothing reaches the replica."""
        self.link.replies.clear()

    def fail_over(self) -> None:
        self.master.kill()
        self.replica.command("REPLICAOF", "NO", "ONE")
        assert self.replica.info("role") == "master"
        self.address.move_to(self.replica)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with Server() as master, Relay(master.url) as link, Server() as replica, Address(master.url) as address:
        replica.command("REPLICAOF", "127.0.0.1", str(link.port))
        eventually(lambda: replica.info("master_link_status") == "up", within=5.0)
        yield Pair(master, replica, link, address)


def take(client: handfast.Client, **options: Any) -> handfast.Lease | None:
    """One more try: None while it is refused, for any reason."""
    try:
        return client.lock("resource", **options).acquire(wait=0)
    except NotAcquired:
        return None


def test_failover_without_guard_grants_lock_to_two_clients(pair: Pair) -> None:
    with handfast.connect(pair.url, **OPTIONS) as one, handfast.connect(pair.url, **OPTIONS) as two:
        pair.cut()
        first = one.lock("resource").acquire(wait=0)
        pair.fail_over()
        second = two.lock("resource").acquire(wait=0)
        assert first.valid
        assert second.valid


def test_failover_with_guard_grants_lock_only_after_first_lease_ended(pair: Pair) -> None:
    options = {**OPTIONS, "guard": True}
    with handfast.connect(pair.url, **options) as one, handfast.connect(pair.url, **options) as two:
        handfast.bootstrap(one)
        pair.wait_in_step()
        pair.cut()
        first = one.lock("resource").acquire(wait=0)
        pair.fail_over()
        with pytest.raises(NoQuorum, match="no vote for another"):
            two.lock("resource").acquire(wait=0)
        assert first.valid
        second = two.lock("resource").acquire(wait=5.0)
        assert not first.valid
        assert (second.token or 0) > (first.token or 0)
        second.release()


def test_client_connected_before_failover_acquires_no_earlier(pair: Pair) -> None:
    options = {**OPTIONS, "guard": True}
    with handfast.connect(pair.url, **options) as one, handfast.connect(pair.url, **options) as two:
        handfast.bootstrap(one)
        two.lock("warm").acquire(wait=0).release()
        pair.wait_in_step()
        pair.cut()
        first = one.lock("resource").acquire(wait=0)
        pair.fail_over()
        second = two.lock("resource").acquire(wait=5.0)
        assert not first.valid
        second.release()


@pytest.mark.parametrize("guard", [False, True])
def test_unreplicated_lock_is_never_granted_with_replicas_option(pair: Pair, guard: bool) -> None:
    options = {**OPTIONS, "replicas": 1, "guard": guard}
    with handfast.connect(pair.url, **options) as client:
        if guard:
            handfast.bootstrap(client)
        client.lock("resource").acquire(wait=0).release()
        pair.cut()
        with pytest.raises(NoQuorum, match="0 of 1 replicas confirmed"):
            client.lock("resource").acquire(wait=0)
        eventually(lambda: pair.master.command("EXISTS", "handfast:{resource}") == 0, what="the grant is rolled back")


@pytest.fixture
def abc_only(five: Servers) -> Iterator[list[str]]:
    """The addresses of a client that reaches A, B and C; the addresses for D and E do not answer."""
    with reserve_port() as d, reserve_port() as e:
        dead = [f"redis://127.0.0.1:{sock.getsockname()[1]}" for sock in (d, e)]
        yield [*five.urls[:3], *dead]


def test_restart_without_guard_grants_lock_to_two_clients(five: Servers, abc_only: list[str]) -> None:
    options = {**OPTIONS, "guard": False}
    with handfast.connect(abc_only, **options) as one, handfast.connect(five.urls, **options) as two:
        first = one.lock("resource").acquire(wait=0)
        assert set(first.votes) == set(five.urls[:3])
        five[2].restart(empty=True)
        second = two.lock("resource").acquire(wait=0)
        assert set(second.votes) == set(five.urls[2:])
        assert first.valid
        assert second.valid


@pytest.mark.parametrize("fence", [True, False], ids=["fenced", "unfenced"])
def test_restarted_node_with_guard_has_no_vote_during_first_lease(
    five: Servers, abc_only: list[str], fence: bool
) -> None:
    options = {**OPTIONS, "fence": fence}
    with handfast.connect(abc_only, **options) as one, handfast.connect(five.urls, **options) as two:
        handfast.bootstrap(two)
        first = one.lock("resource").acquire(wait=0)
        assert set(first.votes) == set(five.urls[:3])
        five[2].restart(empty=True)
        assert take(two) is None
        assert first.valid
        second = two.lock("resource").acquire(wait=5.0)
        assert not first.valid
        assert five[2].url not in second.votes
        if fence:
            assert (second.token or 0) > (first.token or 0)
        second.release()


def test_renewed_lease_with_guard_outlives_restart(five: Servers, abc_only: list[str]) -> None:
    options = {**OPTIONS, "renew": True}
    with handfast.connect(abc_only, **options) as one, handfast.connect(five.urls, **options) as two:
        handfast.bootstrap(two)
        first = one.lock("resource").acquire(wait=0)
        five[2].restart(empty=True)
        # A and B are left: no majority can confirm a renewal, so the lease must end before the next one begins.
        second = two.lock("resource").acquire(wait=5.0)
        assert not first.valid
        second.release()
