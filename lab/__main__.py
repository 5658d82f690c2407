"""`python -m lab`: the flash sale. See `command` for the options."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from lab.running import run_command

if TYPE_CHECKING:
    import click

INSTALL = "pip install --group lab"


def main(args: Sequence[str] | None = None) -> int:
    """Run the lab and return its exit status. An error is one line on stderr and status 2."""
    arguments = sys.argv[1:] if args is None else args
    return run_command(_command, arguments, prog="lab", install=INSTALL)


def _command() -> click.Command:
    from lab.command import command

    return command


if __name__ == "__main__":
    sys.exit(main())
