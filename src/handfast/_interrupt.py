"""on_lost="interrupt": raise LeaseLost in the thread that is inside a `with`, when its lease is lost.

CPython raises an exception in another thread between two bytecodes of that thread. A blocking call into C, such as
`time.sleep(60)` or a read from a socket, is not interrupted: the exception comes when it returns. Otherwise it may strike
anywhere, even inside other libraries, like KeyboardInterrupt in the main thread. Each thread has room for one such
exception, so a second one replaces the first.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from handfast.core.hold import Hold
from handfast.errors import ConfigError, LeaseLost

__all__ = ["ThreadBody", "check_available"]


def check_available() -> None:
    if not hasattr(ctypes, "pythonapi"):
        raise ConfigError("on_lost='interrupt' needs CPython: use a callback, or look at lease.lost")


class ThreadBody:
    """A thread inside a `with` block. It is interrupted at most once, and never after the block."""

    def __init__(self, hold: Hold, thread: int, loss: Callable[[], LeaseLost]) -> None:
        self._lock = threading.Lock()
        """Held while an exception is set or cleared, so that none can strike after the end of the block."""
        self._thread = thread
        self._loss = loss
        self._left = False
        self.kind: type[LeaseLost] | None = None
        """The class of the exception that was raised in the thread."""
        hold.when_lost(self._interrupt)

    def _interrupt(self) -> None:
        with self._lock:
            if not self._left and self.kind is None:
                self.kind = _without_arguments(self._loss())
                _raise_in(self._thread, self.kind)

    def leave(self) -> None:
        """End the block. An exception that has not struck yet is cleared."""
        with self._lock:
            if not self._left and self.kind is not None:
                _raise_in(self._thread, None)
            self._left = True


def _raise_in(thread: int, kind: type[LeaseLost] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))


def _without_arguments(error: LeaseLost) -> type[LeaseLost]:
    """A class whose instances equal this error. To raise in another thread, Python calls a class without arguments."""

    class Interrupt(LeaseLost):
        def __init__(self) -> None:
            super().__init__(error.name, owner=error.owner, token=error.token, reason=error.reason)

    Interrupt.__name__ = Interrupt.__qualname__ = LeaseLost.__name__
    Interrupt.__module__ = LeaseLost.__module__
    return Interrupt
