"""The subcommands, by name. A new one is a module with a click command, and a line in COMMANDS."""

from __future__ import annotations

import importlib
from typing import Any, Final

import click

COMMANDS: Final[dict[str, str]] = {}
"""The module of each command; the module calls it `command`."""


class ClosedPipe(Exception):
    """Nobody reads the output any more. click ends with status 1 on a BrokenPipeError, before the caller sees it."""


class Command(click.Command):
    """A command whose output may be closed early."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ClosedPipe from error


class Commands(Command, click.Group):
    """Imports a subcommand only when it is wanted: most need extras that others do not."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(COMMANDS[cmd_name]).command
        return command


@click.group(cls=Commands, invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...")
@click.version_option(package_name="handfast")
@click.pass_context
def handfast(ctx: click.Context) -> None:
    """Distributed locks on Redis and Valkey: tools."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
