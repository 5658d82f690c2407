"""A wait ends at its deadline despite any fault of the servers, and the error says why."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from handfast import Contended, NoQuorum, NotAcquired
from handfast.testing import Server, Servers
from tests.support.sync_and_async import bootstrap, both, connected
from tests.support.tcp_relay import Impostor, Relay
from tests.support.waiters import (
    FAIR,
    IN_TIME,
    KEY,
    LONG,
    STALLED,
    assert_prompt,
    attempt_in_background,
    wait_for_queued_waiters,
)
from tests.support.waiters import no_background_errors as _nothing_fails  # noqa: F401

FAULTS: dict[str, Callable[[Server, Relay], None]] = {
    "held": lambda server, relay: None,
    "killed": lambda server, relay: server.kill(),
    "paused": lambda server, relay: server.pause(),
    "swallowed": lambda server, relay: relay.requests.clear(),
}


@pytest.mark.parametrize(
    ("count", "fault", "fair"),
    [(1, fault, fair) for fault in FAULTS for fair in (True, False)]
    + [(3, fault, True) for fault in ("held", "killed", "paused")],
)
@both
async def test_wait_ends_at_its_deadline_despite_any_server_fault(mode: str, count: int, fault: str, fair: bool) -> None:
    """A majority of one or of three nodes fails."""
    seconds = iter((0.05, 0.1, 0.4, 1.6))
    said: list[set[type]] = []

    async def lateness() -> float | None:
        # The first waiter outlasts some waiters. The others outlast it, and become the first.
        unit = next(seconds)
        waits = [7 * unit, 5 * unit, 9 * unit, 6 * unit]
        with Servers(count) as servers, Relay(servers[0].url) as relay:
            urls: Any = servers.urls if count > 1 else relay.url if fault == "swallowed" else servers[0].url
            async with connected(mode, urls, **({"node_timeout": 0.5} if count > 1 else {})) as client:
                if count > 1:
                    await bootstrap(client)
                for node in servers:
                    node.command("SET", KEY, "a stranger", "PX", LONG)
                lock = client.lock("a", fair=fair)
                began = time.monotonic()
                waiters = [attempt_in_background(lock, wait=wait) for wait in waits]
                all_wait = asyncio.create_task(wait_for_queued_waiters(lock, 4, *servers))
                await asyncio.wait([all_wait, *waiters], return_when=asyncio.FIRST_COMPLETED)
                in_time = all_wait.done() and time.monotonic() < began + 3 * unit
                all_wait.cancel()
                for node in servers.nodes[: count // 2 + 1]:
                    FAULTS[fault](node, relay)
                results = await asyncio.gather(*waiters)
                for node in servers:
                    node.resume()
                relay.requests.set()
        assert all(isinstance(got.error, NotAcquired) for got in results)
        if not in_time:
            return None
        if fault in ("held", "killed"):  # the client learns of a hung server only when it asks again
            said.append({type(got.error) for got in results})
            if said[-1] != {Contended if fault == "held" else NoQuorum}:
                return None
        late = [got.took - wait for got, wait in zip(results, waits, strict=True)]
        assert min(late) > -0.001
        return max(late)

    await assert_prompt(lateness, IN_TIME)


@pytest.mark.parametrize(("count", "fair"), [(1, True), (1, False), (3, True)])
@pytest.mark.parametrize("known", [False, True], ids=["unknown", "connected"])
@both
async def test_silent_server_is_an_outage_and_not_contention(mode: str, known: bool, count: int, fair: bool) -> None:
    async def lateness() -> float:
        with Servers(count) as servers:
            options = {"node_timeout": 0.2} if count > 1 else {}
            async with connected(mode, servers.urls if count > 1 else servers[0].url, **options) as client:
                lock = client.lock("a", fair=fair)
                if known:
                    if count > 1:
                        await bootstrap(client)
                    await (await lock.acquire()).release()
                for node in servers.nodes[: count // 2 + 1]:
                    node.pause()
                results = await asyncio.gather(*[attempt_in_background(lock, wait=0.3) for _ in range(3)])
                for node in servers:
                    node.resume()
        assert {type(got.error) for got in results} == {NoQuorum}
        assert min(got.took for got in results) > 0.299
        return max(got.took for got in results) - 0.3

    await assert_prompt(lateness, IN_TIME)


@both
async def test_server_that_hangs_after_a_reconnection_is_an_outage(mode: str) -> None:
    with Server() as server:
        async with connected(mode, server.url, node_timeout=0.2) as client:
            lock = client.lock("a")
            await (await lock.acquire()).release()
            server.command("CLIENT", "KILL", "TYPE", "normal")
            await (await lock.acquire()).release()
            server.pause()
            got = await asyncio.wait_for(attempt_in_background(lock, wait=0.5), STALLED)
            server.resume()
    assert isinstance(got.error, NoQuorum)


@both
async def test_first_connection_to_something_silent_ends_at_the_deadline(mode: str) -> None:
    async def lateness() -> float:
        with Impostor.silent() as silent:
            async with connected(mode, silent.url) as client:
                got = await attempt_in_background(client.lock("a"), wait=0.3)
        assert isinstance(got.error, NoQuorum)
        assert got.took > 0.299
        return got.took - 0.3

    await assert_prompt(lateness, IN_TIME)


class Reluctant(Relay):
    """Delays the handshake, and forwards nothing after it."""

    HANDSHAKE = 2
    passed = 0

    def _pass(self, gate: threading.Event) -> None:
        if gate is self.requests:
            self.passed += 1
            if self.passed == 1:
                time.sleep(0.25)
            elif self.passed > self.HANDSHAKE:
                gate = threading.Event()  # which is never set
        super()._pass(gate)


@FAIR
@both
async def test_connecting_is_part_of_the_wait(mode: str, fair: bool, one: Server) -> None:
    async def lateness() -> float:
        with Reluctant(one.url) as relay:
            async with connected(mode, relay.url) as client:
                got = await attempt_in_background(client.lock("a", fair=fair), wait=0.4)
            assert relay.passed > relay.HANDSHAKE
        assert isinstance(got.error, NoQuorum)
        assert got.took > 0.399
        return got.took - 0.4

    await assert_prompt(lateness, IN_TIME)
