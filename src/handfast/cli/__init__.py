"""The `handfast` command. Each subcommand is a module of its own, imported when it is called."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

__all__ = ["main", "run_command"]

USAGE = (
    "Usage: handfast [--version] [--help] COMMAND [ARGS]...\n\n  The commands need an extra: pip install 'handfast[cli]'"
)


def main(args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status. An error is one line on stderr and status 2."""
    arguments = sys.argv[1:] if args is None else list(args)
    try:
        import click  # noqa: F401
    except ModuleNotFoundError:
        return _without_click(arguments)
    return run_command(_handfast, arguments, prog="handfast", install="pip install 'handfast[cli]'")


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

        from handfast.cli.commands import ClosedPipe

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


def _handfast() -> click.Command:
    from handfast.cli.commands import handfast

    return handfast


def _without_click(arguments: list[str]) -> int:
    """Help and version need no extra."""
    if arguments in ([], ["--help"]):
        print(USAGE)
        return 0
    if arguments == ["--version"]:
        from importlib.metadata import version

        print(f"handfast, version {version('handfast')}")
        return 0
    return _complain("handfast", "the commands need click: pip install 'handfast[cli]'")


def _complain(prog: str, text: str) -> int:
    print(f"{prog}: {' '.join(text.split())}", file=sys.stderr)
    return 2
