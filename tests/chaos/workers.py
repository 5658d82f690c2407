"""Worker processes as a scenario sees them: it sends commands, stops and kills them."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from handfast.testing import reaper
from handfast.testing.history import now
from tests.chaos.worker import Spec

__all__ = ["Member", "WorkerError"]

ROOT: Final = Path(__file__).parents[2]
PATIENCE: Final = 50.0
"""Seconds that a process has for a line of output."""


class WorkerError(Exception):
    """An error in a worker at one step; `kind` is the name of the exception there."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Member:
    """One worker process."""

    def __init__(self, spec: Spec, env: Mapping[str, str] = {}) -> None:
        self.spec = spec
        self.complaints = Path(spec.folder, f"{len(list(Path(spec.folder).iterdir()))}-{spec.kind}.errors")
        with self.complaints.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.chaos.worker", json.dumps(asdict(spec))],
                cwd=ROOT,
                env=os.environ | dict(env),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        self._said = b""
        # A stopped process does not notice that its standard input has ended.
        reaper.watch(self.pid, None)

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, *words: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(words).encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, within: float = PATIENCE) -> Any:
        """The next answer."""
        assert self.process.stdout is not None
        end = now() + within
        while b"\n" not in self._said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, end - now()))
            data = os.read(self.process.stdout.fileno(), 65536) if ready else b""
            if not data:
                raise TimeoutError(f"worker {self.pid} said nothing; {self.complaints.read_text()[-2000:]}")
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"], answer["text"])
        return answer["said"]

    def ask(self, *words: object, within: float = PATIENCE) -> Any:
        self.tell(*words)
        return self.hear(within)

    def audible(self) -> bool:
        """Whether it has written something."""
        assert self.process.stdout is not None
        return bool(self._said or select.select([self.process.stdout], [], [], 0)[0])

    def pause(self) -> None:
        """SIGSTOP. Returns when the process has stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process.returncode is None:
            reaper.forget(self.pid)
            self.process.kill()
            self.process.communicate()
