"""The process that owns the servers of one embedded folder.

    starting -- all nodes answer, the starter says go --> open -- idle, SIGTERM, owner gone --> ending
        `-- the starter is gone, or a server failed --> ending

It holds the starter's flock while *starting*. It inherits the descriptor, so the flock stays if the starter
dies. It holds a flock of its own while *ending*. In between, new clients need no lock: a socket that exists
is ready.

If a node dies while *open*, the supervisor starts it again, with the data of the last clean stop or none. It
has a new run_id and no valid marker, so the restart guard notices; the other nodes keep their votes. One
supervisor owns all nodes, so that no other process has to find out which node is missing.

Ending when idle must be exact. First the supervisor renames the sockets, so that no new client can connect.
Next it asks each server twice whether it has clients: by the second time, a server has accepted every client
that connected before the rename. Only if there are none, it saves and stops the servers. Otherwise the
sockets get their names back.

A private folder has no flock and no idle time. The supervisor ends when the owner's side of the starter
socket closes, for whatever reason, and removes the folder.

It uses the standard library only, and does not import `handfast` itself: see `BOOT` in deployment.py.
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

# How often the supervisor checks for clients, as a part of the idle time; and the limits of that in seconds.
TICK, SHORTEST_TICK, LONGEST_TICK = 0.25, 0.05, 5.0


class Supervisor:
    """Runs the nodes of one folder. `lock_fd` is the starter's flock; None for a private folder."""

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
        os.write(self._alive_fd, b"%d\n" % os.getpid())  # for people who look into the folder
        for node in self._nodes:
            node.evict()
            node.spawn()
        for node in self._nodes:
            node.wait_ready()
        self._tell(b"U")
        if self._starter.recv(1) != b"G":
            raise StartError("the starter is gone")
        # Remove the stamp before a client can take a lock. Until here the saved data is complete.
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
            pass  # the starter is gone; `recv` notices that where it matters

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
                self._close()  # with a stamp, if there are no clients; otherwise _end is next
            if self._starter.fileno() in ready or self._told_to_end or self._unreachable():
                return
            self._revive()
            if not self._private and self._idle_long_enough() and self._close():
                return

    def _unreachable(self) -> bool:
        """Whether the folder or a socket in it was removed. New clients start other servers, so this one must end."""
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
        """Save and stop the servers if they have no clients. Otherwise change nothing and return False."""
        fd = open_lock(self._layout.lock)
        try:
            # If the lock is taken, a process is just making sure that the servers are up.
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
        """Whether there are no clients now, and none came since the last tick. The module's docstring says why twice."""
        return all(usage == self._seen and _all_quiet(usage) for usage in (self._usage(), self._usage()))

    def _shut_down(self) -> bool:
        for node in self._nodes:
            node.shut_down()
        statuses = [node.wait_gone() for node in self._nodes]
        return not any(statuses)

    def _end(self) -> None:
        """Kill all servers and remove all sockets, whatever happened before."""
        if self._told_to_end and not self._private:
            self._shut_down()  # there are clients, so no stamp; but the servers save leases and counters
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
        """Return a socket that becomes readable with every signal, so that the end of a child wakes the supervisor."""

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
    """Usage: `supervisor FOLDER NODES IDLE BINARY STARTER_FD LOCK_FD`. LOCK_FD is -1 for a private folder."""
    folder, nodes, idle, binary, starter_fd, lock_fd = sys.argv[1:]
    # The starter waits for this parent. init adopts the child, so the starter gets no zombie.
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
