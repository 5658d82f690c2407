"""Waiters for a lock, as tasks or as threads, and their state on the servers."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import pytest

import handfast
from handfast import HandfastError
from handfast.testing import Server
from tests.support.eventually import PATIENCE
from tests.support.sync_and_async import Awaited

__all__ = [
    "FAIR",
    "FOREIGN",
    "FOREIGN_KEY",
    "IN_TIME",
    "KEY",
    "KINDS",
    "LONG",
    "QUEUE",
    "STALLED",
    "WaitResult",
    "Peer",
    "commands_executed",
    "acquire_repeatedly",
    "held_by_another_program",
    "wait_for_waiters",
    "no_background_errors",
    "wait_for_queued_waiters",
    "assert_prompt",
    "commands_sent",
    "resolve",
    "attempt_in_background",
]

KEY = "handfast:{a}"
"""The key of the lock `a`, which most tests use."""
QUEUE = KEY + ":q"
FOREIGN: dict[str, Any] = {"prefix": "", "fence": False}
"""The options of a lock whose key is shared with other programs."""
FOREIGN_KEY = "a"
"""The key of the lock `a` with these options."""
LONG = 20_000
"""A ttl in milliseconds. A waiter that gets the lock sooner was woken by something else than the expiry."""
KINDS: dict[str, dict[str, Any]] = {
    "fair": {},
    "barging": {"fair": False},
    "cohort": {"cohort": 4},
    "barging-cohort": {"fair": False, "cohort": 4},
}
"""The ways to wait."""
FAIR = pytest.mark.parametrize("fair", [True, False], ids=["fair", "barging"])
STALLED = 4.0
"""Seconds. Even a busy machine is never that late. A wake-up that is lost costs five or more."""
IN_TIME = 0.03
"""Seconds by which a wait may end too late."""


@pytest.fixture(autouse=True)
def no_background_errors(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """asyncio only logs what a callback raises. Modules that import this fixture fail in that case."""
    yield
    failed = [record for record in caplog.get_records("call") if record.name == "asyncio"]
    assert not [record.getMessage() for record in failed if record.levelno >= logging.ERROR]


class WaitResult(NamedTuple):
    """How a wait ended: with a lease or an error."""

    lease: Any
    error: HandfastError | None
    began: float
    at: float

    @property
    def took(self) -> float:
        return self.at - self.began


def attempt_in_background(lock: Any, **options: Any) -> asyncio.Future[WaitResult]:
    """Start an acquisition: a task, or a thread for the blocking client. An error is part of the result."""
    if not isinstance(lock, Awaited):
        return asyncio.create_task(_attempt(lock, options))
    loop = asyncio.get_running_loop()
    future: asyncio.Future[WaitResult] = loop.create_future()

    def end(got: WaitResult | BaseException) -> None:
        if future.done():
            return
        if isinstance(got, WaitResult):
            future.set_result(got)
        else:
            future.set_exception(got)

    def acquire() -> None:
        began = time.monotonic()
        got: WaitResult | BaseException
        try:
            lease = lock.inner.acquire(**options)
            got = WaitResult(Awaited(lease), None, began, time.monotonic())
        except HandfastError as error:
            got = WaitResult(None, error, began, time.monotonic())
        except BaseException as error:
            got = error
        with contextlib.suppress(RuntimeError):  # the loop of a failed test is closed
            loop.call_soon_threadsafe(end, got)

    threading.Thread(target=acquire, daemon=True).start()
    return future


async def _attempt(lock: Any, options: dict[str, Any]) -> WaitResult:
    began = time.monotonic()
    try:
        lease = await lock.acquire(**options)
    except HandfastError as error:
        return WaitResult(None, error, began, time.monotonic())
    return WaitResult(lease, None, began, time.monotonic())


async def resolve(answer: Any) -> Any:
    """The result of `holder()` or `waiters()`, which only the asyncio client awaits."""
    return await answer if inspect.isawaitable(answer) else answer


async def wait_until(condition: Callable[[], Awaitable[bool]], what: str, within: float = PATIENCE) -> None:
    end = time.monotonic() + within
    while not await condition():
        assert time.monotonic() < end, f"not so within {within:g} s: {what}"
        await asyncio.sleep(0.002)


async def wait_for_waiters(lock: Any, n: int) -> None:
    """Wait until the lock has so many waiters: those of this client, and one for each other client."""

    async def condition() -> bool:
        return len(await resolve(lock.waiters())) == n

    await wait_until(condition, f"{n} waiters")


async def wait_for_queued_waiters(lock: Any, n: int, *servers: Server) -> None:
    """Wait until the lock has so many waiters, and a server knows the first of them."""
    await wait_for_waiters(lock, n)

    async def condition() -> bool:
        if lock.config.exact:
            return any(int(server.info("tracking_total_keys")) for server in servers)
        return any(server.command("EXISTS", QUEUE) for server in servers)

    await wait_until(condition, "the first waiter is known to a server")


@contextlib.contextmanager
def held_by_another_program(*servers: Server, key: str = FOREIGN_KEY, ms: int = LONG) -> Iterator[None]:
    """Another program holds the key. Nothing renews it, and its release is a plain DEL."""
    for server in servers:
        server.command("SET", key, "a stranger", "PX", ms)
    yield
    for server in servers:
        server.command("DEL", key)


async def assert_prompt(attempt: Callable[[], Awaitable[float | None]], within: float = 0.05, tries: int = 4) -> None:
    """One of so many tries takes no longer than `within`, and none stalls.

    A busy machine is late now and then. A defect is late each time. None stands for a try whose scene was not set up in
    time.
    """
    took: list[float | None] = []
    while not took or took[-1] is None or took[-1] > within:
        assert len(took) < tries, f"not within {within:g} s, but {took}"
        took.append(await attempt())
        assert (took[-1] or 0) < STALLED


async def acquire_repeatedly(lock: Any, n: int) -> None:
    """Acquire and release the lock so many times. No wait is long."""
    if isinstance(lock, Awaited):
        return await asyncio.to_thread(_acquire_repeatedly, lock.inner, n)
    for _ in range(n):
        lease = await lock.acquire(wait=STALLED)
        assert await lease.release()
    return None


def _acquire_repeatedly(lock: handfast.Lock, n: int) -> None:
    for _ in range(n):
        assert lock.acquire(wait=STALLED).release()


def commands_executed(*servers: Server) -> Counter[str]:
    """How many commands the servers have executed, by name, without those that this module sends."""
    counts: Counter[str] = Counter()
    for server in servers:
        stats = server.command("INFO", "commandstats")
        assert isinstance(stats, bytes)
        counts.update({name: int(n) for name, n in re.findall(r"cmdstat_(\S+):calls=(\d+)", stats.decode())})
    for asking in ("info", "zrange", "hgetall", "exists", "zcard"):
        del counts[asking]
    return counts


def commands_sent(sent: list[bytearray]) -> int:
    """How many commands went through a relay."""
    return sum(len(re.findall(rb"\*\d+\r\n\$", record)) for record in sent)


_PEER = """
import sys, handfast
clients = {}
for line in sys.stdin:
    verb, *urls = line.split()
    if verb == "release":
        lease.release()
    else:
        key = tuple(urls)
        if key not in clients:
            clients[key] = handfast.connect(urls if len(urls) > 1 else urls[0], ttl=20.0)
        options = {"fair": {}, "barging": {"fair": False}, "foreign": {"prefix": "", "fence": False}}[verb]
        lease = clients[key].lock("a", **options).acquire(wait=5)
    print("done", flush=True)
"""


class Peer:
    """Another process that uses handfast."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def _say(self, *words: str) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(" ".join(words) + "\n")
        assert self._process.stdout.readline() == "done\n"

    def acquire(self, *urls: str, kind: str = "fair") -> None:
        """`kind`: fair, barging or foreign."""
        self._say(kind, *urls)

    def release(self) -> None:
        self._say("release")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=10)
