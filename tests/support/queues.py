"""The state of a lock's queue on the servers, and acquisitions in the background."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Final, Self

from handfast.testing import Server
from tests.support.eventually import eventually_async
from tests.support.stress_processes import in_thread
from tests.support.sync_and_async import Awaited

__all__ = [
    "KEY",
    "LONG",
    "QUEUE",
    "SOON",
    "Monitor",
    "acquire_in_background",
    "call_count",
    "claims_on",
    "hand_over",
    "holder_on",
    "subscribed_connections",
    "no_lock_state_left",
    "queue_length",
    "wait_for_queue_length",
    "wait_for_claims_on_all",
]

LONG: Final = 25.0
"""A ttl longer than every deadline in the tests: whatever ends sooner did not expire."""
SOON: Final = 4.0
"""Seconds within which a hand-over is seen, also on a busy machine. A wake-up that is lost costs five or more."""
KEY: Final = "handfast:{a}"
QUEUE: Final = KEY + ":q"


def acquire_in_background(mode: str, lock: Any, **options: Any) -> asyncio.Future[Any]:
    """Start an acquisition: a task, or a thread of its own. The future returns the lease."""
    if mode == "asyncio":
        return asyncio.create_task(lock.acquire(**options))
    return in_thread(lambda: Awaited(lock.inner.acquire(**options)))


def queue_length(server: Server, key: str = KEY) -> int:
    """How many claims are queued on the server."""
    found = server.command("ZCARD", key + ":q")
    assert isinstance(found, int)
    return found


async def wait_for_queue_length(server: Server, count: int, key: str = KEY) -> None:
    await eventually_async(lambda: queue_length(server, key) == count, what=f"{count} in the queue")


async def hand_over(mode: str, server: Server, first: Any, second: Any) -> tuple[Any, Any]:
    """Acquire the first lock object, queue the second one behind it, and release. Returns the leases of both."""
    lease = await first.acquire()
    waiting = acquire_in_background(mode, second)
    await wait_for_queue_length(server, 1)
    assert await lease.release()
    return lease, await asyncio.wait_for(waiting, SOON)


def claims_on(server: Server, holder: str) -> int:
    """How many waiters a node knows. One of them may have the vote of this node without holding the lock."""
    return queue_length(server) + (holder_on(server) not in ("", holder))


async def wait_for_claims_on_all(servers: Iterable[Server], count: int, holder: str) -> None:
    for server in servers:
        await eventually_async(lambda server=server: claims_on(server, holder) == count, what=f"{count} waiters known")


def holder_on(server: Server, key: str = KEY) -> str:
    owner = server.command("GET", key)
    assert owner is None or isinstance(owner, bytes)
    return (owner or b"").decode()


def no_lock_state_left(*servers: Server, key: str = KEY) -> bool:
    """No key of the lock is left on the servers, except its counter."""
    return not any(server.command("EXISTS", key, key + ":q", key + ":c", key + ":g") for server in servers)


def call_count(server: Server, command: str) -> int:
    """How often the server executed a command, for clients and in scripts."""
    said = server.info(f"cmdstat_{command}")
    return int(said.split("calls=")[1].split(",")[0]) if said else 0


def subscribed_connections(server: Server) -> list[int]:
    """The connections that have subscribed to something."""
    found = server.command("CLIENT", "LIST")
    assert isinstance(found, bytes)
    rows = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in found.decode().splitlines()]
    return [int(row["id"]) for row in rows if row["sub"] != "0"]


class Monitor:
    """Records all commands that clients send to a server, in order, without the calls of scripts."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._socket = socket.create_connection(("127.0.0.1", server.port))
        self._file = self._socket.makefile("rb")
        self._socket.sendall(b"MONITOR\r\n")
        assert self._file.readline() == b"+OK\r\n"
        self._lines: list[str] = []
        self._marks = threading.Condition()
        self._marked = 0
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for line in self._file:
            found = re.match(r'\+[\d.]+ \[\d+ ([^\]]+)\] "(.*)"\r\n', line.decode(errors="replace"))
            if found is None or found[1] == "lua":
                continue
            with self._marks:
                if found[2].startswith('ECHO" "mark'):
                    self._marked += 1
                    self._marks.notify_all()
                else:
                    self._lines.append(found[2])

    def take(self) -> list[str]:
        """Commands since the last call, including all that the server has executed by now."""
        with self._marks:
            target = self._marked + 1
        self._server.command("ECHO", "mark")
        with self._marks:
            assert self._marks.wait_for(lambda: self._marked >= target, timeout=5)
            lines, self._lines = self._lines, []
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._file.close()
        self._socket.close()
