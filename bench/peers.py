"""The other libraries, each through its documented usage, one small adapter each.

If a library's lock object can be reused, the adapter makes it once, outside the timed part: the peers get their
best case. The report names each library that is not installed, or fails, with the reason.

redlock-py and redlock-ng both install a package called `redlock`, and redlock-ng asks for a redis-py
older than the one the project uses. So either may live in a folder of its own under `peers/` in the
virtualenv:
    pip install --no-deps --target <venv>/peers/redlock-py redlock-py     (and the same for redlock-ng)
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import ModuleType

from bench.candidate import (
    TTL,
    TTL_MS,
    AsyncCandidate,
    AsyncPair,
    AsyncSession,
    Candidate,
    Pair,
    PairFailed,
    Session,
    Urls,
    address,
)


def _check(held: object) -> None:
    if not held:
        raise PairFailed("not acquired")


def _redlock(distribution: str, has: str) -> ModuleType:
    """The `redlock` of that distribution; `has` is a name that only this distribution exports."""
    folder = str(Path(sys.prefix) / "peers" / distribution)
    for name in [n for n in sys.modules if n.partition(".")[0] == "redlock"]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module("redlock")
    finally:
        sys.path.remove(folder)
    if not hasattr(module, has):
        raise ImportError(f"the installed `redlock` is not {distribution}'s")
    return module


@contextlib.contextmanager
def redis_py(urls: Urls) -> Iterator[Session]:
    import redis

    with redis.Redis.from_url(urls[0]) as client:

        def session(name: str) -> Pair:
            lock = client.lock(name, timeout=TTL, blocking=False)

            def pair() -> None:
                _check(lock.acquire())
                lock.release()

            return pair

        yield session


@contextlib.asynccontextmanager
async def redis_py_asyncio(urls: Urls) -> AsyncIterator[AsyncSession]:
    import redis.asyncio

    # The default pool raises at its 101st connection; this one makes the 101st task wait for its turn.
    pool = redis.asyncio.BlockingConnectionPool.from_url(urls[0], max_connections=100, timeout=None)
    async with redis.asyncio.Redis.from_pool(pool) as client:

        def session(name: str) -> AsyncPair:
            lock = client.lock(name, timeout=TTL, blocking=False)

            async def pair() -> None:
                _check(await lock.acquire())
                await lock.release()

            return pair

        yield session


@contextlib.contextmanager
def python_redis_lock(urls: Urls) -> Iterator[Session]:
    import redis
    import redis_lock  # type: ignore[import-untyped]

    with redis.Redis.from_url(urls[0]) as client:

        def session(name: str) -> Pair:
            lock = redis_lock.Lock(client, name, expire=int(TTL))

            def pair() -> None:
                _check(lock.acquire(blocking=False))
                lock.release()

            return pair

        yield session


@contextlib.contextmanager
def pottery(urls: Urls) -> Iterator[Session]:
    import redis
    from pottery import Redlock

    with contextlib.ExitStack() as stack:
        masters = {stack.enter_context(redis.Redis.from_url(url)) for url in urls}

        def session(name: str) -> Pair:
            lock = Redlock(key=name, masters=masters, auto_release_time=TTL)

            def pair() -> None:
                _check(lock.acquire(blocking=False))
                lock.release()

            return pair

        yield session


@contextlib.contextmanager
def redlock_py(urls: Urls) -> Iterator[Session]:
    module = _redlock("redlock-py", has="MultipleRedlockException")
    nodes = [dict(zip(("host", "port"), address(url), strict=True)) for url in urls]
    manager = module.Redlock(nodes, retry_count=1)

    def session(name: str) -> Pair:
        def pair() -> None:
            lock = manager.lock(name, TTL_MS)
            _check(lock)
            manager.unlock(lock)

        return pair

    yield session
    for server in manager.servers:
        server.close()


@contextlib.contextmanager
def redlock_ng(urls: Urls) -> Iterator[Session]:
    manager = _redlock("redlock-ng", has="AsyncRedlock").Redlock(list(urls), retry_count=0)

    def session(name: str) -> Pair:
        def pair() -> None:
            lock = manager.acquire(name, TTL_MS)
            _check(lock)
            manager.release(lock)

        return pair

    yield session
    for instance in manager.client.instances:
        instance.close()


@contextlib.asynccontextmanager
async def redlock_ng_asyncio(urls: Urls) -> AsyncIterator[AsyncSession]:
    module = _redlock("redlock-ng", has="AsyncRedlock")
    # Its default timeout of 0.1 s ends before a hundred tasks have opened their connections to
    # five nodes.
    patient = module.RedlockConfig(masters=list(urls), socket_timeout=5, socket_connect_timeout=5)
    manager = module.AsyncRedlock(patient, retry_count=0)

    def session(name: str) -> AsyncPair:
        async def pair() -> None:
            lock = await manager.acquire(name, TTL_MS)
            _check(lock)
            await manager.release(lock)

        return pair

    yield session
    for instance in manager.client.instances:
        await instance.aclose()


PEERS = (
    Candidate("redis-py", redis_py, nodes=(1,)),
    Candidate("python-redis-lock", python_redis_lock, nodes=(1,)),
    Candidate("pottery", pottery),
    Candidate("redlock-py", redlock_py),
    Candidate("redlock-ng", redlock_ng),
)
# These libraries open a connection for each task in flight, so a hundred tasks suit them.
ASYNC_PEERS = (
    AsyncCandidate("redis-py asyncio (100 tasks)", redis_py_asyncio, nodes=(1,), tasks=100),
    AsyncCandidate("redis-py asyncio (1,000 tasks)", redis_py_asyncio, nodes=(1,), tasks=1000),
    AsyncCandidate("redlock-ng asyncio (100 tasks)", redlock_ng_asyncio, tasks=100),
)
