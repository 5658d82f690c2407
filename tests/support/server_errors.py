"""Ways to make a real server reply with an error. Each is a context manager that ends the error at its exit."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from handfast.embedded.resp import Connection, ReplyError
from handfast.testing import Server

__all__ = ["ERRORS", "attempt", "busy", "commands"]

ServerError = Callable[[Server], AbstractContextManager[None]]


def attempt(server: Server, *command: str) -> object:
    """The reply to a command, also if it is an error."""
    try:
        return server.command(*command)
    except ReplyError as error:
        return error


def commands(begin: str, end: str) -> ServerError:
    """An error that one command, or a few separated by semicolons, causes, and another one ends."""

    @contextmanager
    def refuse(server: Server) -> Iterator[None]:
        for command in begin.split(";"):
            server.command(*command.split())
        try:
            yield
        finally:
            server.command(*end.split())

    return refuse


@contextmanager
def disk_gone(server: Server) -> Iterator[None]:
    """The server's folder is moved away. Permissions would not stop root."""
    shutil.rmtree(server.folder / "data")
    server.command("CONFIG", "SET", "save", "3600 1")
    server.command("BGSAVE")
    server.wait_for(lambda: server.info("rdb_last_bgsave_status") == "err")
    try:
        yield
    finally:
        server.command("CONFIG", "SET", "stop-writes-on-bgsave-error", "no")


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """The script of another client does not end."""
    server.command("CONFIG", "SET", "lua-time-limit", "1")
    with Connection(("127.0.0.1", server.port), timeout=30) as link:

        def spin() -> None:
            with contextlib.suppress(ReplyError):  # the script is killed
                link.command("EVAL", "while true do end", "0")

        thread = threading.Thread(target=spin)
        thread.start()
        server.wait_for(lambda: str(attempt(server, "PING")).startswith("BUSY"))
        try:
            yield
        finally:
            server.command("SCRIPT", "KILL")
            thread.join(10)


@contextmanager
def loading(server: Server) -> Iterator[None]:
    """DEBUG RELOAD loads like a start. A delay per key prolongs it. A loading server handles clients every 2 MB."""
    server.command("DEBUG", "POPULATE", "60", "filler", "500000")
    server.command("CONFIG", "SET", "key-load-delay", "25000")
    with Connection(("127.0.0.1", server.port), timeout=30) as link:
        thread = threading.Thread(target=link.command, args=("DEBUG", "RELOAD"))
        thread.start()
        server.wait_for(lambda: str(attempt(server, "GET", "x")).startswith("LOADING"))
        try:
            yield
        finally:
            with contextlib.suppress(ReplyError):  # Redis 6.2 accepts no settings now; it has loaded within 1.5 s
                server.command("CONFIG", "SET", "key-load-delay", "0")
            thread.join(10)


def _without_clients(begin: tuple[str, str], end: tuple[str, str]) -> ServerError:
    """A setting for new connections. Existing ones are cut."""

    @contextmanager
    def refuse(server: Server) -> Iterator[None]:
        with Connection(("127.0.0.1", server.port), timeout=5) as link:
            link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            link.command("CONFIG", "SET", *begin)
            link.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            try:
                yield
            finally:
                link.command("CONFIG", "SET", *end)

    return refuse


ERRORS: Final[dict[str, ServerError]] = {
    "OOM: is out of memory": commands("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
    "MISCONF: refuses writes because it cannot save to disk": disk_gone,
    "READONLY: is a read-only replica": commands("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
    "MASTERDOWN: is a replica whose master is down": commands(
        "CONFIG SET replica-serve-stale-data no;REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"
    ),
    "NOREPLICAS: refuses writes because too few replicas are in sync": commands(
        "CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"
    ),
    "BUSY: is busy running a script": busy,
    "LOADING: is still loading its data": loading,
    "NOPERM: this user may not do that": commands(
        "ACL SETUSER default -eval -evalsha -set -script", "ACL SETUSER default +@all"
    ),
    "NOAUTH: wants a password": _without_clients(("requirepass", "pw"), ("requirepass", "")),
    "has reached its maximum number of clients": _without_clients(("maxclients", "1"), ("maxclients", "100")),
    "WRONGTYPE: the key holds something that is not a lock": commands(
        "RPUSH handfast:{reason} x", "DEL handfast:{reason}"
    ),
}
"""By what handfast reports."""
