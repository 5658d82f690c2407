"""A small blocking RESP2 connection, to start and watch servers.

Locks do not use it: it has no pipelining and no reconnect. It exists because the supervisor must start in
milliseconds, on the standard library alone, and `import redis` takes longer than starting a server.
"""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # at run time this import would take the supervisor as long as all the others together
    import ssl

Address: TypeAlias = "Path | tuple[str, int]"
# Simple strings come back as str, bulk strings as bytes.
Reply: TypeAlias = "str | bytes | int | list[Reply] | None"


class ReplyError(Exception):
    """An error reply of the server. Its text is the message."""


class Connection:
    """Sends one command and reads one reply at a time. It is unusable after any OSError, such as a timeout."""

    def __init__(self, address: Address, *, timeout: float, tls: ssl.SSLContext | None = None) -> None:
        self._socket = _dial(address, timeout, tls)
        self._file = self._socket.makefile("rb")

    def command(self, *args: str | bytes | int) -> Reply:
        self._socket.sendall(encode(*args))
        return self._read()

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Reply:
        line = self._file.readline()
        if not line.endswith(b"\r\n"):
            raise ConnectionResetError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            raise ReplyError(rest.decode(errors="replace"))
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return self._bulk(int(rest))
        if kind == b"*":
            return [self._read() for _ in range(int(rest))] if int(rest) >= 0 else None
        raise ConnectionError(f"not RESP: {line!r}")

    def _bulk(self, size: int) -> bytes | None:
        if size < 0:
            return None
        data = self._file.read(size + 2)
        if len(data) < size + 2:
            raise ConnectionResetError("the server closed the connection inside a reply")
        return data[:-2]


def encode(*args: str | bytes | int) -> bytes:
    parts = [b"*%d\r\n" % len(args)]
    for arg in args:
        data = arg if isinstance(arg, bytes) else str(arg).encode()
        parts.append(b"$%d\r\n%s\r\n" % (len(data), data))
    return b"".join(parts)


def listens(path: Path) -> bool:
    """Whether a server accepts connections at this unix socket. It sends nothing, so it takes microseconds."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its backlog is full: a server listens, and is busy
        except OSError:
            return False
        return True


def _dial(address: Address, timeout: float, tls: ssl.SSLContext | None) -> socket.socket:
    family = socket.AF_UNIX if isinstance(address, Path) else socket.AF_INET
    raw = socket.socket(family, socket.SOCK_STREAM)
    try:
        raw.settimeout(timeout)
        raw.connect(str(address) if isinstance(address, Path) else address)
        return tls.wrap_socket(raw, server_hostname=raw.getpeername()[0]) if tls else raw
    except BaseException:
        raw.close()
        raise
