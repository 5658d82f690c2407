"""The files in the folder of an embedded deployment.

    lock          flock: its holder may start or stop the servers (a starter; the supervisor while it ends)
    supervisor    flock: held by the supervisor for as long as it lives; its process id is inside
    nodes         the number of nodes; written at the first start, so without it the folder was never used
    clean         the last stop saved everything and no lease was outstanding; removed at the next start
    0.sock ...    the socket of a node that is open for clients
    0.off ...     that socket while the node starts or ends. A server serves its socket under any name,
                  so a rename opens or shuts the node: new clients see it either ready or not at all
    node-0/ ...   data and log of one node

This module uses the standard library only: the supervisor runs it without site-packages.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# sizeof(sockaddr_un.sun_path) without the final zero
LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
STEP = 0.01  # seconds between two tries to take a lock that another process holds: flock() has no timeout


class Layout(NamedTuple):
    folder: Path
    nodes: int

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def supervisor(self) -> Path:
        return self.folder / "supervisor"

    @property
    def group_size(self) -> Path:
        return self.folder / "nodes"

    @property
    def clean(self) -> Path:
        return self.folder / "clean"

    @property
    def open_sockets(self) -> list[Path]:
        return [self.folder / f"{node}.sock" for node in range(self.nodes)]

    @property
    def off_sockets(self) -> list[Path]:
        return [self.folder / f"{node}.off" for node in range(self.nodes)]

    def data(self, node: int) -> Path:
        return self.folder / f"node-{node}"


def open_lock(path: Path) -> int:
    """Open the lock file, or create it. All copies of the descriptor share one flock."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Release the flock for every copy of the descriptor: a forked child may have one without knowing."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def same_file(fd: int, path: Path) -> bool:
    """Whether `path` is still the file of `fd`. If it was removed or replaced, a flock on `fd` excludes nobody."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False


def wait_until(done: Callable[[], bool], within: float) -> bool:
    deadline = time.monotonic() + within
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(STEP)
    return True
