"""What wakes a thread that waits, with or without connections to listen to."""

from __future__ import annotations

import _thread
import socket

__all__ = ["ThreadWakeup", "wake_up"]


class ThreadWakeup:
    """Wakes one thread, parked with or without connections.

    The setter sets `is_set` first and then looks for the sleeper; the sleeper announces itself first and then looks at
    `is_set`. So one of them sees the other.
    """

    # One is made for each waiting, and little of it is used: hence no __init__.
    is_set = False
    sleeping: _thread.LockType | None = None
    """Of a thread that sleeps without connections: free when it is set."""
    wake_socket: socket.socket | None = None
    """Of the connections that its thread polls."""

    def set(self) -> None:
        self.is_set = True
        sleeping, wake_socket = self.sleeping, self.wake_socket
        if sleeping is not None:
            try:
                sleeping.release()
            except RuntimeError:
                pass  # it is set already
        if wake_socket is not None:
            wake_up(wake_socket)

    def set_here(self) -> None:
        """The same, by the thread itself."""
        self.is_set = True

    def sleep(self, seconds: float) -> None:
        """Until it is set, or so long; -1: however long it takes."""
        self.sleeping = sleeping = _thread.allocate_lock()
        sleeping.acquire()
        if not self.is_set:
            sleeping.acquire(True, seconds)
        self.sleeping = None


def wake_up(wake_socket: socket.socket) -> None:
    """Wake the thread that polls the connections."""
    try:
        wake_socket.send(b"!")
    except OSError:
        pass  # it is full, so the thread wakes anyway; or the connections are closed
