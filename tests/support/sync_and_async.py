"""One test for two clients: a test that is written for asyncio runs with the blocking client too."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import pytest

import handfast
import handfast.aio

__all__ = ["MODES", "Awaited", "bootstrap", "both", "connected", "plain"]

MODES: Final = ("threads", "asyncio")


def plain(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test, run by asyncio.run."""

    @functools.wraps(test)
    def run(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run


def both(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """An async test that takes `mode`, run for the blocking client and for the asyncio one."""
    return pytest.mark.parametrize("mode", MODES)(plain(test))


class Awaited:
    """A blocking client, lock or lease with the methods of an asyncio one. One thread makes all its calls. It is not the
    thread of the event loop, where they would stop the loop and warn."""

    def __init__(self, inner: Any, thread: Executor | None = None) -> None:
        self.inner = inner
        self.thread = ThreadPoolExecutor(1) if thread is None else thread

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name in ("lock", "rlock"):
            return lambda *args, **options: Awaited(value(*args, **options), self.thread)
        if name not in ("acquire", "try_acquire", "release", "extend", "close"):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            result = await self.run(value, *args, **options)
            return Awaited(result, self.thread) if isinstance(result, handfast.Lease) else result

        return call

    async def __aenter__(self) -> Any:
        return Awaited(await self.run(self.inner.__enter__), self.thread)

    async def __aexit__(self, *error: object) -> Any:
        return await self.run(self.inner.__exit__, *error)

    async def run(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.thread, functools.partial(call, *args, **options))


@asynccontextmanager
async def connected(mode: str, servers: str | Sequence[str], **options: Any) -> AsyncIterator[Any]:
    """A client of the given mode, closed at the end."""
    if mode == "asyncio":
        async with handfast.aio.connect(servers, **options) as client:
            yield client
    else:
        with ThreadPoolExecutor(1) as thread, handfast.connect(servers, **options) as client:
            yield Awaited(client, thread)


async def bootstrap(client: Any) -> dict[str, str]:
    if isinstance(client, Awaited):
        return cast("dict[str, str]", await client.run(handfast.bootstrap, client.inner))
    return await handfast.aio.bootstrap(client)
