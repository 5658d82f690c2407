"""handfast, through its public names only. Every pair makes a new lock object, as callers do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from bench.candidate import TTL, AsyncCandidate, AsyncPair, AsyncSession, Candidate, Pair, Session, Urls

NAME = "handfast"


def prepare(urls: Urls) -> None:
    """A quorum of new nodes votes only after its bootstrap."""
    import handfast

    if len(urls) > 1:
        with handfast.connect(list(urls)) as client:
            handfast.bootstrap(client)


def _target(urls: Urls) -> str | list[str]:
    return urls[0] if len(urls) == 1 else list(urls)


def policies(node_timeout: float | None) -> dict[str, Any]:
    return {} if node_timeout is None else {"node_timeout": node_timeout}


PUBLISHED: dict[str, Any] = {"prefix": "", "fence": False}
"""The floors' own protocol: SET NX PX and an owner-checked delete."""
FENCED: dict[str, Any] = {}
"""With a token, in the fair queue."""


@contextlib.contextmanager
def blocking(urls: Urls, options: dict[str, Any], node_timeout: float | None) -> Iterator[Session]:
    import handfast

    prepare(urls)
    with handfast.connect(_target(urls), **policies(node_timeout)) as client:

        def session(name: str) -> Pair:
            def pair() -> None:
                client.lock(name, ttl=TTL, **options).acquire(wait=0).release()

            return pair

        yield session


@contextlib.contextmanager
def blocking_default(urls: Urls, node_timeout: float | None) -> Iterator[Session]:
    """As users write it."""
    import handfast

    prepare(urls)
    with handfast.connect(_target(urls), **policies(node_timeout)) as client:

        def session(name: str) -> Pair:
            def pair() -> None:
                with client.lock(name):
                    pass

            return pair

        yield session


@contextlib.asynccontextmanager
async def asyncio(urls: Urls, options: dict[str, Any], node_timeout: float | None) -> AsyncIterator[AsyncSession]:
    import handfast.aio

    prepare(urls)
    async with handfast.aio.connect(_target(urls), **policies(node_timeout)) as client:

        def session(name: str) -> AsyncPair:
            async def pair() -> None:
                lease = await client.lock(name, ttl=TTL, **options).acquire(wait=0)
                await lease.release()

            return pair

        yield session


@contextlib.asynccontextmanager
async def asyncio_default(urls: Urls, node_timeout: float | None) -> AsyncIterator[AsyncSession]:
    """As users write it."""
    import handfast.aio

    prepare(urls)
    async with handfast.aio.connect(_target(urls), **policies(node_timeout)) as client:

        def session(name: str) -> AsyncPair:
            async def pair() -> None:
                async with client.lock(name):
                    pass

            return pair

        yield session


def handfast_sync(kind: str, node_timeout: float | None) -> Candidate:
    if kind == "default":
        return Candidate(NAME, partial(blocking_default, node_timeout=node_timeout))
    options = FENCED if kind == "fenced" else PUBLISHED
    return Candidate(NAME, partial(blocking, options=options, node_timeout=node_timeout))


def handfast_async(kind: str, node_timeout: float | None) -> AsyncCandidate:
    if kind == "default":
        return AsyncCandidate(NAME, partial(asyncio_default, node_timeout=node_timeout))
    options = FENCED if kind == "fenced" else PUBLISHED
    return AsyncCandidate(NAME, partial(asyncio, options=options, node_timeout=node_timeout))
