"""Servers must die with the test process, also when that is killed with SIGKILL.

A server does not watch its parent, and the ways to make the kernel do it fall short: PR_SET_PDEATHSIG needs
code between fork and exec (unsafe in a process with threads, and tests have threads), fires when the *thread*
that started the server ends, and is Linux only; `setpriv` is one more program that must be there.

So every test process gets one reaper, started with its first server: a bare interpreter that reads a pipe and
knows the servers that run. The end of the pipe is the end of the test process, however it came; then the
reaper kills what is left. A process id cannot be reused before it is reaped, and it is struck from the list
before that.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

# "+PID FOLDER" watches, "-PID" forgets. A session of its own: a Ctrl-C must not end it before its work.
CODE = """
import os, shutil, signal, sys
os.setsid()
watched = {}
for line in sys.stdin:
    pid, _, folder = line[1:].rstrip("\\n").partition(" ")
    if line[0] == "+":
        watched[int(pid)] = folder
    else:
        watched.pop(int(pid), None)
for pid, folder in watched.items():
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
"""

_guard = threading.Lock()
_pipe: int | None = None


def watch(pid: int, folder: Path | None) -> None:
    """Kill this process when we are gone, and remove the folder too if it is given."""
    _say(f"+{pid} {folder or ''}\n")


def forget(pid: int) -> None:
    """To be said before the process is reaped: from then on its number may be another's."""
    _say(f"-{pid}\n")


def _say(line: str) -> None:
    global _pipe
    with _guard:
        if _pipe is None:
            _pipe = _start()
        os.write(_pipe, line.encode())


def _start() -> int:
    reader, writer = os.pipe()
    null = ((os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2))
    # Not subprocess: the reaper outlives every object that could stand for it here.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", CODE],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0), *null],
    )
    os.close(reader)
    return writer


def _forked() -> None:
    """A child has no say over the parent's servers, and its copy of the pipe must not keep them alive."""
    global _guard, _pipe
    _guard = threading.Lock()
    if _pipe is not None:
        os.close(_pipe)
        _pipe = None


os.register_at_fork(after_in_child=_forked)
