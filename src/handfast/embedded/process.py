"""One server process: spawned, ready, gone.

    spawn() -> [starting] -- answers PING --> [ready] -- exits --> [gone]
       |           |-- exits --> StartError with the tail of its log
       |           `-- deadline --> StartError, and it is killed
       `-- no such program --> StartError

Spawning and waiting are two steps, so that many servers start side by side. A server reports that it is ready
to systemd only, so the wait connects and sends PING again and again, with short pauses. This module uses the
standard library only: the supervisor runs it without site-packages.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .resp import Address, Connection, ReplyError

if TYPE_CHECKING:
    import ssl

READY_WITHIN = 10.0  # a server needs about 10 ms; on a loaded machine a thousand times as long
FIRST_STEP, LONGEST_STEP = 0.002, 0.02  # seconds between two attempts to connect
LOG = "server.log"


class StartError(OSError):
    """A server did not come up. The message carries the end of its log."""


class ServerProcess:
    """A server that `binary` and `args` start. `args` must make it listen at `address`. `folder` has its data and log."""

    def __init__(
        self,
        binary: Path,
        args: Sequence[str],
        folder: Path,
        address: Address,
        *,
        tls: ssl.SSLContext | None = None,
        in_child: Callable[[], None] | None = None,
    ) -> None:
        self.folder = folder
        self.address = address
        self._argv = [str(binary), *args]
        self._tls = tls
        self._in_child = in_child
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def spawn(self) -> None:
        log_path = self.folder / LOG
        if log_path.exists():
            log_path.replace(log_path.with_suffix(".log.1"))  # keep the log of the last one: it may say why it died
        # Standard output, not --logfile: a server reports wrong arguments before it opens its log.
        with log_path.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    cwd=self.folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=self._in_child,
                    # A Ctrl-C at the terminal must not reach the servers.
                    start_new_session=True,
                )
            except OSError as error:
                raise StartError(f"{self._argv[0]} cannot be started: {error.strerror or error}") from error

    def wait_ready(self, within: float = READY_WITHIN) -> None:
        deadline = time.monotonic() + within
        step = FIRST_STEP
        while not self._answers():
            if not self.running:
                raise StartError(f"{self._argv[0]} ended at once:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise StartError(f"{self._argv[0]} did not answer within {within:g} s:\n{self.log_tail()}")
            time.sleep(step)
            step = min(step * 2, LONGEST_STEP)

    def connect(self, timeout: float = 1.0) -> Connection:
        return Connection(self.address, timeout=timeout, tls=self._tls)

    def kill(self) -> None:
        """Send SIGKILL and wait for the exit. The process may be running, stopped or gone already."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_gone(self, within: float) -> int:
        """Wait for an exit that was asked for, and return the exit status. After `within` seconds, kill the process."""
        if self._process is None:
            return 0
        try:
            return self._process.wait(within)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.returncode

    def log_tail(self, lines: int = 15) -> str:
        try:
            text = (self.folder / LOG).read_text(errors="replace")
        except FileNotFoundError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:]) or "(its log is empty)"

    def _answers(self) -> bool:
        try:
            with self.connect() as connection:
                return connection.command("PING") == "PONG"
        except ReplyError as error:
            # Any error but LOADING, such as NOAUTH or NOPERM, comes from a server that is up.
            return not str(error).startswith("LOADING")
        except OSError:
            return False
