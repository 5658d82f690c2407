"""Servers of our own, started on demand: what is behind `embedded://`.

*Shared* (a folder is given): one deployment per folder and user, for all processes of this machine.

    absent -- ensure(), under the folder's flock --> starting -- open_new if safe --> open -- idle --> absent

Open is what the file system says: a socket that takes connections. So ensure() first tries to connect,
which costs microseconds and no lock; only if a node is missing it takes the flock, looks again, and starts
a supervisor, which owns the servers from then on (see `supervisor`). Twenty processes that come at once
queue at the flock; one starts.

*Private* (no folder): the same supervisor on a temporary folder, ended by the closing of a socket that this
process holds: on close(), when the object is collected, and by the kernel when the process ends in any way.

`open_new` may say "no lease is outstanding" to the servers only when that is known: a folder never used,
one whose last stop left the `clean` stamp, the first start of a private one. After a crash it is not
called, and the restart guard waits until whatever was forgotten is over. It sees the servers under names
that nobody else knows.
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

START_WITHIN = READY_WITHIN + 2 * PATIENCE  # the supervisor's own limits, and some
END_WITHIN = 5.0
# `embedded` is put on the path by itself, so that `handfast/__init__` and site-packages are never loaded:
# the supervisor starts fast, stays small, and works however handfast was installed.
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
        self._life: socket.socket | None = None  # private only: the supervisor lives while this is open
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
        """Return when every node takes connections. Call it again whenever a connection dies."""
        if self._all_open():
            return
        with self._guard:
            if self.private:
                self._ensure_private()
            else:
                self._ensure_shared()

    def close(self) -> None:
        """End what belongs to this object alone. Shared servers end by themselves when nobody uses them."""
        with self._guard:
            self._closed = True
            self._end_private()

    def _all_open(self) -> bool:
        self._check_size()
        return all(map(listens, self.sockets))

    def _check_size(self) -> None:
        """Two groups of different size over the same servers would not exclude each other."""
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
        # Whoever removed the folder while we waited left us a lock that nobody else sees: queue again.
        if same_file(lock_fd, self._layout.lock) and try_flock(lock_fd) and self._absent(lock_fd):
            safe = self._layout.clean.exists() or not self._layout.group_size.exists()
            self._launch(safe, lock_fd).close()

    def _absent(self, lock_fd: int) -> bool:
        """Whether a supervisor must be launched, and is to take over the flock. If not, let go of it."""
        absent = False
        try:
            # A living supervisor brings a dead node back by itself; one that is ending is about to be gone.
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
        # A living supervisor brings a dead node back by itself.
        wait_until(lambda: self._all_open() or self._orphaned(), PATIENCE)
        if not self._all_open():
            # Leases of this process may be outstanding, so this is not a first start.
            self._end_private()
            self._start_private(first=False)

    def _orphaned(self) -> bool:
        """Whether the supervisor is gone: it says nothing more, so its side is readable only at its end."""
        return self._life is not None and bool(select.select([self._life], [], [], 0)[0])

    def _start_private(self, *, first: bool) -> None:
        self._layout.folder.mkdir(mode=0o700, exist_ok=not first)
        self._life = life = self._launch(first, None)
        self._hang_up = weakref.finalize(self, _hang_up, life)
        self._hang_up.atexit = False  # the kernel closes it then, without a pause at exit

    def _end_private(self) -> None:
        if self._hang_up is not None:
            self._hang_up()
        self._hang_up = None
        self._life = None

    def _launch(self, safe: bool, lock_fd: int | None) -> socket.socket:
        """Start the supervisor and see it through to open; the socket that ties its start to us."""
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
        """In the child: the servers are the parent's, and a thread left behind may hold our lock."""
        self._guard = threading.Lock()
        if self._hang_up is not None:
            self._hang_up.detach()
            self._hang_up = None
        if self._life is not None:
            self._life.close()  # our copy would keep the servers alive after the parent's end
            self._life = None


def default_folder() -> Path:
    """Where `embedded://` lives: in the user's runtime folder, else in the temporary one, by user id."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and Path(runtime).is_dir():
        return secure(Path(runtime, "handfast"))
    return secure(Path(tempfile.gettempdir(), f"handfast-{os.getuid()}"))


def secure(folder: Path) -> Path:
    """Make the folder, or check one that is there: whoever can write to it can take our locks away."""
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
    """Start the supervisor, detached from our session, terminal and streams. It forks, so it is no child."""
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
    """An interpreter. In a server with Python inside (uWSGI, mod_wsgi) sys.executable is that server."""
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
    """Tell the supervisor to end and wait until it has: it closes its side last of all."""
    with life:
        try:
            life.shutdown(socket.SHUT_WR)
            life.settimeout(END_WITHIN)
            while life.recv(4096):
                pass
        except OSError:
            pass  # it is gone, or so slow that it will end without us


def _private_name() -> Path:
    # Only a name: an object that starts nothing leaves nothing. The supervisor removes the folder.
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
