"""A lock of another Python library in a process of its own: LIBRARY PORT NAME [FOLDER].

It reads a command per line and answers with a line: `try` (held or refused), `wait` (waiting, later held) and
`release` (released). redsync/main.go and node-redlock/peer.js do the same.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any, Protocol

TTL = 20
"""Seconds: longer than every test, so that no lock expires."""


class Peer(Protocol):
    def try_it(self) -> bool: ...

    def wait(self) -> None: ...

    def release(self) -> None: ...


class BlockingLock:
    """A lock object whose acquire() waits, unless it gets blocking=False."""

    lock: Any

    def try_it(self) -> bool:
        return bool(self.lock.acquire(blocking=False))

    def wait(self) -> None:
        self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


class RedisPy(BlockingLock):
    def __init__(self, port: int, name: str) -> None:
        import redis

        self.lock = redis.Redis(port=port).lock(name, timeout=TTL)


class Pottery(BlockingLock):
    def __init__(self, port: int, name: str) -> None:
        import pottery
        import redis

        self.lock = pottery.Redlock(key=name, masters={redis.Redis(port=port)}, auto_release_time=TTL)


class PythonRedisLock(BlockingLock):
    def __init__(self, port: int, name: str) -> None:
        import redis
        import redis_lock

        self.lock = redis_lock.Lock(redis.StrictRedis(port=port), name, expire=TTL)
        # A waiter looks again only after its own expiry, so that is short here. Renewal keeps the lock.
        self.waiter = redis_lock.Lock(redis.StrictRedis(port=port), name, expire=1, auto_renewal=True)

    def wait(self) -> None:
        self.waiter.acquire()
        self.lock = self.waiter


class RedlockPy:
    def __init__(self, port: int, name: str) -> None:
        import redlock

        self.name = name
        self.once = redlock.Redlock([{"host": "127.0.0.1", "port": port}], retry_count=1)
        self.often = redlock.Redlock([{"host": "127.0.0.1", "port": port}], retry_count=1000)
        self.lock: Any = None

    def try_it(self) -> bool:
        self.lock = self.once.lock(self.name, TTL * 1000)
        return bool(self.lock)

    def wait(self) -> None:
        self.lock = self.often.lock(self.name, TTL * 1000)

    def release(self) -> None:
        self.once.unlock(self.lock)


class Aioredlock:
    def __init__(self, port: int, name: str) -> None:
        import aioredlock

        self.error = aioredlock.LockError
        self.name = name
        self.loop = asyncio.new_event_loop()
        self.once = aioredlock.Aioredlock([f"redis://127.0.0.1:{port}"], retry_count=1, internal_lock_timeout=TTL)
        self.often = aioredlock.Aioredlock([f"redis://127.0.0.1:{port}"], retry_count=1000, internal_lock_timeout=TTL)
        self.lock: Any = None

    def try_it(self) -> bool:
        try:
            self.lock = self.loop.run_until_complete(self.once.lock(self.name))
        except self.error:
            return False
        return True

    def wait(self) -> None:
        self.lock = self.loop.run_until_complete(self.often.lock(self.name))

    def release(self) -> None:
        self.loop.run_until_complete(self.lock.release())


PEERS: dict[str, type[Peer]] = {
    "redis-py": RedisPy,
    "pottery": Pottery,
    "python-redis-lock": PythonRedisLock,
    "redlock-py": RedlockPy,
    "aioredlock": Aioredlock,
}


def main(library: str, port: str, name: str, folder: str = "") -> None:
    if folder:
        sys.path.insert(0, folder)
    try:
        peer = PEERS[library](int(port), name)
    except Exception as error:
        # Not installed, or too old for this Python. The test leaves the row out and says why.
        print(f"missing {type(error).__name__}: {error}", flush=True)
        return
    print("ready", flush=True)
    for line in sys.stdin:
        match line.strip():
            case "try":
                print("held" if peer.try_it() else "refused", flush=True)
            case "wait":
                print("waiting", flush=True)
                peer.wait()
                print("held", flush=True)
            case "release":
                peer.release()
                print("released", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
