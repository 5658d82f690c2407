"""Ctrl-C while the `handfast` command imports the package ends it without a traceback. Imported before all others."""

from __future__ import annotations

# The interpreter's own module: `signal` imports many others, and Ctrl-C may strike during that.
import _signal  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
import os
import sys

__all__: list[str] = []


def _is_command() -> bool:
    """Whether this process is the `handfast` command, by its script or by `python -m handfast`."""
    program: list[str] = getattr(sys, "argv", None) or [""]
    if program[0] == "-m":
        return ("-m", "handfast") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False)
    return os.path.basename(program[0]) == "handfast"


if _is_command() and _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until `cli.main` takes over
