"""The asyncio floors: one connection per node, one write per loop turn, one future per operation.

On five nodes every node gets the same bytes, so a loop turn joins them once. The reply that completes the
majority resolves the operation's future. Replies keep the order of requests: a deque per node tells which
operation a reply belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from functools import partial

import hiredis

from bench.candidate import AsyncCandidate, AsyncPair, AsyncSession, PairFailed, Urls, address
from bench.commands import commands_for, owners
from bench.floors import connected


class OneNode(asyncio.Protocol):
    def __init__(self) -> None:
        self.reader = hiredis.Reader()
        self.waiting: deque[asyncio.Future[object]] = deque()
        self.out: list[bytes] = []
        self.loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        reader, waiting = self.reader, self.waiting
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            waiting.popleft().set_result(reply)

    def send(self, request: bytes) -> asyncio.Future[object]:
        if not self.out:
            self.loop.call_soon(self.flush)
        self.out.append(request)
        future = self.loop.create_future()
        self.waiting.append(future)
        return future

    def flush(self) -> None:
        self.transport.write(b"".join(self.out))  # type: ignore[attr-defined]
        self.out.clear()


@contextlib.asynccontextmanager
async def one_node(urls: Urls, with_fence: bool) -> AsyncIterator[AsyncSession]:
    commands, next_owner = commands_for(1, with_fence), owners()
    with connected(urls, commands):  # Loads the scripts.
        pass
    loop = asyncio.get_running_loop()
    transport, node = await loop.create_connection(OneNode, *address(urls[0]))
    send = node.send

    def session(name: str) -> AsyncPair:
        acquire, release = commands.acquire(name), commands.release(name)

        async def pair() -> None:
            owner = next_owner()
            request, yes = acquire(owner)
            if (reply := await send(request)) != yes:
                raise PairFailed(repr(reply))
            request, yes = release(owner)
            if (reply := await send(request)) != yes:
                raise PairFailed(repr(reply))

        return pair

    yield session
    transport.close()


class Operation:
    """Votes counted so far; only touched by the loop's thread."""

    __slots__ = ("decided", "granted", "refused", "yes")

    def __init__(self, decided: asyncio.Future[bool], yes: object) -> None:
        self.decided, self.yes = decided, yes
        self.granted = self.refused = 0


class Node(asyncio.Protocol):
    def __init__(self, majority: int) -> None:
        self.majority = majority
        self.reader = hiredis.Reader()
        self.waiting: deque[Operation] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        reader, waiting, majority = self.reader, self.waiting, self.majority
        reader.feed(data)
        while (reply := reader.gets()) is not False:
            operation = waiting.popleft()
            if reply == operation.yes:
                operation.granted += 1
                if operation.granted == majority:
                    operation.decided.set_result(True)
            else:
                operation.refused += 1
                if operation.refused == majority:
                    operation.decided.set_result(False)


class Quorum:
    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.loop = asyncio.get_running_loop()
        self.out: list[bytes] = []
        self.operations: list[Operation] = []

    def send(self, request: bytes, yes: object) -> asyncio.Future[bool]:
        if not self.out:
            self.loop.call_soon(self.flush)
        self.out.append(request)
        future = self.loop.create_future()
        self.operations.append(Operation(future, yes))
        return future

    def flush(self) -> None:
        data = b"".join(self.out)
        for node in self.nodes:
            node.waiting.extend(self.operations)
            node.transport.write(data)  # type: ignore[attr-defined]
        self.out.clear()
        self.operations.clear()


@contextlib.asynccontextmanager
async def quorum(urls: Urls, with_fence: bool) -> AsyncIterator[AsyncSession]:
    commands, next_owner = commands_for(len(urls), with_fence), owners()
    with connected(urls, commands):  # Loads the scripts.
        pass
    loop, nodes = asyncio.get_running_loop(), []
    for url in urls:
        _, node = await loop.create_connection(partial(Node, len(urls) // 2 + 1), *address(url))
        nodes.append(node)
    send = Quorum(nodes).send

    def session(name: str) -> AsyncPair:
        acquire, release = commands.acquire(name), commands.release(name)

        async def pair() -> None:
            owner = next_owner()
            if not await send(*acquire(owner)):
                raise PairFailed("a majority refused")
            if not await send(*release(owner)):
                raise PairFailed("a majority refused the release")

        return pair

    yield session
    for node in nodes:
        node.transport.close()


def floors(nodes: int, with_fence: bool) -> list[AsyncCandidate]:
    return [AsyncCandidate("floor", partial(one_node if nodes == 1 else quorum, with_fence=with_fence))]
