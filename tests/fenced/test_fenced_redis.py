"""RedisFence on every kind of server, with every client: blocking and asyncio, redis-py and valkey-py, and a cluster."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest
import redis.asyncio
import redis.exceptions
import valkey.asyncio

import handfast
from handfast import ConfigError, StaleToken
from handfast.fenced import RedisFence
from handfast.testing import Server
from handfast.testing.servers import reserve_port
from tests.support.sync_and_async import plain

CLIENTS = {
    "redis": redis.Redis,
    "redis-async": redis.asyncio.Redis,
    "valkey": valkey.Valkey,
    "valkey-async": valkey.asyncio.Valkey,
}
every_client = pytest.mark.parametrize("kind", CLIENTS)


class Awaited:
    """A fence or client whose methods can be awaited, whether it blocks or not."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any) -> Any:
            answer = getattr(self.inner, name)(*args)
            return await answer if hasattr(answer, "__await__") else answer

        return call


@asynccontextmanager
async def client_of(server: Server, kind: str, **options: Any) -> AsyncIterator[Any]:
    client = CLIENTS[kind].from_url(server.url, **options)
    try:
        yield client
    finally:
        await Awaited(client).close() if "async" not in kind else await client.aclose()


@asynccontextmanager
async def fence_of(server: Server, kind: str, **options: Any) -> AsyncIterator[Awaited]:
    async with client_of(server, kind, **options) as client:
        yield Awaited(RedisFence(client))


@every_client
@plain
async def test_stale_write_raises_and_changes_nothing(server: Server, kind: str) -> None:
    async with fence_of(server, kind) as fence:
        assert await fence.set("stock", b"five\x00", 5) is None
        for write in (
            fence.set("stock", "three", 3),
            fence.delete("stock", 3),
            fence.incrby("stock", 1, 4),
            fence.check("stock", 1),
            fence.run("return redis.call('SET', KEYS[1], 'three')", ["stock"], [], 3),
        ):
            with pytest.raises(StaleToken, match=r"stock: token \d is stale, 5 was seen") as caught:
                await write
            assert (caught.value.resource, caught.value.seen) == ("stock", 5)
        assert server.command("GET", "stock") == b"five\x00"
        await fence.set("stock", "again", 5)
        await fence.set("stock", 6.5, 2**53 - 1)
        assert server.command("GET", "stock") == b"6.5"
        with pytest.raises(StaleToken, match="token 9007199254740990 is stale, 9007199254740991 was seen"):
            await fence.check("stock", 2**53 - 2)


@every_client
@plain
async def test_write_returns_reply_of_server(server: Server, kind: str) -> None:
    async with fence_of(server, kind, decode_responses=True) as fence:
        assert await fence.incrby("stock", 40, 1) == 40
        assert await fence.incrby("stock", -1, 2) == 39
        assert await fence.delete("stock", 3) == 1
        assert await fence.delete("stock", 3) == 0
        with pytest.raises(StaleToken):
            await fence.set("stock", "deleted, not forgotten", 2)
        assert await fence.check("stock", 3) is None
        assert server.command("EXISTS", "stock") == 0


@every_client
@plain
async def test_script_runs_after_check_of_all_its_keys(server: Server, kind: str) -> None:
    move = "redis.call('DECRBY', KEYS[1], ARGV[1]) return {redis.call('INCRBY', KEYS[2], ARGV[1]), ARGV[2]} -- moved"
    async with fence_of(server, kind) as fence:
        assert await fence.run(move, ["from", "to"], [3, b"\xff"], 5) == [3, b"\xff"]
        await fence.set("to", 100, 7)
        with pytest.raises(StaleToken, match="to: token 6 is stale, 7 was seen"):
            await fence.run(move, ["from", "to"], [3, ""], 6)
        assert server.command("MGET", "from", "to") == [b"-3", b"100"]
        await fence.check("from", 5)  # no key has stored the refused token 6
        for script, reply in (
            ("", None),
            ("return nil", None),
            ("return false", None),
            ("return {}", []),
            ("return 1", 1),
        ):
            assert await fence.run(script, ["from"], [], 8) == reply


@every_client
@plain
async def test_script_error_is_raised_by_client(server: Server, kind: str) -> None:
    async with fence_of(server, kind) as fence:
        wrong = valkey.exceptions.ResponseError if "valkey" in kind else redis.exceptions.ResponseError
        with pytest.raises(wrong, match="mine"):
            await fence.run("return redis.error_reply('ERR mine')", ["a"], [], 5)
        with pytest.raises(wrong):
            await fence.run("return redis.call('NO SUCH COMMAND')", ["a"], [], 5)
        with pytest.raises(wrong):
            await fence.run("this is no Lua", ["a"], [], 5)
        with pytest.raises(StaleToken):
            await fence.set("a", 1, 4)  # the script may have written before its error, so its token counts


