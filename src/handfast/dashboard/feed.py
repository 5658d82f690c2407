"""The messages to viewers: first everything, afterwards the differences from one snapshot to the next.

Each message is made once, for all viewers. A viewer that is too slow for the differences gets everything again, so
nothing piles up for it.

| thread | what it touches |
|---|---|
| locks | the reader, and its own connections |
| health | the doctor, and its own connections |
| details | one lock at a time, and its own connections |
| event loop | viewers |

The board and the messages are shared, under `_lock`.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from handfast import log
from handfast.dashboard.board import Board, News, holder_shown
from handfast.dashboard.reading import Reader, Snapshot
from handfast.events import Event
from handfast.operate.doctor import examine
from handfast.operate.locks import LockDetail, detail
from handfast.operate.servers import Deployment
from handfast.option_types import Servers

if TYPE_CHECKING:
    from handfast import aio, sync

__all__ = ["Busy", "Feed"]

TIMEOUT: Final = 0.5
"""Seconds that a server has to answer the reader. The other servers' data is never older than this."""
HEALTH_EVERY: Final = 5.0
AWAY_EVERY: Final = 1.0
"""Seconds between two examinations, usually and while a node does not answer."""
DETAIL_FOR: Final = 1.0
"""Seconds for which one reading of a lock serves all viewers of its page."""
KEPT: Final = 60
"""Messages that are kept for slow viewers."""
MOST_DETAILS: Final = 200
"""Locks whose pages can be open at the same time."""


class Busy(Exception):
    """Too many requests are waiting for an answer."""


