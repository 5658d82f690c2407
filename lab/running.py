"""Runs the lab's click command: an error is one line on stderr, also if click itself is missing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["run_command"]


def run_command(load: Callable[[], click.Command], args: Sequence[str], *, prog: str, install: str) -> int:
    """Run the click command that `load` imports. `install` tells the user how to get a module that is missing."""
    try:
        status = _run(load, args, prog, install)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader is gone. Python must not flush stdout at exit either. The status is that of SIGPIPE.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(load: Callable[[], click.Command], args: Sequence[str], prog: str, install: str) -> int:
    try:
        import click

        from lab.closed_pipe import ClosedPipe

        command = load()
    except ModuleNotFoundError as error:
        return _complain(prog, f"{error}: {install}")
    try:
        status = command.main(args=list(args), standalone_mode=False, prog_name=prog)
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        return _complain(prog, error.format_message())
    except click.Abort:
        raise KeyboardInterrupt from None
    except ClosedPipe:
        raise BrokenPipeError from None


def _complain(prog: str, text: str) -> int:
    print(f"{prog}: {' '.join(text.split())}", file=sys.stderr)
    return 2
