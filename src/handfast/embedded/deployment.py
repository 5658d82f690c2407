"""Starts and finds the servers behind one `embedded://` address.

*Shared* (a folder is given): one deployment per folder and user, for all processes of this machine.

    absent -- ensure(), under the folder's flock --> starting -- open_new if safe --> open -- idle --> absent

A node is open if its socket accepts connections. So ensure() first tries to connect, which takes microseconds
and no lock. Only if a node is missing, it takes the flock, checks again, and starts a supervisor, which owns
the servers from then on (see `supervisor`). If twenty processes come at once, they queue at the flock, and
one of them starts the servers.

*Private* (no folder): the supervisor runs on a temporary folder. It ends when a socket of this process closes:
on close(), when the object is collected, or by the kernel when the process ends in any way.

`open_new` tells the servers that no lease is outstanding. It is called only when that is known: for a folder
that was never used, for one whose last stop left the `clean` stamp, and at the first start of a private one.
It is not called after a crash: the restart guard waits until every forgotten lease has expired. During the
call the sockets have names that no other process knows.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from . import binaries
from .layout import LONGEST_SOCKET, Layout, open_lock, same_file, try_flock, unlock, wait_until
from .node import PATIENCE
from .process import READY_WITHIN, StartError
from .resp import listens

START_WITHIN = READY_WITHIN + 2 * PATIENCE  # longer than the supervisor's own limits
END_WITHIN = 5.0
# Only `embedded` is put on the path, so `handfast/__init__` and site-packages are never loaded. The supervisor
# starts fast, stays small, and works however handfast was installed.
BOOT = "import sys; sys.path.append(sys.argv.pop(1)); from embedded.supervisor import main; main()"


class Embedded:
    """The servers behind one `embedded://` address. Starts nothing until ensure()."""

    def __init__(
        self,
        folder: Path | None,
        nodes: int = 1,
        *,
        open_new: Callable[[Sequence[Path]], None],
        idle: float = 60.0,
    ) -> None:
        self.private = folder is None
        self._layout = Layout(folder.absolute() if folder else _private_name(), nodes)
        self._open_new = open_new
        self._idle = idle
        self._owner = os.getpid()
        self._guard = threading.Lock()
        self._life: socket.socket | None = None  # of a private deployment: the supervisor lives while this is open
        self._hang_up: weakref.finalize[..., Embedded] | None = None
        self._closed = False
        _check_socket_length(self._layout)
        _instances.add(self)

    @property
    def sockets(self) -> list[Path]:
        return self._layout.open_sockets

    @property
    def folder(self) -> Path:
        return self._layout.folder

    def ensure(self) -> None:
        """Return when every node accepts connections. Call it again whenever a connection is lost."""
        if self._all_open():
            return
        with self._guard:
            if self.private:
                self._ensure_private()
            else:
                self._ensure_shared()

    def close(self) -> None:
        """End private servers. Shared servers end by themselves when no client uses them."""
        with self._guard:
            self._closed = True
            self._end_private()

    def _all_open(self) -> bool:
        self._check_size()
        return all(map(listens, self.sockets))

    def _check_size(self) -> None:
        """Raise if the folder has a group of another size: two sizes over the same servers do not exclude each other."""
        try:
            count = int(self._layout.group_size.read_text() or self._layout.nodes)
        except FileNotFoundError:
            return
        if count != self._layout.nodes:
            raise _config_error(
                f"{self._layout.folder} is an embedded group of {count}, not of {self._layout.nodes}: use "
                f"the same nodes= everywhere, or another folder (embedded:///some/folder?nodes={self._layout.nodes})"
            )

    # -- shared

    def _ensure_shared(self) -> None:
        secure(self._layout.folder)
        while not self._all_open():
            fd = open_lock(self._layout.lock)
            try:
                self._queue_at(fd)
            finally:
                os.close(fd)

    def _queue_at(self, lock_fd: int) -> None:
        if not wait_until(lambda: self._all_open() or try_flock(lock_fd), START_WITHIN):
            raise StartError(f"{self._layout.lock} is held by another process for {START_WITHIN:g} s")
        # If the folder was removed during the wait, no other process sees this lock: queue again.
        if same_file(lock_fd, self._layout.lock) and try_flock(lock_fd) and self._absent(lock_fd):
            safe = self._layout.clean.exists() or not self._layout.group_size.exists()
            self._launch(safe, lock_fd).close()

    def _absent(self, lock_fd: int) -> bool:
        """Whether a supervisor must be launched, which takes over the flock. If not, release the flock."""
        absent = False
        try:
            # A running supervisor restarts a dead node by itself. A supervisor that is ending is gone soon.
            if not wait_until(lambda: self._all_open() or self._no_supervisor(), START_WITHIN):
                raise StartError(f"the supervisor of {self._layout.folder} does not bring its servers up")
            absent = not self._all_open()
        finally:
            if not absent:
                unlock(lock_fd)
        return absent

    def _no_supervisor(self) -> bool:
        fd = open_lock(self._layout.supervisor)
        try:
            if gone := try_flock(fd):
                unlock(fd)
            return gone
        finally:
            os.close(fd)

    # -- private

    def _ensure_private(self) -> None:
        if self._closed:
            raise StartError("this private server was closed")
        if self._owner != os.getpid():
            raise StartError(f"this private server belongs to process {self._owner}, which has ended it")
        if self._life is None:
            self._start_private(first=True)
            return
        # A running supervisor restarts a dead node by itself.
        wait_until(lambda: self._all_open() or self._orphaned(), PATIENCE)
        if not self._all_open():
            # Leases of this process may be outstanding, so this is not a first start.
            self._end_private()
            self._start_private(first=False)

    def _orphaned(self) -> bool:
        """Whether the supervisor is gone. It sends nothing more, so its socket is readable only at its end."""
        return self._life is not None and bool(select.select([self._life], [], [], 0)[0])

    def _start_private(self, *, first: bool) -> None:
        self._layout.folder.mkdir(mode=0o700, exist_ok=not first)
        self._life = life = self._launch(first, None)
        self._hang_up = weakref.finalize(self, _hang_up, life)
        self._hang_up.atexit = False  # at exit the kernel closes the socket, without a pause

    def _end_private(self) -> None:
        if self._hang_up is not None:
            self._hang_up()
        self._hang_up = None
        self._life = None

    def _launch(self, safe: bool, lock_fd: int | None) -> socket.socket:
        """Start the supervisor and wait until the nodes are open. Returns the socket that ties it to this process."""
        ours, its = socket.socketpair()
        try:
            with its:
                launch(self._layout, self._idle, its, lock_fd)
            ours.settimeout(START_WITHIN)
            _expect(ours, b"U", self._layout)
            if safe:
                self._open_new(self._layout.off_sockets)
            ours.sendall(b"G")
            _expect(ours, b"P", self._layout)
        except BaseException:
            _hang_up(ours)
            raise
        return ours

    def _after_fork(self) -> None:
        """Start anew in the child after a fork: the servers belong to the parent, whose threads may hold the lock."""
        self._guard = threading.Lock()
        if self._hang_up is not None:
            self._hang_up.detach()
            self._hang_up = None
        if self._life is not None:
            self._life.close()  # this copy would keep the servers alive after the parent's end
            self._life = None


def default_folder() -> Path:
    """The folder of `embedded://`: in the user's runtime folder, else in the temporary folder, with the user id."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return secure(Path(runtime, "handfast"))
    return secure(Path(tempfile.gettempdir(), f"handfast-{os.getuid()}"))


