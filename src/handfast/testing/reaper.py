"""Ends the servers together with the test process, even if that is killed with SIGKILL.

A server does not watch its parent, and the ways to make the kernel do it fall short: PR_SET_PDEATHSIG needs
code between fork and exec (unsafe in a process with threads, and tests have threads), fires when the *thread*
that started the server ends, and is Linux only; `setpriv` is one more program that must be there.

So every test process gets one reaper, started with its first server: a bare interpreter that reads a pipe and
knows the running servers. The pipe ends when the test process ends, for whatever reason, and the reaper kills
the servers that are left. The system cannot reuse a process id before the process is waited on, and it is
removed from the reaper's list before that.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

# "+PID FOLDER" adds a server, "-PID" removes it. The reaper has its own session, so that Ctrl-C does not end it.
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
    """Have the reaper kill this process after the end of the test process, and remove the folder, if given."""
    _say(f"+{pid} {folder or ''}\n")


def forget(pid: int) -> None:
    """Remove the process from the reaper's list. Call this before waiting on it: afterwards its id may be reused."""
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
    # Not subprocess.Popen: the reaper outlives this process, so no object should wait on it.
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", CODE],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_DUP2, reader, 0), *null],
    )
    os.close(reader)
    return writer


def _forked() -> None:
    """Close the pipe in a forked child: its copy would keep the parent's servers alive."""
    global _guard, _pipe
    _guard = threading.Lock()
    if _pipe is not None:
        os.close(_pipe)
        _pipe = None


os.register_at_fork(after_in_child=_forked)
