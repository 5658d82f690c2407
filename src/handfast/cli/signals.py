"""The signals of `handfast exec`: a thread receives them and passes them on.

All other threads block them, so that this thread sees the sender of each. The terminal sends its signals (Ctrl-C, Ctrl-Z,
a new size) to all processes of its foreground group; the command gets these directly, and must not get them twice. A
signal that another process sends to this process alone is passed on.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

__all__ = ["Signals", "Stopped"]

SI_KERNEL: Final = 0x80
"""Linux: the terminal, and not a process, has sent it."""
STOPS: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
"""Signals that stop the process until SIGCONT."""
ENDS: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM})
OTHERS: Final = frozenset({signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGCONT, signal.SIGWINCH})
NUDGE: Final = signal.SIGURG
"""Wakes the main thread. A superfluous one does no harm."""


class Stopped(KeyboardInterrupt):
    """A signal has ended the wait for the lock. A subclass of KeyboardInterrupt, so it is handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


class Signals:
    """Blocks the signals of this process and receives them in a thread. Made in the main thread, before any other thread.

    waiting    for the lock: a signal that ends programs raises Stopped in the main thread, once
    starting   the command: signals are kept
    running    signals go to `forward`
    """

    def __init__(self, forward: Callable[[int, bool], None]) -> None:
        self._forward = forward
        """Called with a signal, and whether the command has got it: in the signal thread, or later in the main thread."""
        # Reentrant: the handler of the nudge may run while the main thread holds it.
        self._lock = threading.RLock()
        self._state = "waiting"
        self._kept: list[tuple[int, bool]] = []
        self._main = threading.get_ident()
        # A signal that is ignored from the start, as under nohup, stays ignored.
        self._set = {number for number in ENDS | STOPS | OTHERS if signal.getsignal(number) != signal.SIG_IGN}
        signal.signal(NUDGE, self._nudged)
        self.old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, self._set)
        """The signal mask for the command, which must not inherit this one."""
        threading.Thread(target=self._take, name="handfast-signals", daemon=True).start()

    def starting(self) -> None:
        """The lock is acquired. Raises Stopped if a signal was faster; later signals raise nothing."""
        with self._lock:
            self._raise_first()
            self._state = "starting"

    def running(self) -> None:
        """The command runs: from now on it gets the signals."""
        with self._lock:
            self._state = "running"
            kept, self._kept = self._kept, []
        for number, shared in kept:
            self._forward(number, shared)

    def _raise_first(self) -> None:
        first = next((number for number, _ in self._kept if number in ENDS), None)
        if first is not None:
            self._state = "stopping"  # a second signal must not interrupt the clean-up
            raise Stopped(first)

    def _nudged(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, between two steps."""
        with self._lock:
            if self._state == "waiting":
                self._raise_first()

    def _take(self) -> None:
        while True:
            number, shared = _next(self._set)
            with self._lock:
                state = self._state
                if state != "running" and number in ENDS:
                    self._kept.append((number, shared))
            if state == "running":
                self._forward(number, shared)
            elif state == "waiting" and number in ENDS:
                signal.pthread_kill(self._main, NUDGE)
            if number in STOPS:
                # The shell notices that this process stops. The command has stopped too, or has got the signal.
                os.kill(os.getpid(), signal.SIGSTOP)


def _next(wanted: set[signal.Signals]) -> tuple[int, bool]:
    """Wait for a signal: its number, and whether the terminal has sent it to the command as well."""
    wait: Any = getattr(signal, "sigwaitinfo", None)
    if wait is not None:
        info = wait(wanted)
        return info.si_signo, info.si_code == SI_KERNEL
    # macOS does not tell the sender: in the foreground, a signal that a terminal can send counts as the terminal's.
    number = signal.sigwait(wanted)
    return number, number in (signal.SIGINT, signal.SIGQUIT, signal.SIGWINCH, *STOPS) and in_foreground()


def in_foreground() -> bool:
    """Whether this process is in the terminal's foreground group, which gets the terminal's signals."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
