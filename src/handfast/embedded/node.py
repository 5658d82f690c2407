"""One node of an embedded folder, as its supervisor sees it.

    off (no client can connect) -- open() --> on -- shut() --> off

Connected clients stay connected: only the name of the socket changes. If the node does not answer a question,
the result is None or False. The supervisor never takes that for "no clients".
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

from .process import ServerProcess
from .resp import Connection, ReplyError, listens

T = TypeVar("T")

PATIENCE = 5.0  # seconds to wait for a reply, an exit or a lock that is due any moment
BESIDE_A_LEASE = tuple(b"%b:%b" % (end, kind) for end in (b"}", b">", b"]") for kind in (b"f", b"q", b"c", b"g"))
"""The ends of the keys beside a lock's own key: counter, queue, claims, generations. See protocol/keys.py."""
RESTART_PAUSE = 0.2  # seconds between two starts of one node, so that a server that dies at once costs little


class Usage(NamedTuple):
    """A node's count of its clients. The supervisor's own connection is one of them."""

    clients: int
    connections_ever: int
    has_leases: bool

    @property
    def quiet(self) -> bool:
        return self.clients <= 1 and not self.has_leases


class Node:
    def __init__(self, binary: Path, data: Path, on: Path, off: Path, in_child: Callable[[], None] | None) -> None:
        self.on = on
        self.off = off
        self._process = ServerProcess(binary, server_args(off), data, off, in_child=in_child)
        self._spawned_at = 0.0
        self._link: Connection | None = None

    def evict(self) -> None:
        """End a server that outlived its supervisor, or two would serve. Only Linux ends both together."""
        for path in (self.on, self.off):
            if listens(path):
                with Connection(path, timeout=PATIENCE) as link:
                    _shutdown(link, "NOSAVE")
            path.unlink(missing_ok=True)

    def spawn(self) -> None:
        self._process.folder.mkdir(exist_ok=True)
        self._spawned_at = time.monotonic()
        self._process.spawn()

    def wait_ready(self) -> None:
        self._process.wait_ready()
        self._link = self._process.connect()

    @property
    def running(self) -> bool:
        return self._process.running

    def revive(self) -> None:
        self._hang_up()
        time.sleep(max(0.0, self._spawned_at + RESTART_PAUSE - time.monotonic()))
        self.spawn()
        self.wait_ready()
        self.open()

    def open(self) -> None:
        self.off.rename(self.on)

    def shut(self) -> None:
        self.on.rename(self.off)

    def usage(self) -> Usage | None:
        return self._ask(_usage)

    def save(self) -> bool:
        return self._ask(lambda link: link.command("SAVE")) == "OK"

    def shut_down(self) -> None:
        self._ask(lambda link: _shutdown(link, "SAVE"))

    def wait_gone(self) -> int:
        return self._process.wait_gone(PATIENCE)

    def kill(self) -> None:
        self._process.kill()

    def remove_sockets(self) -> None:
        self.on.unlink(missing_ok=True)
        self.off.unlink(missing_ok=True)

    def _ask(self, question: Callable[[Connection], T]) -> T | None:
        try:
            self._link = self._link or Connection(self.on, timeout=1.0)
            return question(self._link)
        except (OSError, ReplyError):
            self._hang_up()
            return None

    def _hang_up(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None


def server_args(unix_socket: Path) -> list[str]:
    """The server's arguments: no network, no eviction (it would drop locks), no disk except for the save at the end."""
    return [
        *("--port", "0", "--unixsocket", str(unix_socket), "--unixsocketperm", "700"),
        *("--save", "", "--appendonly", "no", "--dbfilename", "dump.rdb", "--dir", "."),
        *("--daemonize", "no", "--supervised", "no", "--loglevel", "warning"),
        *(
            "--maxmemory",
            "0",
            "--maxmemory-policy",
            "noeviction",
            "--timeout",
            "0",
            "--protected-mode",
            "yes",
        ),
    ]


def die_with_parent() -> Callable[[], None] | None:
    """Return a function for a new child that ties it to this process: the kernel ends both together, even after SIGKILL.
    None except on Linux; see evict().

    It is safe before exec, because the supervisor has one thread, which lives as long as the process.
    """
    if sys.platform != "linux":
        return None
    import ctypes

    prctl, parent, pdeathsig = ctypes.CDLL(None).prctl, os.getpid(), 1

    def in_child() -> None:
        prctl(pdeathsig, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)

    return in_child


def _usage(link: Connection) -> Usage:
    text = link.command("INFO")
    assert isinstance(text, bytes)
    fields = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    # db0:keys=1,expires=0,avg_ttl=0
    databases = [value for name, value in fields.items() if name.startswith("db") and value.startswith("keys=")]
    expiring = sum(int(part[8:]) for db in databases for part in db.split(",") if part.startswith("expires="))
    clients = int(fields["connected_clients"])
    return Usage(
        clients, int(fields["total_connections_received"]), bool(expiring) and clients <= 1 and _has_leases(link)
    )


def _has_leases(link: Connection) -> bool:
    """Whether a key may be a lease. Without clients nobody needs queues, and fence counters are kept for a week."""
    cursor = b"0"
    while True:
        found = link.command("SCAN", cursor, "COUNT", "1000")
        assert isinstance(found, list)
        cursor, keys = cast(tuple[bytes, list[bytes]], found)
        for key in keys:
            if not key.endswith(BESIDE_A_LEASE) and cast(int, link.command("PTTL", key)) > 0:
                return True
        if cursor == b"0":
            return False


def _shutdown(link: Connection, how: str) -> None:
    try:
        link.command("SHUTDOWN", how)
    except ConnectionError:
        pass  # a server that shuts down closes the connection instead of replying
