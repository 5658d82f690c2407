"""Sentinel groups and clusters for tests, both clients side by side, and measurements.

A failover takes seconds, so a blocking client and an asyncio client watch it at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Final, Self

import pytest

from handfast.embedded.resp import ReplyError
from handfast.testing import Cluster, SentinelGroup, Server, available
from handfast.testing.plugin import _Kept
from handfast.testing.sentinel import Sentinel
from tests.support.sync_and_async import MODES, Awaited, connected
from tests.support.waiters import WaitResult

__all__ = [
    "BACK_WITHIN",
    "KINDS",
    "KIND_OPTIONS",
    "LONG_RUN",
    "PASSWORD",
    "SENTINEL_PASSWORD",
    "Promotion",
    "Service",
    "all_leases",
    "binary",
    "both_clients",
    "isolated_sentinel",
    "masters_with_key",
    "key_of",
    "long_only",
    "sentinel_addresses",
    "name_on",
    "no_threads_or_files_left",
    "wait_for_new_master",
    "is_running",
    "sentinel_group",
    "slot_and_target",
    "url_with",
]

KINDS: Final = ("valkey-9.1", "redis-7.0", "redis-6.2")
KIND_OPTIONS: Final[dict[str, dict[str, Any]]] = {"plain": {}, "fair": {"fair": True}, "cohort": {"cohort": 4}}
"""The ways to wait."""
LONG_RUN: Final = bool(os.environ.get("HANDFAST_LONG"))
"""Whether what takes its time may."""
long_only: Final = pytest.mark.skipif(not LONG_RUN, reason="takes its time: only with HANDFAST_LONG=1")
PASSWORD: Final = "a:p@ss/w?rd#%"
SENTINEL_PASSWORD: Final = "s&e=n t"
BACK_WITHIN: Final = 30.0
"""Seconds in which a failover is over, also on a busy machine, where sentinels need a second try."""


def binary(kind: str) -> Path:
    if kind not in available():
        pytest.skip(f"no {kind} on this machine")
    return available()[kind]


# -- groups ------------------------------------------------------------------------------------------------------------


def sentinel_group(**options: Any) -> SentinelGroup:
    return SentinelGroup(password=PASSWORD, sentinel_password=SENTINEL_PASSWORD, **options)


@pytest.fixture(scope="module")
def _watched() -> Iterator[_Kept[SentinelGroup]]:
    with closing(_Kept(sentinel_group)) as kept:
        yield kept


@pytest.fixture
def watched(_watched: _Kept[SentinelGroup]) -> SentinelGroup:
    """Three sentinels, a master and two replicas, with passwords: for tests that leave them unchanged."""
    return _watched.whole_and_empty()


@pytest.fixture
def doomed() -> Iterator[SentinelGroup]:
    """A new group of the same kind: starting one takes less time than healing one after a failover."""
    with sentinel_group() as group:
        yield group


@pytest.fixture(scope="module")
def _sharded() -> Iterator[_Kept[Cluster]]:
    with closing(_Kept(lambda: Cluster(password=PASSWORD))) as kept:
        yield kept


@pytest.fixture
def sharded(_sharded: _Kept[Cluster]) -> Iterator[Cluster]:
    """Three masters with a replica each, with a password. A test may kill, pause and cut off any of them."""
    cluster = _sharded.whole_and_empty()
    yield cluster
    for node in cluster:
        node.resume()
        if not is_running(node):
            node.restart()


def is_running(server: Server) -> bool:
    """Whether its process lives, paused or not."""
    return server._running().running


@contextmanager
def isolated_sentinel(group: SentinelGroup, master: Server) -> Iterator[str]:
    """The address of a sentinel with the same name and password that knows and reaches only this master."""
    sentinel = Sentinel(group.nodes[0].binary, SENTINEL_PASSWORD)
    sentinel.watches = [["sentinel", "monitor", group.name, "127.0.0.1", str(master.port), "2"]]
    with sentinel:
        yield f"127.0.0.1:{sentinel.port}"


def sentinel_addresses(group: SentinelGroup) -> list[str]:
    """The addresses of the group's sentinels."""
    return [f"127.0.0.1:{sentinel.port}" for sentinel in group.sentinels]


def url_with(group: SentinelGroup, *addresses: str, name: str | None = None) -> str:
    """The group's URL with other sentinels, or another name."""
    url = group.url.replace(",".join(sentinel_addresses(group)), ",".join(addresses or sentinel_addresses(group)))
    return url.replace(f"/{group.name}/", f"/{name or group.name}/")


async def wait_for_new_master(group: SentinelGroup, old: Server) -> Server:
    """Wait until the sentinels agree on another master, and return it."""
    return await asyncio.to_thread(group.wait_replaced, old, BACK_WITHIN)


# -- names on a cluster ------------------------------------------------------------------------------------------------


def key_of(name: str) -> str:
    return f"handfast:<{name}>" if "{" in name else f"handfast:{{{name}}}"


def slot_and_target(cluster: Cluster, key: str) -> tuple[int, Server]:
    """The slot of a key, and a node to which it can be moved."""
    source = cluster.node_for(key)
    return cluster.slot_of(key), next(master for master in cluster.masters if master is not source)


