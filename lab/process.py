"""A worker process as the runner sees it: start, send commands, receive events, pause, kill."""

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
    """A worker keeps its name and port when its process is replaced.

    `on_event` receives every event. The last event of a process that exited by itself is {"what": "gone"}.
    """

    def __init__(self, name: str, threads: int, folder: Path, on_event: Callable[[str, dict[str, Any]], None]) -> None:
        self.name = name
        self.state: Literal["up", "paused", "dead"] = "dead"
        self.ready = False
        """The process serves and its sale is open. The environment sets this."""
        self._threads = threads
        self._folder = folder
        self._on_event = on_event
        self._reserved = reserve_port()
        self.port: int = self._reserved.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._unread = b""

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid if self._process else 0

    def start(self) -> None:
        if sys.platform != "linux":
            self._reserved.close()  # only Linux allows a second bind to the port
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
        return lines[-1] if lines else "it printed nothing"

    def _readable(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        data = os.read(process.stdout.fileno(), 1 << 20)
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._on_event(self.name, json.loads(line))
        if not data:
            self._close_pipes(process)
            if self.state != "dead":
                served = self.ready
                self.kill()
                self._on_event(self.name, {"what": "gone", "t": time.monotonic(), "served": served})

    def _close_pipes(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        if not process.stdout.closed:
            asyncio.get_running_loop().remove_reader(process.stdout.fileno())
            process.stdout.close()
            process.stdin.close()
            self._unread = b""

    def send(self, **command: Any) -> None:
        """Send one command. A paused process reads it after it resumes."""
        if self._process is None or self.state == "dead":
            return
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it has just died; `_readable` notices that

    def pause(self) -> None:
        """Send SIGSTOP, and return when the process is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.state = "paused"

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)
        self.state = "up"

    def kill(self) -> None:
        """Send SIGKILL, and deliver the events that the process has already written."""
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
