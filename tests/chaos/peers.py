"""The other libraries, each through its documented usage, with the same ttl as handfast.

Renewal is the library's own if it has one (python-redis-lock, aioredlock), by hand if it documents that (redis-py,
pottery), else there is none. Before a write, each library is asked whether it still holds the lock, by the means that it
offers. A holder may believe in its lock for as long as the library says: a validity (redlock-py), the documented life of
the lock after the acquisition (redis-py, pottery), or as long as it is renewed (python-redis-lock, aioredlock).
"""

from __future__ import annotations

import importlib
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from handfast.testing.history import now
from tests.chaos.locks import Contender, Refused

__all__ = ["KINDS", "Peer", "missing"]

PEERS: Final = Path(sys.prefix, "peers")
"""Libraries that need their own folder: see the Makefile."""


@dataclass(frozen=True)
class Peer:
    """How to open a library's lock, and on how many nodes it can lock."""

    open: Callable[[Sequence[str], float], Contender]
    quorum: bool
    module: str
    key: str
    """The key of the lock called NAME."""
    folder: str = ""


def load(module: str, folder: str) -> Any:
    if not folder:
        return importlib.import_module(module)
    sys.path.insert(0, str(PEERS / folder))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old packages on a newer Python
            return importlib.import_module(module)
    finally:
        sys.path.remove(str(PEERS / folder))


