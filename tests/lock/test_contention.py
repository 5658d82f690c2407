"""Contention while nodes are down: it must look the same as with all nodes up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import handfast
import handfast.aio
from handfast import Contended
from handfast.testing import Server, Servers
from tests.support.eventually import eventually
from tests.support.sync_and_async import bootstrap, both, connected


@pytest.mark.parametrize("dead", [0, 1, 2])
@both
async def test_contention_with_dead_minority_is_not_reported_as_outage(mode: str, dead: int, five: Servers) -> None:
    async with connected(mode, five.urls, node_timeout=0.3) as holding, connected(mode, five.urls) as wanting:
        await bootstrap(holding)
        for node in five.nodes[:dead]:
            node.kill()
        lease = await holding.lock("a", ttl=20.0).acquire(wait=2)
        for _ in range(40):
            assert await wanting.lock("a", node_timeout=0.3).try_acquire() is None
        with pytest.raises(Contended) as raised:
            await wanting.lock("a", node_timeout=0.3).acquire(wait=0.2)
        assert raised.value.holder == lease.owner
        assert await lease.release()


def test_node_that_hung_votes_again_while_client_is_busy(three: Servers) -> None:
    with handfast.connect(three.urls, guard=False, node_timeout=0.2) as client:

        def voters() -> tuple[str, ...]:
            with client.lock("a", renew=False) as lease:
                return lease.votes

        eventually(lambda: three.urls[0] in voters())
        three[0].pause()
        # Long enough for its connection to be given up.
        eventually(lambda: voters() and client._group.nodes[0].fault is not None, within=6)
        three[0].resume()
        three[1].pause()  # so that its vote is needed, and the client waits for it
        eventually(lambda: three.urls[0] in voters(), within=6)
        three[1].resume()


def test_asyncio_connection_without_pending_requests_is_not_taken_for_hung(three: Servers) -> None:
    async def main() -> None:
        async with (
            handfast.aio.connect(three.urls, guard=False) as one,
            handfast.aio.connect(three.urls) as two,
            one.lock("a", ttl=20.0),
        ):
            assert await two.lock("a", fence=False).try_acquire() is None
            assert two._io is not None
            for _ in range(50):
                await asyncio.sleep(0.01)
                if not any(link.asked_at for link in two._io.links):
                    break
            assert [link.asked_at for link in two._io.links] == [0.0] * 3

    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
    asyncio.run(main())


def test_with_block_can_end_in_another_thread(client: handfast.Client, one: Server) -> None:
    """As a generator does that a web framework drives from a pool of threads."""

    def dependency() -> Iterator[handfast.Lease]:
        with client.lock("a") as lease:
            yield lease

    steps = dependency()
    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        assert first.submit(next, steps).result().valid
        assert second.submit(next, steps, None).result() is None
    assert one.command("EXISTS", "handfast:{a}") == 0
