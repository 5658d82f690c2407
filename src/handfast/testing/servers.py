"""Real servers for tests, which can be started, paused, killed, restarted and asked.

A `Server` keeps its address from start to close, whatever happens to its process: a client that survives a
crash of its server finds the new one at the old address.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self
from urllib.parse import quote

from ..embedded.process import ServerProcess, StartError
from ..embedded.resp import Address, Connection, Reply
from . import reaper
from .ports import LOOPBACK, reserve_port
from .server_versions import any_binary, available
from .started import Started

__all__ = ["LOOPBACK", "Server", "Servers", "TlsFiles", "available", "reserve_port"]

PORT_TRIES = 3
ENV = "/usr/bin/env"


class TlsFiles(NamedTuple):
    """Paths of PEM files: the server's certificate and key, and the authority that signed it."""

    certificate: Path
    key: Path
    authority: Path


class HasPort(Protocol):
    """A Server, or a Proxy in front of one."""

    @property
    def port(self) -> int: ...


class Server(Started):
    """One server. `with Server() as server:` starts it, and at the end removes it with all its files."""

    def __init__(
        self,
        binary: Path | None = None,
        *,
        unix: bool = False,
        config: Mapping[str, str] = {},
        tls: TlsFiles | None = None,
        folder: Path | None = None,
        replica_of: HasPort | None = None,
        env: Mapping[str, str] = {},
    ) -> None:
        self.binary = binary or any_binary()
        self.config = dict(config)
        self.env = dict(env)
        self.replica_of = replica_of
        self._tls = tls
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="handfast-server-"))
        self.socket_path = self.folder / "server.sock" if unix else None
        self._reserved: list[socket.socket] = []
        self.port = 0  # stays 0 with a unix socket
        if not unix:
            self._take_port()
        self._process: ServerProcess | None = None
        self._paused = False

    # -- address and state

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
    def alive(self) -> bool:
        """Whether its process runs and is not paused."""
        return self._process is not None and self._process.running and not self._paused

    @property
    def log(self) -> str:
        """The end of the log of the last start."""
        return self._process.log_tail() if self._process else ""

    # -- start and end

    def start(self) -> Self:
        for attempt in range(PORT_TRIES):
            self.spawn()
            try:
                self.wait_ready()
                return self
            except StartError as error:
                self.kill()
                if "in use" not in str(error) or self.socket_path or attempt == PORT_TRIES - 1:
                    raise
                # Another program took the port. This happens only without a reservation (see reserve_port).
                self._take_port()
        raise AssertionError("not reached")

    def spawn(self) -> None:
        """The first half of start(). Several servers can start side by side."""
        if self._process and self._process.running:
            raise RuntimeError("the server is running already")
        if sys.platform != "linux":
            self._free_port()  # other systems refuse a second bind to the port
        program, *arguments = self._command_line()
        process = ServerProcess(Path(program), arguments, self.folder, self._address(), tls=self._context())
        process.spawn()
        self._process = process  # only now: close() must not look for a process that could not be started
        self._paused = False
        reaper.watch(self.pid, self.folder if self._own_folder else None)

    def wait_ready(self) -> None:
        self._running().wait_ready()
        if self.replica_of:
            self.wait_for(lambda: self.info("master_link_status") == "up")

    def stop(self) -> None:
        """Stop the server in order (SIGTERM). An append-only file is complete afterwards."""
        self.resume()
        os.kill(self.pid, signal.SIGTERM)
        reaper.forget(self.pid)
        self._running().wait_gone(within=5.0)

    def kill(self) -> None:
        """Kill the server (SIGKILL). Data that is not on disk is lost."""
        if self._process:
            reaper.forget(self.pid)
            self._process.kill()

    def pause(self) -> None:
        """Pause the server (SIGSTOP): connections stay open without replies. Returns when the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self._paused = True

    def resume(self) -> None:
        """Resume the server (SIGCONT). It answers everything that was sent in the meantime."""
        if self._paused:
            os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def restart(self, empty: bool = True) -> None:
        """Kill the server (SIGKILL) and start it again at the same address; with `empty`, without its data."""
        self.kill()
        if empty:
            self._remove_data()
        self.spawn()
        self.wait_ready()

    def close(self) -> None:
        """End the server and remove its files. A closed server cannot be started again."""
        self.kill()
        self._free_port()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    # -- commands

    def command(self, *args: str | bytes | int, timeout: float = 5.0) -> Reply:
        """Send one command on a new connection. (So WAIT waits for nothing: it concerns earlier writes of a connection.)

        Simple strings come back as str, bulk strings as bytes. An error reply raises ReplyError.
        """
        with self.connect(timeout) as link:
            return link.command(*args)

    def connect(self, timeout: float = 5.0) -> Connection:
        """A connection for several commands, logged in. The caller closes it."""
        link = self._running().connect(timeout)
        try:
            if password := self.config.get("requirepass"):
                link.command("AUTH", password)
        except BaseException:
            link.close()
            raise
        return link

    def info(self, field: str) -> str:
        """One field of INFO; "" if there is none."""
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

    def _reserve(self) -> list[socket.socket]:
        """The sockets that reserve the server's port, and further ports that belong to it."""
        return [reserve_port()]

    def _take_port(self) -> None:
        self._free_port()
        self._reserved = self._reserve()
        self.port = self._reserved[0].getsockname()[1]

    def _free_port(self) -> None:
        for reserved in self._reserved:
            reserved.close()

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _address(self) -> Address:
        return self.socket_path or (LOOPBACK, self.port)

    def _context(self) -> ssl.SSLContext | None:
        return ssl.create_default_context(cafile=str(self._tls.authority)) if self._tls else None

    def _command_line(self) -> list[str]:
        # The `env` program replaces itself by the server, so the process id is the server's.
        variables = [f"{name}={value}" for name, value in self.env.items()]
        return [*([ENV, *variables] if variables else []), str(self.binary), *self._arguments()]

    def _arguments(self) -> Sequence[str]:
        return [word for name, *words in self._settings() for word in (f"--{name}", *words)]

    def _settings(self) -> list[list[str]]:
        """The lines of the server's configuration."""
        options = {
            "bind": LOOPBACK,
            "port": "0",
            "save": "",
            "dir": ".",
            # Replicas should be in sync at once. By default a master waits five seconds for more replicas.
            "repl-diskless-sync-delay": "0",
            **self._listening(),
            **({"replicaof": f"{LOOPBACK} {self.replica_of.port}"} if self.replica_of else {}),
            **self.config,
        }
        return [[name, *_words(name, value)] for name, value in options.items()]

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


class Servers(Started):
    """Several servers that start side by side: the nodes of a quorum."""

    def __init__(self, count: int, binary: Path | None = None, **options: Any) -> None:
        self.nodes: list[Server] = [Server(binary, **options) for _ in range(count)]

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def start(self) -> Self:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.wait_ready()
        return self

    def close(self) -> None:
        for node in self.nodes:
            node.close()

    def __getitem__(self, index: int) -> Server:
        return self.nodes[index]

    def __iter__(self) -> Iterator[Server]:
        return iter(self.nodes)

    def __len__(self) -> int:
        return len(self.nodes)


def _words(name: str, value: str) -> list[str]:
    """Split a setting into words: `replicaof` and others take several, but a password or a path with a blank is one."""
    several = name in {"replicaof", "client-output-buffer-limit", "rename-command", "save", "user"}
    return value.split() or [""] if several else [value]
