"""The `handfast` command in processes of its own: with pipes, and on a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.eventually import eventually

__all__ = ["HANDFAST", "Terminal", "handfast_command", "started", "terminal"]

ROOT = Path(__file__).parents[2]
HANDFAST = [sys.executable, "-m", "handfast"]
WITHIN = 30.0
"""Seconds that anything may take on a busy machine."""


def environment(**changes: str | None) -> dict[str, str]:
    """The environment of the tests, without the variables that the command reads."""
    variables = {**os.environ, "HANDFAST_URL": None, "NO_COLOR": None, "COLUMNS": None, "LINES": None, **changes}
    return {name: value for name, value in variables.items() if value is not None}


def handfast_command(
    *words: str, env: Mapping[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command to its end, with pipes."""
    return subprocess.run(
        [*HANDFAST, *words],
        env=env or environment(),
        cwd=ROOT,
        timeout=WITHIN,
        **{"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options},
    )


@contextmanager
def started(*words: str, env: Mapping[str, str] | None = None, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """The command runs during the block. It has its own session, so it has no terminal."""
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(
        [*HANDFAST, *words],
        env=env or environment(),
        cwd=ROOT,
        start_new_session=True,
        **{"stdin": subprocess.DEVNULL, "text": True, **pipes, **options},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # so that it ends its own command first
        try:
            process.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], columns: int, lines: int) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                os.chdir(ROOT)
                os.execvpe(command[0], list(command), dict(env))
            finally:
                os._exit(125)
        self.resize(columns, lines)
        self._text = b""
        self.status: int | None = None

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def read(self, wait: float = 0.0) -> None:
        while select.select([self._master], [], [], wait)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self._text += data

    @property
    def text(self) -> str:
        """The whole output."""
        self.read()
        return self._text.decode(errors="replace")

    @property
    def plain(self) -> str:
        """The output without colours and cursor movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", self.text)

    def expect(self, what: str, times: int = 1) -> None:
        """Wait until the output contains this so often."""
        eventually(lambda: self.plain.count(what) >= times, WITHIN, f"{what!r} in {self.text!r}")

    def wait(self) -> int:
        """The exit status; negative for a signal that ended it."""

        def over() -> bool:
            self.read()
            if self.status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = os.waitstatus_to_exitcode(status)
            return self.status is not None

        eventually(over, WITHIN, f"it goes on: {self.text!r}")
        assert self.status is not None
        return self.status

    def close(self) -> None:
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)


@contextmanager
def terminal(
    *words: str,
    command: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    columns: int = 80,
    lines: int = 24,
) -> Iterator[Terminal]:
    """The command (or another program) on a terminal."""
    shown = Terminal(command or [*HANDFAST, *words], env or environment(TERM="xterm"), columns, lines)
    try:
        yield shown
    finally:
        shown.close()