class Feed:
    """Reads one deployment for any number of viewers."""

    def __init__(self, servers: Servers, prefix: str, interval: float) -> None:
        self._deployments: list[Deployment] = []
        try:
            for timeout in (TIMEOUT, 2.0, 2.0):
                self._deployments.append(Deployment(servers, prefix=prefix, timeout=timeout))
        except BaseException:
            self._close_connections()
            raise
        self._locks, self._health, self._details = self._deployments
        self._reader = Reader(self._locks, interval)
        self._lock = threading.Lock()
        self._board = Board([node.label for node in self._locks.nodes])
        self._heard: deque[tuple[float, Event]] = deque(maxlen=10_000)
        self._checks_changed = False
        self._reading: dict[str, Any] = {}
        self._messages: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._everything: tuple[int, bytes] = (-1, b"")
        self._stopping = threading.Event()
        self._examine_now = threading.Event()
        self._threads: list[threading.Thread] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._detailed: dict[str, tuple[float, asyncio.Future[dict[str, Any]]]] = {}
        self._one_by_one = ThreadPoolExecutor(1, "handfast-dashboard-details")
        self.seq = 0
        self.viewers = 0

    # -- its life

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Sets the event loop that serves the viewers."""
        self._loop = loop
        self._news = asyncio.Event()

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self.attach(loop)
        for name, work in (("locks", self._read_locks), ("health", self._examine)):
            thread = threading.Thread(target=work, name=f"handfast-dashboard-{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def end_streams(self) -> None:
        """Ends all streams. May be called from any thread."""
        self._stopping.set()
        self._examine_now.set()
        self._tell_viewers()

    def stop(self) -> None:
        self.end_streams()
        for thread in self._threads:
            thread.join()
        self._one_by_one.shutdown()
        self._close_connections()

    def _close_connections(self) -> None:
        for deployment in self._deployments:
            deployment.close()

    def observe(self, client: sync.Client | aio.Client) -> Callable[[], None]:
        """Also shows the events of a client in this process: losses, failed renewals and acquisitions, exact waits."""
        return client.listen(lambda event: self._heard.append((time.time(), event)))

    # -- reading, each in its thread

    def _read_locks(self) -> None:
        while not self._stopping.wait(max(0.0, self._reader.next_at - time.monotonic())):
            try:
                snapshot = self._reader.read()
            except Exception:
                log.exception("the dashboard could not read the locks")
                self._stopping.wait(1.0)
                continue
            self._publish(snapshot)

    def _examine(self) -> None:
        while not self._stopping.is_set():
            self._examine_now.clear()
            pause = HEALTH_EVERY
            try:
                checks = list(examine(self._health, probe=False))
                with self._lock:
                    self._board.examined(checks, time.time())
                    self._checks_changed = True
                if any(check.name == "reachable" and check.level != "ok" for check in checks):
                    pause = AWAY_EVERY  # a node's return, and perhaps a short quarantine, must not be missed
            except Exception:
                log.exception("the dashboard could not examine the servers")
            self._examine_now.wait(pause)

    def _publish(self, snapshot: Snapshot) -> None:
        with self._lock:
            board = self._board
            before = board.faults.keys()
            board.heard([self._heard.popleft() for _ in range(len(self._heard))])
            news = board.update(snapshot)
            if board.faults.keys() != before:
                self._examine_now.set()
            self._reading = {"seconds": round(snapshot.seconds, 3), "unlisted": snapshot.unlisted}
            self.seq += 1
            self._messages.append((self.seq, _encoded("news", self._difference(news))))
            self._checks_changed = False
        self._tell_viewers()

    def _tell_viewers(self) -> None:
        def tell() -> None:
            self._news.set()
            self._news = asyncio.Event()

        if self._loop is not None and not self._loop.is_closed():
            try:
                self._loop.call_soon_threadsafe(tell)
            except RuntimeError:
                pass  # the loop has just ended, and with it the viewers

    # -- messages

    def _now(self) -> dict[str, Any]:
        board = self._board
        return {
            "seq": self.seq,
            "now": round(time.time() * 1000),
            "readable": board.readable,
            "faults": board.faults,
            "stats": board.statistics(),
            "reading": self._reading,
            "viewers": self.viewers,
        }

    def _difference(self, news: News) -> dict[str, Any]:
        message = self._now() | {
            "rows": [row.shown() for row in news.rows],
            "renewed": [[row.id, None if row.ends is None else round(row.ends * 1000)] for row in news.renewed],
            "gone": news.gone,
            "tape": news.tape,
            "point": news.point,
        }
        if self._checks_changed:
            message["checks"] = [asdict(check) for check in self._board.checks]
        return message

    def everything(self) -> tuple[int, bytes]:
        """The message that a new viewer gets, and its number."""
        with self._lock:
            if self._everything[0] != self.seq:
                board = self._board
                message = self._now() | {
                    "prefix": self._locks.prefix,
                    "nodes": board.nodes,
                    "need": self._locks.need,
                    "rows": [row.shown() for row in board.rows.values()],
                    "tape": list(board.tape),
                    "points": list(board.points),
                    "checks": [asdict(check) for check in board.checks],
                }
                self._everything = (self.seq, _encoded("all", message))
            return self._everything

    async def stream(self) -> AsyncIterator[bytes]:
        """The messages for one viewer."""
        self.viewers += 1
        try:
            seq, message = await asyncio.to_thread(self.everything)
            yield message
            while not self._stopping.is_set():
                news = self._news
                with self._lock:
                    due = [each for each in self._messages if each[0] > seq]
                if due and due[0][0] > seq + 1:
                    due = [await asyncio.to_thread(self.everything)]
                for number, message in due:
                    yield message
                    seq = number
                if not due:
                    await news.wait()
        finally:
            self.viewers -= 1

    # -- one lock

    async def lock(self, name: str) -> dict[str, Any]:
        """Everything about one name. Viewers that ask at the same time share one answer. Raises Busy if too many ask."""
        now = time.monotonic()
        known = self._detailed.get(name)
        if known is None or (known[1].done() and now > known[0] + DETAIL_FOR):
            if len(self._detailed) >= MOST_DETAILS:
                self._detailed = {each: asked for each, asked in self._detailed.items() if not asked[1].done()}
                if len(self._detailed) >= MOST_DETAILS:
                    raise Busy
            asked = asyncio.wrap_future(self._one_by_one.submit(self._detail, name))
            known = self._detailed[name] = (now, asked)
        return await asyncio.shield(known[1])

    def _detail(self, name: str) -> dict[str, Any]:
        try:
            found: LockDetail | None = detail(self._details, name)
        except ConnectionError:
            found = None
        with self._lock:
            holders = [holder_shown(each) for each in self._board.holders.get(name, ())]
        shown: dict[str, Any] = {"name": name, "now": round(time.time() * 1000), "holders": holders, "found": None}
        if found is not None:
            shown["found"] = asdict(found) | {
                "last_token": None if found.last_token is None else str(found.last_token),
                "waiters": [{"owner": each.owner.short, "since": each.since} for each in found.waiters],
            }
        return shown


def _encoded(event: str, message: dict[str, Any]) -> bytes:
    """As a server-sent event. JSON has no line breaks of its own, whatever is in the names."""
    return f"event: {event}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode()
