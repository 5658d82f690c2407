"""The process that owns the servers of one embedded folder.

    starting -- all nodes answer, the starter says go --> open -- idle, SIGTERM, owner gone --> ending
        `-- the starter is gone, or a server failed --> ending

It holds the starter's flock while *starting* (the descriptor is inherited, so a starter that dies does not
let go of it), and one of its own while *ending*. In between newcomers need no lock: a socket that is there is
ready.

A node that dies while *open* is started again, alone, with the data of the last clean stop or none. It has a
new run_id and no valid marker, which is what the restart guard looks at; its neighbours keep their votes.
That is why one supervisor owns all nodes: nobody else has to find out who is missing.

Ending when idle must be exact. First the sockets are renamed, so that nobody can arrive any more; then the
servers are asked twice whether anybody is there (by the second time a server has accepted whoever connected
before the rename); only then they are saved and shut down. If somebody is there the sockets get their names
back.

A private folder has no flock and no idle time: it ends when the owner's side of the starter socket closes,
for whatever reason, and nothing of it stays.

Standard library only, and no import of `handfast` itself: see `embedded.BOOT`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

from .layout import Layout, open_lock, same_file, try_flock, unlock, wait_until
from .node import PATIENCE, Node, Usage, die_with_parent
from .process import StartError

# How often use is looked at, as a part of the idle time, and the limits of that in seconds.
TICK, SHORTEST_TICK, LONGEST_TICK = 0.25, 0.05, 5.0


class Supervisor:
    """`lock_fd` is the flock that the starter took, None for a private folder."""

    def __init__(self, layout: Layout, idle: float, binary: Path, starter: socket.socket, lock_fd: int | None) -> None:
        self._layout = layout
        self._idle = idle
        self._starter = starter
        self._lock_fd = lock_fd
        self._private = lock_fd is None
        self._alive_fd = open_lock(layout.supervisor)
        sockets = zip(layout.open_sockets, layout.off_sockets, strict=True)
        in_child = die_with_parent()
        self._nodes = [Node(binary, layout.data(i), on, off, in_child) for i, (on, off) in enumerate(sockets)]
        self._seen: list[Usage | None] = []
        self._last_use = 0.0
        self._told_to_end = False

    def run(self) -> None:
        wake = self._catch_signals()
        try:
            self._start()
            self._watch(wake)
        except OSError as error:
            self._tell(b"E" + str(error).encode())
            raise
        finally:
            self._end()

    # -- starting

    def _start(self) -> None:
        if not wait_until(lambda: try_flock(self._alive_fd), PATIENCE):
            raise StartError(f"another supervisor of {self._layout.folder} does not end")
        os.truncate(self._alive_fd, 0)
        os.write(self._alive_fd, b"%d\n" % os.getpid())  # for whoever looks into the folder
        for node in self._nodes:
            node.evict()
            node.spawn()
        for node in self._nodes:
            node.wait_ready()
        self._tell(b"U")
        if self._starter.recv(1) != b"G":
            raise StartError("the starter is gone")
        # The stamp goes before anybody can take a lock; until here the saved data is still the whole truth.
        self._layout.clean.unlink(missing_ok=True)
        self._layout.group_size.write_text(str(self._layout.nodes))
        self._open()
        self._release_start_lock()
        self._tell(b"P")
        if not self._private:
            self._starter.close()

    def _tell(self, message: bytes) -> None:
        try:
            self._starter.sendall(message)
        except OSError:
            pass  # it is gone; recv says so where it matters

    def _release_start_lock(self) -> None:
        if self._lock_fd is not None:
            unlock(self._lock_fd)
            os.close(self._lock_fd)
            self._lock_fd = None

    # -- open

    def _watch(self, wake: socket.socket) -> None:
        poll = select.poll()
        poll.register(wake, select.POLLIN)
        if self._private:
            poll.register(self._starter, select.POLLIN)
        tick = min(max(self._idle * TICK, SHORTEST_TICK), LONGEST_TICK)
        self._last_use = time.monotonic()
        while True:
            ready = {fd for fd, _ in poll.poll(None if self._private else tick * 1000)}
            if wake.fileno() in ready:
                wake.recv(4096)
            if self._told_to_end and not self._private:
                self._seen = self._usage()
                self._close()  # with a stamp if nobody is there; if not, _end is next
            if self._starter.fileno() in ready or self._told_to_end or self._unreachable():
                return
            self._revive()
            if not self._private and self._idle_long_enough() and self._close():
                return

    def _unreachable(self) -> bool:
        """Someone removed the folder, or a socket in it: newcomers will start anew, so this must end."""
        return self._folder_gone() or not all(node.on.exists() for node in self._nodes)

    def _folder_gone(self) -> bool:
        return not same_file(self._alive_fd, self._layout.supervisor)

    def _revive(self) -> None:
        for node in self._nodes:
            if not node.running:
                node.revive()
                self._last_use = time.monotonic()

    def _idle_long_enough(self) -> bool:
        usage = self._usage()
        if usage != self._seen or not _all_quiet(usage):
            self._last_use = time.monotonic()
        self._seen = usage
        return time.monotonic() - self._last_use >= self._idle

    def _usage(self) -> list[Usage | None]:
        return [node.usage() for node in self._nodes]

    def _open(self) -> None:
        for node in self._nodes:
            node.open()

    def _shut(self) -> None:
        for node in self._nodes:
            node.shut()

    # -- ending

    def _close(self) -> bool:
        """End the servers with everything saved, if nobody is there; else all is as before."""
        fd = open_lock(self._layout.lock)
        try:
            # A taken lock is somebody who is just making sure that the servers are up.
            if not try_flock(fd):
                return False
            self._shut()
            if not (self._nobody_there() and all(node.save() for node in self._nodes)):
                self._open()
                self._last_use = time.monotonic()
                return False
            if self._shut_down():
                self._layout.clean.touch()
            return True
        finally:
            unlock(fd)
            os.close(fd)

    def _nobody_there(self) -> bool:
        """Nobody new since the last tick, and nobody at all. Why twice: see the top."""
        return all(usage == self._seen and _all_quiet(usage) for usage in (self._usage(), self._usage()))

    def _shut_down(self) -> bool:
        for node in self._nodes:
            node.shut_down()
        statuses = [node.wait_gone() for node in self._nodes]
        return not any(statuses)

    def _end(self) -> None:
        """Whatever happened before, no server of ours is left and no socket leads nowhere."""
        if self._told_to_end and not self._private:
            self._shut_down()  # clients are about, so no stamp; but leases and counters are kept
        for node in self._nodes:
            node.kill()
        if self._private:
            import shutil

            shutil.rmtree(self._layout.folder, ignore_errors=True)
        elif not self._folder_gone():
            for node in self._nodes:
                node.remove_sockets()
        self._release_start_lock()

    def _catch_signals(self) -> socket.socket:
        """A socket that becomes readable with every signal: a child that ended wakes us at once."""

        def end(*_: object) -> None:
            self._told_to_end = True

        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.detach())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, end)
        signal.signal(signal.SIGINT, end)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        return reader


def _all_quiet(usage: list[Usage | None]) -> bool:
    return all(node is not None and node.quiet for node in usage)


def main() -> None:
    """`supervisor FOLDER NODES IDLE BINARY STARTER_FD LOCK_FD`, the last -1 for a private folder."""
    folder, nodes, idle, binary, starter_fd, lock_fd = sys.argv[1:]
    # The starter waits for this parent; the child belongs to init, so no zombie stays with the starter.
    if os.fork():
        os._exit(0)
    os.umask(0o077)
    os.chdir(folder)
    Supervisor(
        Layout(Path(folder), int(nodes)),
        float(idle),
        Path(binary),
        socket.socket(fileno=int(starter_fd)),
        int(lock_fd) if int(lock_fd) >= 0 else None,
    ).run()


if __name__ == "__main__":
    main()
