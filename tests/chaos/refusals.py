"""Servers that answer with errors (fault 25): first one node of several, later a majority."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from handfast.testing import Server
from tests.chaos.environment import Environment
from tests.chaos.scenario import scenario
from tests.support.server_errors import attempt, busy, commands

__all__ = ["ERRORS"]


@contextlib.contextmanager
def loading(node: Server) -> Iterator[None]:
    """The server restarts and has to load much data."""
    node.command("EVAL", "for i = 1, 2000 do redis.call('SET', 'junk-' .. i, i) end", 0)
    node.command("SAVE")
    node.kill()
    node.config["key-load-delay"] = "500"
    node.spawn()
    yield
    node.wait_ready()
    node.command("CONFIG", "SET", "key-load-delay", "0")
    node.command("EVAL", "for i = 1, 2000 do redis.call('DEL', 'junk-' .. i) end", 0)


@contextlib.contextmanager
def misconf(node: Server) -> Iterator[None]:
    """The server cannot write its snapshot, so it refuses writes."""
    (node.folder / "dump.rdb").mkdir()
    node.command("CONFIG", "SET", "save", "3600 100000")
    node.command("BGSAVE")
    node.wait_for(lambda: str(attempt(node, "SET", "x", "1")).startswith("MISCONF"))
    yield
    node.command("CONFIG", "SET", "save", "")
    (node.folder / "dump.rdb").rmdir()


@contextlib.contextmanager
def noscript(node: Server) -> Iterator[None]:
    """The scripts are flushed again and again."""
    stop = threading.Event()

    def flush() -> None:
        while not stop.wait(0.01):
            node.command("SCRIPT", "FLUSH")

    thread = threading.Thread(target=flush)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


ERRORS: Final[dict[str, Callable[[Server], AbstractContextManager[None]]]] = {
    "BUSY": busy,
    "LOADING": loading,
    "READONLY": commands("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "OOM": commands("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "MISCONF": misconf,
    "NOSCRIPT": noscript,
    "NOPERM": commands("ACL SETUSER default -eval -evalsha -set", "ACL SETUSER default +@all"),
}


def _refused(word: str) -> Callable[[Environment], None]:
    def run(env: Environment) -> None:
        nodes = env.servers(3)
        env.open()
        env.start_workers(3)
        for some in (nodes[:1], nodes[:2]):
            with contextlib.ExitStack() as errors:
                for node in some:
                    errors.enter_context(ERRORS[word](node))
                    env.fault(word)
                env.lapse(0.7)
        env.recovers()

    return run


for each in ERRORS:
    scenario(f"nodes answer {each}", 25, peers=each in ("OOM", "NOSCRIPT"), quorum=True)(_refused(each))
