"""The `handfast` command. Each subcommand is a module of its own, imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(args: Sequence[str] | None = None) -> int:
    """Run a command; its exit status. What is wrong is said in one line, with status 2."""
    try:
        status = _run(args)
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Nobody reads any more: nothing to say, and nothing to be flushed at the end. The status is that of SIGPIPE.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141


def _run(args: Sequence[str] | None) -> int:
    try:
        import click

        from handfast.cli.commands import ClosedPipe, handfast
    except ModuleNotFoundError as error:
        return _complain(f"{error}: pip install 'handfast[cli]'")
    try:
        status = handfast.main(args=list(args) if args is not None else None, standalone_mode=False, prog_name="handfast")
        return status if isinstance(status, int) else 0
    except click.ClickException as error:
        return _complain(error.format_message())
    except click.Abort:
        raise KeyboardInterrupt from None
    except ClosedPipe:
        raise BrokenPipeError from None


def _complain(text: str) -> int:
    print(f"handfast: {' '.join(text.split())}", file=sys.stderr)
    return 2
