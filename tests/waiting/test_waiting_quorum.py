"""Waiting on a quorum: what only a quorum has. For what wakes a waiter, see test_waiting_wakeups."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import pytest

import handfast
from handfast import ConfigError, NoQuorum
from handfast.testing import Servers
from tests.support.sync_and_async import both, connected
from tests.support.tcp_relay import Relay
from tests.support.waiters import (
    FOREIGN,
    FOREIGN_KEY,
    KEY,
    LONG,
    STALLED,
    assert_prompt,
    attempt_in_background,
    commands_executed,
    resolve,
    wait_for_queued_waiters,
    wait_for_waiters,
)
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

NODE_TIMEOUT = 0.2
"""Seconds: enough for a busy machine."""
WAYS: dict[str, dict[str, Any]] = {"fair": {}, "foreign": FOREIGN}
"""How a lock is waited for: in the queues of the nodes, or by tracking the keys of other programs."""


@pytest.fixture
def open_five(five: Servers) -> Servers:
    """Five servers that are open for votes."""
    with handfast.connect(five.urls) as client:
        handfast.bootstrap(client)
    return five


@both
async def test_late_answer_that_a_key_is_free_counts(mode: str, three: Servers) -> None:
    """One node is dead and one is slow. The slow one is asked only after the release, so nothing changes there any more,
    and it pushes nothing."""
    with handfast.connect(three.urls, node_timeout=NODE_TIMEOUT) as holding, Relay(three[2].url) as slow:
        handfast.bootstrap(holding)
        async with connected(mode, [*three.urls[:2], slow.url]) as client:
            lock = client.lock("a", **FOREIGN)
            await (await client.lock("warm").acquire()).release()
            three[0].kill()

            async def lateness() -> float:
                lease = holding.lock("a", ttl=20.0, **FOREIGN).acquire(wait=1)
                slow.requests.clear()
                want = attempt_in_background(lock, wait=STALLED)
                await wait_for_queued_waiters(lock, 1, three[1])
                lease.release()
                began = time.monotonic()
                slow.requests.set()
                got = await want
                assert got.lease, got.error
                await got.lease.release()
                return got.at - began

            await assert_prompt(lateness, 0.2)


@pytest.mark.parametrize("way", WAYS)
@both
async def test_many_waiters_are_one_silent_waiter_to_each_server(mode: str, way: str, open_five: Servers) -> None:
    crowd = 1000 if mode == "asyncio" else 50
    with handfast.connect(open_five.urls, node_timeout=NODE_TIMEOUT) as holding:
        lease = holding.lock("a", ttl=20.0, **WAYS[way]).acquire()
        async with connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT) as client:
            lock = client.lock("a", **WAYS[way])
            waiters = [attempt_in_background(lock, wait=10)]
            await wait_for_queued_waiters(lock, 1, *open_five)
            waiters += [attempt_in_background(lock, wait=10) for _ in range(crowd - 1)]
            await wait_for_waiters(lock, crowd)
            before = commands_executed(*open_five)
            await asyncio.sleep(0.3)  # a time to be silent in
            assert commands_executed(*open_five) - before == Counter()
            await client.close()
            assert {type((await each).error) for each in waiters} == {ConfigError}
            assert not client._queues.by_key
        lease.release()


@pytest.mark.parametrize("refusing", [2, 3])
@both
async def test_tracking_may_be_refused_by_some_nodes(
    mode: str, refusing: int, open_five: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    """A minority makes no difference. Without a majority the waiter asks now and then."""
    for node in open_five.nodes[:refusing]:
        refused = "-client" if node.info("redis_version").startswith("6.") else "-client|tracking"
        node.command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", refused)
    login = [node.url.replace("//", "//limited:secret@") for node in open_five.nodes[:refusing]]
    async with connected(mode, login + open_five.urls[refusing:]) as client:
        lock = client.lock("a", **FOREIGN)

        async def lateness() -> float:
            for node in open_five:
                node.command("SET", FOREIGN_KEY, "a stranger", "PX", LONG)
            want = attempt_in_background(lock, wait=STALLED)
            await wait_for_queued_waiters(lock, 1, *open_five.nodes[refusing:])
            for node in open_five:
                node.command("DEL", FOREIGN_KEY)
            began = time.monotonic()
            got = await want
            assert got.lease, got.error
            await got.lease.release()
            return got.at - began

        await assert_prompt(lateness, 0.05 if refusing == 2 else 0.5)
    said = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("client tracking is refused" in record.getMessage() for record in said) == (refusing == 3)


@both
async def test_holder_and_waiters_are_the_same_for_all_clients(mode: str, open_five: Servers) -> None:
    async with (
        connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT) as client,
        connected(mode, open_five.urls, node_timeout=NODE_TIMEOUT, label="them") as rival,
    ):
        lock, theirs = client.lock("a"), rival.lock("a")
        assert await resolve(lock.holder()) is None
        lease = await lock.acquire()
        want = attempt_in_background(lock, wait=10)
        await wait_for_waiters(lock, 1)
        for dead in range(3):
            for node in open_five.nodes[:dead]:
                node.kill()
            holder = await resolve(theirs.holder())
            assert (holder.owner, holder.token) == (lease.owner, lease.token)
            assert 5 < holder.remaining <= 10
        (who,) = await resolve(lock.waiters())
        assert who.startswith(lease.owner.rpartition(":")[0])
        (seen,) = await resolve(theirs.waiters())
        assert seen.rpartition(":")[0] == who.rpartition(":")[0]
        await lease.release()
        lease = (await want).lease
        assert (await resolve(theirs.holder())).owner == lease.owner
        assert await resolve(lock.waiters()) == []
        await lease.release()
        assert await resolve(theirs.holder()) is None
        for count, node in enumerate(open_five.nodes[2:], 1):  # no majority has one owner
            node.command("SET", KEY, f"stranger {count}")
        assert await resolve(theirs.holder()) is None
        open_five[2].kill()
        with pytest.raises(NoQuorum) as raised:
            await resolve(theirs.holder())
        assert set(raised.value.nodes) == set(open_five.urls)
