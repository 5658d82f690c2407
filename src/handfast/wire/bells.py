"""What wakes a thread that waits, with or without connections to listen to."""

from __future__ import annotations

import _thread
import socket

__all__ = ["ThreadBell", "pull"]


class ThreadBell:
    """Wakes one thread, parked with or without a lane. A lock that is free when it has rung."""

    __slots__ = ("rope", "silent")

    def __init__(self) -> None:
        self.silent = _thread.allocate_lock()
        self.silent.acquire()
        self.rope: socket.socket | None = None
        """Of the lane in which its thread is parked."""

    def ring(self) -> None:
        try:
            self.silent.release()
        except RuntimeError:
            return  # it has rung already
        rope = self.rope
        if rope is not None:
            pull(rope)

    def note(self) -> None:
        try:
            self.silent.release()
        except RuntimeError:
            pass  # it has rung already, perhaps by another thread just now


def pull(rope: socket.socket) -> None:
    """Wake whoever polls the lane."""
    try:
        rope.send(b"!")
    except OSError:
        pass  # it is full, so the bell rings already; or the lane is closed
