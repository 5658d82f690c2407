"""The folder of an embedded deployment: which file means what.

    lock          flock: who holds it may change which servers run (a starter; the supervisor while it ends)
    supervisor    flock: held by the supervisor for as long as it lives; its process id is inside
    nodes         how many there are; written at the first start, so without it the folder was never used
    clean         the last stop saved everything and no lease was outstanding; removed at the next opening
    0.sock ...    a node that is open for clients
    0.off ...     the same socket while the node starts or ends. A server serves its socket under any name,
                  so a rename opens or shuts the door: newcomers see a node either ready or not at all
    node-0/ ...   data and log of one node

Standard library only: the supervisor runs this without site-packages.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# sizeof(sockaddr_un.sun_path) less the closing zero
LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
STEP = 0.01  # between two looks at a lock that another process holds: flock itself knows no deadline


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
    """A descriptor of the lock file, which is made if need be. Its copies share one flock."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_flock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(fd: int) -> None:
    """Let go for every copy of the descriptor: a forked child may have one that it does not know of."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def same_file(fd: int, path: Path) -> bool:
    """False when the file was removed or another took its place: then our flock excludes nobody."""
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