def missing(kind: str) -> str:
    """Why it cannot be used here; "" if it can."""
    try:
        load(KINDS[kind].module, KINDS[kind].folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def careful(ttl: float) -> float:
    """How long to believe in a documented life: a little less, for clocks and rounding, as handfast's leases do."""
    return ttl * 0.99 - 0.002


class RedisPy:
    """`with client.lock(name, timeout=ttl):`; `reacquire` and `owned` are what it has for holders."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        import redis

        self.client = redis.Redis.from_url(urls[0])
        self.ttl = ttl

    async def acquire(self, name: str, wait: float) -> RedisPyGrant:
        lock = self.client.lock(name, timeout=self.ttl, blocking_timeout=wait)
        if not lock.acquire():
            raise Refused("it was not free in time")
        return RedisPyGrant(lock, self.ttl)

    async def close(self) -> None:
        self.client.close()


class RedisPyGrant:
    token = None

    def __init__(self, lock: Any, ttl: float) -> None:
        self.lock, self.ttl = lock, ttl
        self.owner = lock.local.token.decode()
        self._until = now() + careful(ttl)

    def until(self) -> float:
        return self._until

    async def check(self, need: float) -> bool:
        if now() < self._until - need and self.lock.owned():
            return True
        self._until = min(self._until, now())
        return False

    async def renew(self) -> None:
        self.lock.reacquire()
        self._until = now() + careful(self.ttl)

    async def release(self) -> None:
        self.lock.release()


class PythonRedisLock:
    """`with redis_lock.Lock(client, name, expire=ttl, auto_renewal=True):`"""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        import redis

        self.client = redis.StrictRedis.from_url(urls[0])
        self.module = load("redis_lock", "")
        self.ttl = ttl

    async def acquire(self, name: str, wait: float) -> PythonRedisLockGrant:
        lock = self.module.Lock(self.client, name, expire=int(self.ttl), auto_renewal=True)
        # Without timeout=, as in `with`: with a timeout it would not look again before the timeout has passed.
        lock.acquire()
        return PythonRedisLockGrant(lock)

    async def close(self) -> None:
        self.client.close()


class PythonRedisLockGrant:
    token = None

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.owner = lock.id
        self._until = math.inf

    def until(self) -> float:
        return self._until

    async def check(self, need: float) -> bool:
        if self.lock.get_owner_id() == self.lock.id:
            return True
        self._until = min(self._until, now())
        return False

    async def renew(self) -> None:
        """Nothing to do: its thread renews."""

    async def release(self) -> None:
        self.lock.release()


class Pottery:
    """`with Redlock(key=name, masters=masters, auto_release_time=ttl):`; `extend` by hand, `locked` says how long."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        import redis

        self.masters = {redis.Redis.from_url(url) for url in urls}
        self.ttl = ttl
        self.module = load("pottery", "")

    async def acquire(self, name: str, wait: float) -> PotteryGrant:
        lock = self.module.Redlock(key=name, masters=self.masters, auto_release_time=self.ttl)
        if not lock.acquire(timeout=wait):
            raise Refused("it was not free in time")
        return PotteryGrant(lock, self.ttl)

    async def close(self) -> None:
        for master in self.masters:
            master.close()


class PotteryGrant:
    token = None

    def __init__(self, lock: Any, ttl: float) -> None:
        self.lock, self.ttl = lock, ttl
        self.owner = lock._uuid
        self._until = now() + careful(ttl)

    def until(self) -> float:
        return self._until

    async def check(self, need: float) -> bool:
        if self.lock.locked() > need:
            return True
        self._until = min(self._until, now())
        return False

    async def renew(self) -> None:
        self.lock.extend()
        self._until = now() + careful(self.ttl)

    async def release(self) -> None:
        self.lock.release()


class RedlockPy:
    """`manager.lock(name, ttl)`: a validity, or False after three tries."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        nodes = [{"host": urlsplit(url).hostname, "port": urlsplit(url).port} for url in urls]
        self.manager = load("redlock", "redlock-py").Redlock(nodes)
        self.ttl = ttl

    async def acquire(self, name: str, wait: float) -> RedlockPyGrant:
        end = now() + wait
        while not (lock := self.manager.lock(name, int(self.ttl * 1000))):
            if now() >= end:
                raise Refused("it was not free in time")
        return RedlockPyGrant(self.manager, lock)

    async def close(self) -> None:
        for server in self.manager.servers:
            server.close()


class RedlockPyGrant:
    token = None

    def __init__(self, manager: Any, lock: Any) -> None:
        self.manager, self.lock = manager, lock
        self.owner = lock.key.decode()
        self._until: float = now() + lock.validity / 1000

    def until(self) -> float:
        return self._until

    async def check(self, need: float) -> bool:
        return now() < self._until - need

    async def renew(self) -> None:
        """It has no renewal."""

    async def release(self) -> None:
        self.manager.unlock(self.lock)


class Aioredlock:
    """`async with await manager.lock(name):`, extended by itself while no lock_timeout is given."""

    def __init__(self, urls: Sequence[str], ttl: float) -> None:
        self.module = load("aioredlock", "aioredlock")
        self.manager = self.module.Aioredlock(list(urls), internal_lock_timeout=ttl)

    async def acquire(self, name: str, wait: float) -> AioredlockGrant:
        end = now() + wait
        while True:
            try:
                return AioredlockGrant(await self.manager.lock(name))
            except self.module.LockError as error:
                if now() >= end:
                    raise Refused(f"{type(error).__name__}: {error}") from error

    async def close(self) -> None:
        await self.manager.destroy()


class AioredlockGrant:
    token = None

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.owner = lock.id
        self._until = math.inf

    def until(self) -> float:
        return self._until

    async def check(self, need: float) -> bool:
        if self.lock.valid and await self.lock.is_locked():
            return True
        self._until = min(self._until, now())
        return False

    async def renew(self) -> None:
        """Nothing to do: its task renews."""

    async def release(self) -> None:
        await self.lock.release()


KINDS: Final = {
    "redis-py": Peer(RedisPy, False, "redis", "NAME"),
    "python-redis-lock": Peer(PythonRedisLock, False, "redis_lock", "lock:NAME"),
    "pottery": Peer(Pottery, True, "pottery", "redlock:NAME"),
    "redlock-py": Peer(RedlockPy, True, "redlock", "NAME", "redlock-py"),
    "aioredlock": Peer(Aioredlock, True, "aioredlock", "NAME", "aioredlock"),
}
