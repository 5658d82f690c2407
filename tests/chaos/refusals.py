"""Servers that answer with errors: of one node while the others go on, then of a majority. Fault 25."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final

from handfast.embedded.resp import ReplyError
from handfast.testing import Server
from tests.chaos.environment import Environment
from tests.chaos.scenario import scenario

__all__ = ["ERRORS"]

DEAD_PORT: Final = 1


def says(node: Server, word: str, *command: str) -> bool:
    try:
        node.command(*command)
    except ReplyError as error:
        return str(error).startswith(word)
    return False


@contextlib.contextmanager
def busy(node: Server) -> Iterator[None]:
    """A script of another client does not end."""
    node.command("CONFIG", "SET", "lua-time-limit", "10")

    def spin() -> None:
        with contextlib.suppress(ReplyError, OSError):
            node.command("EVAL", "while true do end", 0, timeout=30)

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        node.wait_for(lambda: says(node, "BUSY", "GET", "x"))
        node.command("SCRIPT", "KILL")
        thread.join()


@contextlib.contextmanager
def loading(node: Server) -> Iterator[None]:
    """It restarts and has much to read."""
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
def readonly(node: Server) -> Iterator[None]:
    """It was made a replica."""
    node.command("REPLICAOF", "127.0.0.1", str(DEAD_PORT))
    yield
    node.command("REPLICAOF", "NO", "ONE")


@contextlib.contextmanager
def out_of_memory(node: Server) -> Iterator[None]:
    node.command("CONFIG", "SET", "maxmemory", "1")
    yield
    node.command("CONFIG", "SET", "maxmemory", "0")


@contextlib.contextmanager
def misconf(node: Server) -> Iterator[None]:
    """It cannot write its snapshot, and so takes no writes."""
    (node.folder / "dump.rdb").mkdir()
    node.command("CONFIG", "SET", "save", "3600 100000")
    node.command("BGSAVE")
    node.wait_for(lambda: says(node, "MISCONF", "SET", "x", "1"))
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


@contextlib.contextmanager
def noperm(node: Server) -> Iterator[None]:
    node.command("ACL", "SETUSER", "default", "-eval", "-evalsha", "-set")
    yield
    node.command("ACL", "SETUSER", "default", "+@all")


ERRORS: Final[dict[str, Callable[[Server], AbstractContextManager[None]]]] = {
    "BUSY": busy,
    "LOADING": loading,
    "READONLY": readonly,
    "OOM": out_of_memory,
    "MISCONF": misconf,
    "NOSCRIPT": noscript,
    "NOPERM": noperm,
}


def _refused(word: str) -> Callable[[Environment], None]:
    def run(env: Environment) -> None:
        nodes = env.servers(3)
        env.open()
        env.crowd(3)
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
