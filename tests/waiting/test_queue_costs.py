"""What a hand-over costs the servers, by MONITOR: clients take turns, and all commands that they send are counted."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import pytest

import handfast
from handfast.testing import Server, Servers
from tests.support.queues import KEY, LONG, SOON, Monitor, acquire_in_background, wait_for_queue_length
from tests.support.sync_and_async import both, connected

pytestmark = pytest.mark.slow

CLIENTS = 4
TURNS = 50
"""Turns of each client."""


async def take_turns(mode: str, clients: list[Any], monitors: list[Monitor]) -> list[float]:
    """Commands for each hand-over, by node. Connections and subscriptions are made before."""

    async def turns(client: Any, count: int) -> None:
        lock = client.lock("a")
        for _ in range(count):
            lease = await acquire_in_background(mode, lock, wait=5)
            await asyncio.sleep(0)
            assert await lease.release()

    async def all_clients(count: int) -> None:
        await asyncio.gather(*[turns(client, count) for client in clients])

    await all_clients(3)
    for monitor in monitors:
        monitor.take()
    await all_clients(TURNS)
    return [len(monitor.take()) / (TURNS * len(clients)) for monitor in monitors]


@both
async def test_hand_over_on_one_node_costs_at_most_three_commands(mode: str, server: Server) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, server.url, ttl=LONG)) for _ in range(CLIENTS)]
        with Monitor(server) as monitor:
            (commands,) = await take_turns(mode, clients, [monitor])
    assert commands <= 3


@both
async def test_hand_over_on_five_nodes_costs_at_most_four_commands_of_each(mode: str, five: Servers) -> None:
    with handfast.connect(five.urls, node_timeout=5.0) as client:
        handfast.bootstrap(client)
    async with AsyncExitStack() as stack:
        options: dict[str, Any] = {"ttl": LONG, "node_timeout": 1.0}
        clients = [await stack.enter_async_context(connected(mode, five.urls, **options)) for _ in range(CLIENTS)]
        with ExitStack() as monitors:
            by_node = await take_turns(mode, clients, [monitors.enter_context(Monitor(node)) for node in five])
    assert max(by_node) <= 4, by_node


@pytest.mark.parametrize("fair", [True, False], ids=["fair", "barging"])
@both
async def test_waiters_send_nothing_while_the_lock_is_held(mode: str, fair: bool, server: Server) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(mode, server.url, ttl=LONG)) for _ in range(CLIENTS)]
        lease = await clients[0].lock("a", fair=fair).acquire()
        waiting: list[asyncio.Future[Any]] = []
        for client in clients[1:]:
            waiting.append(acquire_in_background(mode, client.lock("a", fair=fair)))
            await wait_for_queue_length(server, len(waiting))
        with Monitor(server) as monitor:
            await asyncio.sleep(0.3)  # a time to be silent in
            assert monitor.take() == []
            assert await lease.release()
            lease = await asyncio.wait_for(waiting[0], SOON)
            sent = monitor.take()
        assert len(sent) == 1, "the release, and nothing else"
        for waiter in waiting[1:]:
            assert await lease.release()
            lease = await asyncio.wait_for(waiter, SOON)
        assert await lease.release()
        assert server.command("EXISTS", KEY) == 0
