"""One scenario, two clients: a test written once against the asyncio words runs with the blocking client too."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

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
    """A blocking client, lock or lease with the manners of an asyncio one."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if name in ("lock", "rlock"):
            return lambda *args, **options: Awaited(value(*args, **options))
        if name not in ("acquire", "try_acquire", "release", "extend", "close"):
            return value

        async def call(*args: Any, **options: Any) -> Any:
            result = value(*args, **options)
            return Awaited(result) if isinstance(result, handfast.Lease) else result

        return call


@asynccontextmanager
async def connected(mode: str, servers: str | Sequence[str], **options: Any) -> AsyncIterator[Any]:
    """A client of the given mode, closed at the end."""
    if mode == "asyncio":
        async with handfast.aio.connect(servers, **options) as client:
            yield client
    else:
        with handfast.connect(servers, **options) as client:
            yield Awaited(client)


async def bootstrap(client: Any) -> dict[str, str]:
    if isinstance(client, Awaited):
        return handfast.bootstrap(client.inner)
    return await handfast.aio.bootstrap(client)
