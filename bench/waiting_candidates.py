"""handfast and the other libraries under contention of several processes, each with its documented way to wait."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from bench.candidate import TTL, PairFailed
from bench.handfast_adapter import NAME, policies
from bench.worker import Taking, WaitingCandidate

UNFENCED = f"{NAME}, unfenced"
DEFAULT = NAME


@contextlib.contextmanager
def handfast_lock(url: str, name: str, options: Mapping[str, Any], node_timeout: float | None) -> Iterator[Taking]:
    import handfast

    urls = url.split()  # more than one: a quorum
    with handfast.connect(urls if len(urls) > 1 else url, **policies(node_timeout)) as client:

        def give(lease: handfast.Lease) -> None:
            if not lease.release():
                raise PairFailed("the lease was lost before its release")

        # One lock object for all turns, as for the other libraries.
        yield client.lock(name, ttl=TTL, **options).acquire, give


def _reused(lock: Any) -> Taking:
    """One lock object for all turns, for libraries whose lock objects can be reused."""

    def take() -> None:
        if not lock.acquire():
            raise PairFailed("not acquired")

    return take, lambda _: lock.release()


@contextlib.contextmanager
def redis_py(url: str, name: str, poll: float) -> Iterator[Taking]:
    import redis

    with redis.Redis.from_url(url) as client:
        yield _reused(client.lock(name, timeout=TTL, sleep=poll))


@contextlib.contextmanager
def python_redis_lock(url: str, name: str) -> Iterator[Taking]:
    import redis
    import redis_lock  # type: ignore[import-untyped]

    with redis.Redis.from_url(url) as client:
        yield _reused(redis_lock.Lock(client, name, expire=int(TTL)))


@contextlib.contextmanager
def pottery(url: str, name: str) -> Iterator[Taking]:
    import redis
    from pottery import Redlock

    with redis.Redis.from_url(url) as client:
        yield _reused(Redlock(key=name, masters={client}, auto_release_time=TTL))


def handfast_candidates(node_timeout: float | None) -> list[WaitingCandidate]:
    """handfast without tokens, as the floor has none, and with default options."""
    kinds: list[tuple[str, dict[str, Any]]] = [(UNFENCED, {"fence": False}), (DEFAULT, {})]
    return [
        WaitingCandidate(what, partial(handfast_lock, options=options, node_timeout=node_timeout), peer=False)
        for what, options in kinds
    ]


PEERS = (
    WaitingCandidate("redis-py (polls every 0.1 s)", partial(redis_py, poll=0.1)),
    WaitingCandidate("redis-py (polls every 1 ms)", partial(redis_py, poll=0.001)),
    WaitingCandidate("python-redis-lock", python_redis_lock),
    WaitingCandidate("pottery", pottery),
)
