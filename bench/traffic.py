"""How many commands clients send, counted by the server.

INFO cannot tell: both total_commands_processed and commandstats also count the commands that scripts call (seen on Redis
7.0 and Valkey 9.1), and clients and scripts use the same commands. MONITOR shows every command with its sender, which is
`lua` for a command of a script. MONITOR slows the server down, so rounds under it are counted and not timed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Self

from bench.commands import encode
from bench.floors import Wire

OF_A_SCRIPT = b" lua] "


class Traffic:
    """Watches all clients of a server. The server buffers the lines until they are read."""

    def __init__(self, url: str) -> None:
        self._closing = contextlib.ExitStack()
        self._monitor, self._marker = Wire(url), Wire(url)
        for wire in (self._monitor, self._marker):
            self._closing.enter_context(contextlib.closing(wire.sock))
        self._monitor.ask(encode(b"MONITOR"))
        self._marks = 0
        self._unread = bytearray()

    def since_last_asked(self) -> int:
        """Commands of clients since the last call, without the marker command that separates two calls."""
        self._marks += 1
        mark = b"traffic:%d" % self._marks
        self._marker.ask(encode(b"ECHO", mark))
        end = b'"ECHO" "%s"\r\n' % mark
        seen, looked = self._unread, 0
        while (at := seen.find(end, looked)) < 0:
            looked = max(0, len(seen) - len(end))
            seen += self._monitor.sock.recv(1 << 20)
        # The marker's own line is cut off before its end, so it is not counted.
        sent = seen.count(b"\r\n", 0, at) - seen.count(OF_A_SCRIPT, 0, at)
        del seen[: at + len(end)]
        return sent

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()


class AllTraffic:
    """The same for all nodes of a quorum together."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._nodes = [Traffic(url) for url in urls]

    def since_last_asked(self) -> int:
        return sum(node.since_last_asked() for node in self._nodes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes:
            node.__exit__()
