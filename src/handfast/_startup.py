"""Ctrl-C while the `handfast` command imports the package ends it without a traceback. Imported before all others."""

from __future__ import annotations

import os
import signal
import sys

__all__: list[str] = []


def _is_command() -> bool:
    """This process is the `handfast` command, by its script or by `python -m handfast`."""
    program: list[str] = getattr(sys, "argv", None) or [""]
    if program[0] == "-m":
        return ("-m", "handfast") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return os.path.basename(program[0]) == "handfast"


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # until `cli.main` takes over
