"""What wakes a thread that waits, with or without connections to listen to."""

from __future__ import annotations

import _thread
import socket

__all__ = ["ThreadBell", "pull"]


class ThreadBell:
    """Wakes one thread, parked with or without a lane.

    Whoever rings says so first and then looks for who sleeps; whoever goes to sleep says so first and then looks whether
    it has rung. So one of them sees the other.
    """

    # One is made for each waiting, and little of it is used: hence no __init__.
    rung = False
    silent: _thread.LockType | None = None
    """Of a thread that sleeps without a lane: free when it has rung."""
    rope: socket.socket | None = None
    """Of the lane that its thread polls."""

    def ring(self) -> None:
        self.rung = True
        silent, rope = self.silent, self.rope
        if silent is not None:
            try:
                silent.release()
            except RuntimeError:
                pass  # it has rung already
        if rope is not None:
            pull(rope)

    def note(self) -> None:
        """The same, by the thread itself."""
        self.rung = True

    def sleep(self, seconds: float) -> None:
        """Until it has rung, or so long; -1: however long it takes."""
        self.silent = silent = _thread.allocate_lock()
        silent.acquire()
        if not self.rung:
            silent.acquire(True, seconds)
        self.silent = None


def pull(rope: socket.socket) -> None:
    """Wake whoever polls the lane."""
    try:
        rope.send(b"!")
    except OSError:
        pass  # it is full, so the bell rings already; or the lane is closed
