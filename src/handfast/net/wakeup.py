"""Wakes a waiting thread, whether it polls connections or has none."""

from __future__ import annotations

import _thread
import socket

__all__ = ["ThreadWakeup", "wake_up"]


class ThreadWakeup:
    """Wakes one thread, whether it polls connections or sleeps without any.

    `set` first sets `is_set` and then reads `sleeping`. `sleep` first sets `sleeping` and then reads `is_set`. So one of
    them always sees the other, and no wake-up is lost.
    """

    # Class attributes instead of __init__: each wait makes one of these and sets few of its attributes.
    is_set = False
    sleeping: _thread.LockType | None = None
    """The lock that a thread without connections sleeps on. `set` releases it."""
    wake_socket: socket.socket | None = None
    """The wake-up socket of the connections that the thread polls."""

    def set(self) -> None:
        self.is_set = True
        sleeping, wake_socket = self.sleeping, self.wake_socket
        if sleeping is not None:
            try:
                sleeping.release()
            except RuntimeError:
                pass  # another thread has released it already
        if wake_socket is not None:
            wake_up(wake_socket)

    def set_here(self) -> None:
        """Set the wake-up from the waiting thread itself, which needs no waking."""
        self.is_set = True

    def sleep(self, seconds: float) -> None:
        """Sleep until the wake-up is set, or for so many seconds; -1: without a timeout."""
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
        pass  # the socket is full, so the thread wakes anyway; or the connections are closed
