"""A click command whose output may be closed early."""

from __future__ import annotations

from typing import Any

import click

__all__ = ["ClosedPipe", "Command"]


class ClosedPipe(Exception):
    """Nobody reads the output any more. click ends with status 1 on a BrokenPipeError, before the caller sees it."""


class Command(click.Command):
    """A command whose output may be closed early."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ClosedPipe from error
