"""on_lost="interrupt": raise LeaseLost in the thread that is inside a `with`, when its lease is lost.

CPython raises an exception in another thread between two bytecodes of that thread. A blocking call into C, such as
`time.sleep(60)` or a read from a socket, is not interrupted: the exception comes when it returns. Otherwise it may strike
anywhere, even inside other libraries, like KeyboardInterrupt in the main thread. Each thread has room for one such
exception, so a second one replaces the first.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Any

from handfast.core.hold import Hold
from handfast.errors import ConfigError, LeaseLost

__all__ = ["ThreadBody", "check_available"]


def check_available() -> None:
    if not hasattr(ctypes, "pythonapi"):
        raise ConfigError("on_lost='interrupt' needs CPython: use a callback, or look at lease.lost")


_lock = threading.Lock()
"""Held while an exception is set or cleared, so that none can strike after the end of its block."""
_open: dict[int, list[ThreadBody]] = {}
"""The open blocks of each thread, the innermost last."""


def _renew_lock() -> None:
    """Make a new lock in a child after a fork: another thread of the parent may hold the old one. Forget the blocks of
    threads that do not exist here: a new thread may get the ident of one of them."""
    global _lock
    _lock = threading.Lock()
    for thread in [each for each in _open if each != threading.get_ident()]:
        del _open[thread]


os.register_at_fork(after_in_child=_renew_lock)


class ThreadBody:
    """A thread inside a `with` block. It is interrupted at most once, and never after the block."""

    def __init__(self, hold: Hold, thread: int, loss: Callable[[], LeaseLost]) -> None:
        self._thread = thread
        self._loss = loss
        self._left = False
        self._struck = False
        """The exception was raised in the thread. Before that, another block's exception may have replaced it."""
        self.kind: type[LeaseLost] | None = None
        """The class of the exception."""
        with _lock:
            _open.setdefault(thread, []).append(self)
        hold.when_lost(self._interrupt)

    def _interrupt(self) -> None:
        with _lock:
            if not self._left and self.kind is None:
                self.kind = self._without_arguments(self._loss())
                _raise_in(self._thread, self.kind)

    def leave(self) -> None:
        """End the block. An exception that has not struck yet is cleared. If one strikes in here, call this again."""
        with _lock:
            self._left = True
            bodies = _open.get(self._thread, [])
            if self in bodies:
                bodies.remove(self)
            if not bodies:
                _open.pop(self._thread, None)
            if self.kind is not None:
                _raise_in(self._thread, None)

    def left(self) -> None:
        """Called after the end of the block: an enclosing block whose exception was replaced or cleared gets it again."""
        with _lock:
            waiting = [body for body in _open.get(self._thread, ()) if body.kind is not None and not body._struck]
            if waiting:
                _raise_in(self._thread, waiting[-1].kind)

    def _without_arguments(self, error: LeaseLost) -> type[LeaseLost]:
        """A class whose instances equal this error. Python raises in another thread by a call without arguments."""
        body = self

        class Interrupt(LeaseLost):
            def __init__(self) -> None:
                body._struck = True
                super().__init__(error.name, owner=error.owner, token=error.token, reason=error.reason)

            def __reduce__(self) -> tuple[Any, ...]:
                return error.__reduce__()  # this class is local, so pickle does not find it

        Interrupt.__name__ = Interrupt.__qualname__ = LeaseLost.__name__
        Interrupt.__module__ = LeaseLost.__module__
        return Interrupt


def _raise_in(thread: int, kind: type[LeaseLost] | None) -> None:
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