def name_on(cluster: Cluster, server: Server, start: str = "on") -> str:
    """A name whose slot is on that node."""
    return next(name for n in itertools.count() if cluster.node_for(key_of(name := f"{start}-{n}")) is server)


# -- clients -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def both_clients(url: str | list[str], **options: Any) -> AsyncIterator[dict[str, Any]]:
    """A blocking client and an asyncio client, by mode."""
    async with contextlib.AsyncExitStack() as stack:
        yield {mode: await stack.enter_async_context(connected(mode, url, **options)) for mode in MODES}


async def all_leases(wants: Iterable[asyncio.Future[WaitResult]]) -> list[Any]:
    """The leases of all callers."""
    got = await asyncio.gather(*wants)
    assert all(each.lease for each in got), [str(each.error) for each in got if each.error]
    return [each.lease for each in got]


class Service:
    """A user that acquires and releases a lock all the time, and notes when it held it.

    Each time another lock, so that none has to expire which was held when its server went.
    """

    EVERY: Final = 0.01

    def __init__(self, client: Any, name: str, wait: float = BACK_WITHIN) -> None:
        self._client = client
        self._name = name
        self._wait = wait
        self._over = threading.Event()
        self.times: list[float] = []
        self.tokens: list[int] = []

    async def __aenter__(self) -> Self:
        blocks = isinstance(self._client, Awaited)
        work = asyncio.to_thread(self._block) if blocks else self._serve()
        self._task = asyncio.create_task(work)
        await self.serves()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over.set()
        await self._task

    def _lock(self, turn: int) -> str:
        return f"{self._name}-{turn % 7}"

    async def _serve(self) -> None:
        while not self._over.is_set():
            lease = await self._client.lock(self._lock(len(self.times))).acquire(wait=self._wait)
            self._note(lease)
            await lease.release()
            await asyncio.sleep(self.EVERY)

    def _block(self) -> None:
        while not self._over.is_set():
            lease = self._client.inner.lock(self._lock(len(self.times))).acquire(wait=self._wait)
            self._note(lease)
            lease.release()
            time.sleep(self.EVERY)

    def _note(self, lease: Any) -> None:
        self.tokens.append(lease.token)
        self.times.append(time.monotonic())

    async def serves(self, since: float | None = None, times: int = 3) -> None:
        """Wait until it has held the lock so often since that time, or since now."""
        since = time.monotonic() if since is None else since
        end = time.monotonic() + 2 * BACK_WITHIN
        while sum(at > since for at in self.times[-times:]) < times:
            if self._task.done():
                await self._task  # the user has failed: raise its error
            assert time.monotonic() < end, "no service"
            await asyncio.sleep(0.005)

    def gap(self, since: float) -> float:
        """The longest time without the lock since that time."""
        before = max((at for at in self.times if at <= since), default=since)
        times = [max(since, before), *(at for at in self.times if at > since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))


class Promotion:
    """Notes when one of these replicas becomes a master. The block lasts until that time."""

    def __init__(self, replicas: list[Server]) -> None:
        self._replicas = replicas
        self.at = 0.0
        self.of: Server | None = None
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()
        assert self.of is not None, "nobody was promoted"

    def wait(self) -> None:
        self._thread.join()

    def _watch(self) -> None:
        end = time.monotonic() + BACK_WITHIN
        while self.of is None and time.monotonic() < end:
            self.of = next((each for each in self._replicas if role(each) == b"master"), None)
            self.at = time.monotonic()
            time.sleep(0.005)


def role(server: Server) -> Any:
    try:
        said: Any = server.command("ROLE", timeout=1.0)
    except (OSError, ReplyError):
        return None
    return said[0]


def masters_with_key(servers: Any, key: str) -> list[Server]:
    """The masters that have the key; a node of a cluster answers only for its own slots."""

    def has_key(server: Server) -> bool:
        try:
            return is_running(server) and role(server) == b"master" and server.command("EXISTS", key) == 1
        except ReplyError as error:
            if str(error).startswith(("MOVED", "ASK")):
                return False
            raise

    return [server for server in servers if has_key(server)]


# -- leftovers ---------------------------------------------------------------------------------------------------------


def _descriptors() -> set[tuple[str, str]]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add((name, os.readlink(f"/proc/self/fd/{name}")))
    return found


def _threads() -> dict[int, str]:
    """Those of the system, which Python may list longer than they last; without the workers of an event loop, which has
    them to its end."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    tasks = {int(task): names.get(int(task), "") for task in os.listdir("/proc/self/task")}
    return {task: name for task, name in tasks.items() if not name.startswith("asyncio_")}


@contextmanager
def no_threads_or_files_left(within: float = 5.0) -> Iterator[None]:
    """Check that the block leaves no threads and no open files."""
    threads, files = _threads(), _descriptors()
    yield

    def left() -> list[object]:
        return [*(name for task, name in _threads().items() if task not in threads), *(_descriptors() - files)]

    end = time.monotonic() + within
    while (found := left()) and time.monotonic() < end:
        time.sleep(0.01)
    assert not found, found
