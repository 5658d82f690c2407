"""The subcommands, by name. A new one is a module with a click command, and a line in COMMANDS."""

from __future__ import annotations

import importlib
from typing import Final

import click

COMMANDS: Final = {"lab": "handfast.cli.lab"}
"""Where each command is; the module calls it `command`."""


class Commands(click.Group):
    """Imports a subcommand only when it is wanted: most need extras that others do not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=Commands, no_args_is_help=True)
@click.version_option(package_name="handfast")
def handfast() -> None:
    """Distributed locks on Redis and Valkey: tools."""