@every_client
@plain
async def test_scripts_are_loaded_again_after_script_flush(server: Server, kind: str) -> None:
    async with fence_of(server, kind) as fence:
        await fence.set("a", 1, 5)
        server.command("SCRIPT", "FLUSH")
        assert await fence.incrby("a", 1, 5) == 2


@every_client
@plain
async def test_accepted_tokens_never_decrease(one: Server, kind: str) -> None:
    """Six concurrent writers with mostly growing tokens, each with its own connection."""
    dice = random.Random(kind)
    body = "redis.call('RPUSH', KEYS[1], ARGV[1]) return redis.call('LLEN', KEYS[1])"
    accepted: list[int] = []
    stale: list[int] = []

    async def write(fence: Any, token: int) -> None:
        try:
            await fence.run(body, ["log"], [token], token)
            accepted.append(token)
        except StaleToken as error:
            stale.append(error.seen - token)

    async def writer(tokens: list[int]) -> None:
        async with fence_of(one, kind) as fence:
            for token in tokens:
                await write(fence, token)

    def threaded(tokens: list[int]) -> None:
        asyncio.run(writer(tokens))

    plans = [[turn * 4 + dice.randrange(60) + 1 for turn in range(100)] for _ in range(6)]
    if "async" in kind:
        await asyncio.gather(*map(writer, plans))
    else:
        await asyncio.gather(*(asyncio.to_thread(threaded, tokens) for tokens in plans))
    reply = one.command("LRANGE", "log", "0", "-1")
    assert isinstance(reply, list)
    log = [int(str(token, "ascii")) for token in reply if isinstance(token, bytes)]
    assert log == sorted(log)
    assert log == sorted(accepted)
    assert len(log) + len(stale) == 600
    assert min(stale) > 0


def test_write_uses_token_of_its_lease(one: Server, client: handfast.Client) -> None:
    fence = RedisFence(redis.Redis.from_url(one.url))
    with client.lock("stock") as older:
        fence.set("stock:7", 1, older)
    with client.lock("stock") as newer:
        fence.set("stock:7", 2, newer)
    with pytest.raises(StaleToken) as caught:
        fence.set("stock:7", 3, older)  # the lease is released, but the resource decides by its token
    assert (caught.value.token, caught.value.seen) == (older.token, newer.token)
    with client.lock("stock", fence=False) as bare, pytest.raises(ConfigError, match="fence=False"):
        fence.set("stock:7", 4, bare)
    assert one.command("GET", "stock:7") == b"2"


@every_client
@plain
async def test_pipeline_is_refused(one: Server, kind: str) -> None:
    async with client_of(one, kind) as client:
        with pytest.raises(ConfigError, match="no pipeline"):
            RedisFence(client.pipeline())


# -- a cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Server]]:
    """Two masters with half of the slots each."""
    with ExitStack() as stack:
        nodes, doors = [], []
        for first in (0, 8192):
            # The default is 10,000 above the other port, which may exceed the largest port.
            doors.append(stack.enter_context(reserve_port()).getsockname()[1])
            node = stack.enter_context(Server(config={"cluster-enabled": "yes", "cluster-port": str(doors[-1])}))
            node.command("CLUSTER", "ADDSLOTS", *range(first, first + 8192))
            node.command("CLUSTER", "SET-CONFIG-EPOCH", 1 + first)
            nodes.append(node)
        nodes[0].command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, doors[1])
        for node in nodes:
            node.wait_for(lambda node=node: b"cluster_state:ok" in node.command("CLUSTER", "INFO"), within=30.0)
        yield nodes


KEYS = ("stock", "a", "b", "c", "user:{42}:stock", "{42}", "x{", "{a}{b}", "é")


def check_keys(fence: Any) -> Iterator[Any]:
    for token, key in enumerate(KEYS, start=10):
        yield fence.set(key, token, token)
        yield fence.incrby(key, 1, token)


def test_cluster_token_is_in_slot_of_its_key(cluster: list[Server]) -> None:
    with redis.RedisCluster.from_url(cluster[0].url) as client:
        fence = RedisFence(client)
        assert list(check_keys(fence))[1::2] == list(range(11, 11 + len(KEYS)))
        for token, key in enumerate(KEYS, start=9):
            with pytest.raises(StaleToken):
                fence.set(key, 0, token)
        with pytest.raises(redis.exceptions.RedisClusterException, match="slot"):
            fence.set("stray}brace", 1, 5)
        assert {client.get_node_from_key(key).port for key in KEYS} == {node.port for node in cluster}


@plain
async def test_cluster_with_asyncio(cluster: list[Server]) -> None:
    async with redis.asyncio.RedisCluster.from_url(cluster[0].url) as client:
        fence = RedisFence(client, prefix="other")
        for write in check_keys(fence):
            await write
        for token, key in enumerate(KEYS, start=9):
            with pytest.raises(StaleToken):
                await fence.set(key, 0, token)
