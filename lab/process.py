"""A worker process from outside: started, told, heard, paused, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from handfast.testing import reaper
from handfast.testing.servers import LOOPBACK, reserve_port

__all__ = ["WorkerProcess"]


class WorkerProcess:
    """Keeps its name and port, whatever happens to its process. `hear` gets every event; {"what": "gone"} is the last one
    of a process that ended by itself."""

    def __init__(self, name: str, threads: int, folder: Path, hear: Callable[[str, dict[str, Any]], None]) -> None:
        self.name = name
        self.state: Literal["up", "paused", "dead"] = "dead"
        self.ready = False
        """It serves, and knows what. Whoever started it says so."""
        self._threads = threads
        self._folder = folder
        self._hear = hear
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._heard = b""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        if sys.platform != "linux":
            self._reserved.close()  # elsewhere a second bind to the port is refused
        command = [sys.executable, "-m", "lab.worker", str(self.port), str(self._threads)]
        pipe = subprocess.PIPE
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=log, start_new_session=True)
        reaper.watch(self.pid, self._folder)
        self.state = "up"
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._readable, self._process)

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.name}.log"

    def log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _readable(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        data = os.read(process.stdout.fileno(), 1 << 20)
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            self._hear(self.name, json.loads(line))
        if not data:
            self._let_go(process)
            if self.state != "dead":
                served = self.ready
                self.kill()
                self._hear(self.name, {"what": "gone", "t": time.monotonic(), "served": served})

    def _let_go(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        if not process.stdout.closed:
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            process.stdout.close()
            process.stdin.close()
            self._heard = b""

    def send(self, **command: Any) -> None:
        """A line that it reads when it can: a paused process does so after it goes on."""
        if self._process is None or self.state == "dead":
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has just died; the end of its output says so

    def pause(self) -> None:
        """SIGSTOP. Returns when it has really stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.state = "paused"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.state = "up"

    def kill(self) -> None:
        """SIGKILL. What it said before is heard first."""
        process, self.state, self.ready = self._process, "dead", False
        if process is None or process.returncode is not None:
            return
        reaper.forget(process.pid)
        process.kill()
        process.wait()
        assert process.stdout is not None
        while not process.stdout.closed:
            self._readable(process)

    def close(self) -> None:
        self.kill()
        self._reserved.close()
