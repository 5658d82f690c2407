"""The asyncio client on another loop than Python's own: it writes to transports that are not asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from handfast import Contended, LeaseLost, aio
from handfast.testing import Server, Servers
from tests.support.eventually import eventually_async

uvloop = pytest.importorskip("uvloop")

Play = Callable[[], Coroutine[Any, Any, None]]


def on_uvloop(play: Play) -> None:
    async def checked() -> None:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        await asyncio.wait_for(play(), 20)

    uvloop.run(checked())


@pytest.mark.parametrize("options", [{}, {"fence": False}, {"fair": True}, {"cohort": 8}], ids=str)
def test_tasks_exclude_each_other_on_uvloop(one: Server, options: dict[str, Any]) -> None:
    async def play() -> None:
        inside, tokens = 0, []

        async def turn(client: aio.Client) -> None:
            nonlocal inside
            async with client.lock("a", **options) as lease:
                inside += 1
                assert inside == 1
                tokens.append(lease.token)
                await asyncio.sleep(0)
                inside -= 1

        async with aio.connect(one.url) as client, aio.connect(one.url) as rival:
            await asyncio.gather(*[turn(each) for each in (client, rival) for _ in range(50)])
            assert len(tokens) == 100
            assert options.get("fence") is False or tokens == sorted(set(tokens))
            assert client._queues.by_key == rival._queues.by_key == {}

    on_uvloop(play)


def test_quorum_works_without_minority_on_uvloop(five: Servers) -> None:
    async def play() -> None:
        async with aio.connect(five.urls) as client:
            await aio.bootstrap(client)
            five[0].kill()
            five[1].pause()
            async with client.lock("a") as lease:
                assert len(lease.votes) == 3
                with pytest.raises(Contended):
                    await client.lock("a").acquire(wait=0)

    on_uvloop(play)


def test_lost_lease_cancels_body_and_cancelled_wait_leaves_nothing_on_uvloop(one: Server) -> None:
    async def loses(client: aio.Client) -> None:
        async with client.lock("a", ttl=0.5):
            one.command("SET", "handfast:{a}", "a stranger")
            await asyncio.sleep(10)

    async def play() -> None:
        async with aio.connect(one.url) as client:
            with pytest.raises(LeaseLost):
                await loses(client)
            waiting = asyncio.create_task(client.lock("a", fair=True).acquire())
            await eventually_async(lambda: one.command("EXISTS", "handfast:{a}:q") == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await eventually_async(lambda: one.command("EXISTS", "handfast:{a}:q") == 0)

    on_uvloop(play)
