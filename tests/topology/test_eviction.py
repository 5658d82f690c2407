"""A server that may evict keys may evict locks: it is reported, in every topology and after every change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

import handfast
import handfast.aio
from handfast.testing import Cluster, SentinelGroup, Server, Servers
from tests.support.eventually import eventually

EVICTS = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
WITHIN = 1.5
"""Seconds for the line to come: several ttls of the locks here."""


def warned(caplog: pytest.LogCaptureFixture, *places: str) -> bool:
    """A warning names one of these servers, its policy and the right one."""
    texts = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    return any(
        "allkeys-lru" in text and "noeviction" in text and any(place in text for place in places) for text in texts
    )


@contextmanager
def evicting(servers: list[Server]) -> Iterator[None]:
    """Servers that may evict, for the time of the block."""
    for server in servers:
        for name, value in EVICTS.items():
            server.command("CONFIG", "SET", name, value)
    try:
        yield
    finally:
        for server in servers:
            server.command("CONFIG", "SET", "maxmemory", "0")
            server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


def renewal_at(server: Server) -> Callable[[], bool]:
    """Whether the watchdog has renewed the lock's key since the last call, which shows that it is connected there."""
    ends = 1 << 52

    def look() -> bool:
        nonlocal ends
        left = server.command("PTTL", "handfast:{orders}")
        assert isinstance(left, int)
        later, ends = left > ends, left
        return later

    return look


def test_single_node_is_reported_at_its_first_connection(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    with evicting([one]), handfast.connect(one.url) as client:
        client.lock("orders").acquire().release()
        eventually(lambda: warned(caplog, one.url), WITHIN)


def test_single_node_is_reported_to_asyncio(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with handfast.aio.connect(one.url) as client:
            await (await client.lock("orders").acquire()).release()

    with evicting([one]):
        asyncio.run(main())
        eventually(lambda: warned(caplog, one.url), WITHIN)


def test_server_is_reported_once_for_many_connections(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    with evicting([one]), handfast.connect(one.url) as client:
        for _ in range(3):
            with client.lock("orders"), client.lock("invoices"):
                one.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        texts = [record.getMessage() for record in caplog.records if "may evict" in record.getMessage()]
        assert len(texts) == 1


def test_server_without_eviction_is_not_reported(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    with handfast.connect(one.url) as client, client.lock("orders", ttl=0.3):
        eventually(renewal_at(one))
    assert not [record for record in caplog.records if "may evict" in record.getMessage()]


def test_quorum_is_reported_at_its_first_connection(three: Servers, caplog: pytest.LogCaptureFixture) -> None:
    with evicting(three.nodes[2:]), handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
        eventually(lambda: warned(caplog, three[2].url), WITHIN)
        assert not warned(caplog, three[0].url, three[1].url)


def test_master_under_sentinel_is_reported(handfast_sentinel: SentinelGroup, caplog: pytest.LogCaptureFixture) -> None:
    """By the label that errors show, or by the address of the master."""
    master = handfast_sentinel.master
    with evicting([master]), handfast.connect(handfast_sentinel.url) as client:
        client.lock("orders").acquire().release()
        label = handfast_sentinel.url.removesuffix("/0")
        eventually(lambda: warned(caplog, label, f"127.0.0.1:{master.port}"), WITHIN)


def test_masters_of_a_cluster_are_reported(handfast_cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    masters = list(handfast_cluster.masters)
    with evicting(masters), handfast.connect(handfast_cluster.url) as client:
        client.lock("orders").acquire().release()
        places = [handfast_cluster.url, *(f"127.0.0.1:{master.port}" for master in masters)]
        eventually(lambda: warned(caplog, *places), WITHIN)


def test_policy_that_changes_while_a_lock_is_held_is_reported(one: Server, caplog: pytest.LogCaptureFixture) -> None:
    """Within a few renewals of a lock that is held there."""
    with handfast.connect(one.url) as client, client.lock("orders", ttl=0.3):
        eventually(renewal_at(one))
        assert not warned(caplog, one.url)
        with evicting([one]):
            eventually(lambda: warned(caplog, one.url), WITHIN)


def test_policy_that_changes_on_a_node_of_a_quorum_is_reported(three: Servers, caplog: pytest.LogCaptureFixture) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
        with client.lock("orders", ttl=0.3):
            eventually(renewal_at(three[2]))
            assert not warned(caplog, *three.urls)
            with evicting(three.nodes[2:]):
                eventually(lambda: warned(caplog, three[2].url), WITHIN)
