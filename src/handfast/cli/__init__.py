"""The `handfast` command. It needs nothing but the base install; `top` also needs rich.

declare      what a command is: its arguments, options, examples
commands     which commands there are
help         help texts; `reference` makes docs/cli.md of them
completion   the candidates that a shell offers at Tab
output       tables, colours, JSON, progress
durations    30s, 500ms, 5m

Each command is a module of its own, which is imported when it is called.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn

from handfast.errors import ConfigError, Contended, HandfastError, NoQuorum, NotAcquired

__all__ = ["CONTENDED", "LOST", "UNAVAILABLE", "USAGE", "CommandError", "command", "main"]

USAGE = 2
UNAVAILABLE = 69
CONTENDED = 75
LOST = 76
"""Exit statuses: those of sysexits.h, and 2 for a wrong command line."""


class CommandError(Exception):
    """What ends a command: one line for stderr, and the exit status."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


def command() -> NoReturn:
    """The program `handfast`."""
    status = main()
    sys.stderr.flush()
    # The commands have closed what they opened. An orderly interpreter shutdown would make exec a fifth slower.
    os._exit(status)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. An error is one line on stderr."""
    # While the package was imported, Ctrl-C ended the process without a traceback: see handfast/_startup.py.
    quiet = signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    try:
        if quiet:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        _prepare_streams()
        status = _run(sys.argv[1:] if args is None else list(args))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt as interrupt:
        return 128 + getattr(interrupt, "number", signal.SIGINT)  # exec raises one for each signal
    except BrokenPipeError:
        # The reader is gone. Python must not flush stdout at exit either. The status is that of SIGPIPE.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    finally:
        if quiet:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _prepare_streams() -> None:
    # None: it was closed before this process started. A command may still run.
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without ✓ gets a question mark


def _run(arguments: list[str]) -> int:
    from handfast.cli.commands import run

    try:
        return run(arguments)
    except BrokenPipeError:
        raise
    except (CommandError, HandfastError, OSError) as error:
        return complain(f"{error}{_next_step(error)}", status_of(error))
    except Exception as error:
        if os.environ.get("HANDFAST_DEBUG"):
            raise
        text = (
            f"unexpected {type(error).__name__}: {error}; run it again with HANDFAST_DEBUG=1 to see where, and report it"
        )
        return complain(text, 70)


def status_of(error: Exception) -> int:
    """The exit status for an error."""
    if isinstance(error, CommandError):
        return error.status
    if isinstance(error, ConfigError):
        return USAGE
    if isinstance(error, Contended):
        return CONTENDED
    return UNAVAILABLE if isinstance(error, NotAcquired | OSError) else 1


def _next_step(error: Exception) -> str:
    """What to do about an error that does not say it."""
    if isinstance(error, Contended):
        from shlex import quote

        return f"; wait longer with --wait, or see: handfast show {quote(error.name)}"
    return "; see: handfast doctor" if isinstance(error, NoQuorum | ConnectionError) else ""


def complain(text: str, status: int) -> int:
    """Prints one line on stderr and returns the status."""
    print(one_line(text), file=sys.stderr, flush=True)
    return status


def one_line(text: str) -> str:
    """An error as one printable line. It may contain an owner, and owners may contain anything."""
    from handfast.cli.output import printable

    return f"handfast: {printable(' '.join(text.split()))}"
