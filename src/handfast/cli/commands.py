"""Which commands there are. A new one is a module with a `COMMAND`, and a line in MODULES."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Final

from handfast.cli import USAGE, CommandError
from handfast.cli.declare import Command, parse

__all__ = ["MODULES", "command_named", "run"]

MODULES: Final = {
    "exec": "handfast.cli.exec",
    "ls": "handfast.cli.ls",
    "show": "handfast.cli.show",
    "top": "handfast.cli.top",
    "watch": "handfast.cli.watch",
    "break": "handfast.cli.breaks",
    "doctor": "handfast.cli.doctor",
    "dashboard": "handfast.cli.dashboard",
    "bootstrap": "handfast.cli.bootstrap",
    "serve-quorum": "handfast.cli.serve_quorum",
    "completion": "handfast.cli.completion",
}
"""By name, in the order of the help."""


def command_named(name: str) -> Command:
    if name not in MODULES:
        from difflib import get_close_matches

        near = get_close_matches(name, MODULES, 1)
        hint = f"did you mean {near[0]}?" if near else "see: handfast --help"
        raise CommandError(f"there is no command {name!r}; {hint}", USAGE)
    command: Command = importlib.import_module(MODULES[name]).COMMAND
    return command


def run(words: Sequence[str]) -> int:
    """Run what the command line says; the exit status."""
    if not words or words[0] in ("--help", "-h", "help"):
        return _help(words[1:])
    first, rest = words[0], words[1:]
    if first in ("--version", "-V"):
        from importlib.metadata import version

        print(f"handfast, version {version('handfast')}")
        return 0
    if first == "--complete":
        from handfast.cli.completion import complete

        return complete(rest)
    if first == "--complete-line":
        from handfast.cli.completion import complete_line

        return complete_line("".join(rest[:1]))
    if first.startswith("-"):
        raise CommandError(f"options come behind the command, not before it: {first}; see: handfast --help", USAGE)
    command = command_named(first)
    own = rest[: rest.index("--")] if "--" in rest else rest
    if "--help" in own or "-h" in own:
        return _help([first])
    return command.run(parse(command, rest))


def _help(words: Sequence[str]) -> int:
    from handfast.cli.help import general, of_command
    from handfast.cli.output import help_width

    print(of_command(command_named(words[0]), help_width()) if words else general(help_width()), end="")
    return 0