def secure(folder: Path) -> Path:
    """Make the folder, or check an existing one. A user who can write to it can take locks away."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise _config_error(f"{folder} is not a folder (a link to one will not do): embedded:// cannot use it")
    if found.st_uid != os.geteuid():
        raise _config_error(f"{folder} belongs to user {found.st_uid}, not to us ({os.geteuid()}): use another folder")
    if found.st_mode & 0o077:
        raise _config_error(f"{folder} is open to other users: chmod 700 {folder}, or use another folder")
    return folder


def launch(layout: Layout, idle: float, its: socket.socket, lock_fd: int | None) -> None:
    """Start the supervisor, detached from this session, its terminal and its streams. It forks, so it is no child."""
    binary = binaries.for_embedded()
    fds = [its.fileno()] + ([] if lock_fd is None else [lock_fd])
    command = [_python(), "-I", "-S", "-c", BOOT, str(Path(__file__).parent.parent)]
    arguments = [layout.folder, layout.nodes, idle, binary, fds[0], -1 if lock_fd is None else lock_fd]
    with (layout.folder / "supervisor.log").open("ab") as log:
        subprocess.run(
            command + [str(argument) for argument in arguments],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            check=True,
        )


def _python() -> str:
    """The path of an interpreter. In a server that embeds Python (uWSGI, mod_wsgi), sys.executable is that server."""
    if "py" in Path(sys.executable).name:
        return sys.executable
    return str(Path(sys.prefix, "bin", "python3"))


def _expect(ours: socket.socket, word: bytes, layout: Layout) -> None:
    said = ours.recv(1)
    if said == word:
        return
    log = layout.folder / "supervisor.log"
    why = _rest(ours) if said == b"E" else log.read_text(errors="replace")[-2000:]
    raise StartError(f"the embedded servers did not start: {why or 'their supervisor ended at once'}")


def _rest(ours: socket.socket) -> str:
    parts = []
    while data := ours.recv(4096):
        parts.append(data)
    return b"".join(parts).decode(errors="replace")


def _hang_up(life: socket.socket) -> None:
    """Tell the supervisor to end, and wait for its end: it closes its socket last."""
    with life:
        try:
            life.shutdown(socket.SHUT_WR)
            life.settimeout(END_WITHIN)
            while life.recv(4096):
                pass
        except OSError:
            pass  # it is gone already, or slow: it ends without this wait


def _private_name() -> Path:
    # Only make a name: an object that starts no server must leave no folder. The supervisor removes the folder.
    return Path(tempfile.gettempdir(), f"handfast-{os.urandom(6).hex()}")


def _check_socket_length(layout: Layout) -> None:
    longest = max(len(os.fsencode(path)) for path in layout.open_sockets)
    if longest > LONGEST_SOCKET:
        raise _config_error(
            f"{layout.folder} is too long a path: a unix socket in it has {longest} bytes, the system allows "
            f"{LONGEST_SOCKET}; use a folder with a shorter path"
        )


def _config_error(message: str) -> Exception:
    from ..errors import ConfigError

    return ConfigError(message)


_instances: weakref.WeakSet[Embedded] = weakref.WeakSet()


def _forget_parent() -> None:
    for instance in list(_instances):
        instance._after_fork()


os.register_at_fork(after_in_child=_forget_parent)
