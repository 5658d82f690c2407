"""Help texts, made from the declarations of the commands."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Final

from handfast.cli.commands import MODULES, command_named
from handfast.cli.declare import Command, Option

__all__ = ["general", "of_command", "synopsis"]

LEFT: Final = 24
"""Columns for the names of options, at most."""
ABOUT: Final = """\
Distributed locks on Redis and Valkey, for shell scripts and for operators. Without a URL the commands use embedded://, a
server that is started on demand and shared by all processes of this user on this machine. For locks between machines
give --url, or set $HANDFAST_URL; several URLs are a quorum."""
EXAMPLES: Final = (
    ("Run a cron job on one of many machines.", "handfast exec nightly --wait 0 -- ./backup.sh"),
    ("See who holds what.", "handfast ls"),
    ("Check the servers.", "handfast doctor --url redis://10.0.0.1 --url redis://10.0.0.2 --url redis://10.0.0.3"),
    ("Complete commands and names with the Tab key.", 'eval "$(handfast completion bash)"'),
)


def general(width: int) -> str:
    """The text of `handfast --help`."""
    rows = [(name, command_named(name).summary) for name in MODULES]
    parts = [
        "Usage: handfast COMMAND [OPTIONS] [ARGS]...\n",
        _paragraphs(ABOUT, width),
        _section("Commands", rows, width),
        _section(
            "Options", [("--help", "Show this text, or that of a command."), ("--version", "Show the version.")], width
        ),
        _examples(EXAMPLES, width),
        "'handfast COMMAND --help' tells more about a command.\n",
    ]
    return "\n".join(parts)


def of_command(command: Command, width: int) -> str:
    """The text of `handfast COMMAND --help`."""
    parts = [f"Usage: {synopsis(command)}\n", _paragraphs(command.description, width)]
    if command.arguments:
        parts.append(_section("Arguments", [(each.name, each.help) for each in command.arguments], width))
    options = [(_left(option), option.help) for option in command.options]
    parts.append(_section("Options", [*options, ("--help", "Show this text.")], width))
    if command.examples:
        parts.append(_examples(command.examples, width))
    if command.statuses:
        parts.append(_section("Exit status", command.statuses, width))
    return "\n".join(parts)


def synopsis(command: Command) -> str:
    words = [each.name if each.default is None else f"[{each.name}]" for each in command.arguments]
    return " ".join(
        ["handfast", command.name, *words, "[OPTIONS]", *([f"-- {command.program}"] if command.program else [])]
    )


def _left(option: Option) -> str:
    if option.negative:
        return f"{option.flag}, {option.negative}"
    return f"{option.flag} {'|'.join(option.choices) or option.metavar}".strip()


def _paragraphs(text: str, width: int) -> str:
    filled = [
        textwrap.fill(" ".join(paragraph.split()), width, initial_indent="  ", subsequent_indent="  ")
        for paragraph in text.strip().split("\n\n")
    ]
    return "\n\n".join(filled) + "\n"


def _section(title: str, rows: Iterable[tuple[str, str]], width: int) -> str:
    rows = list(rows)
    left = min(LEFT, max(len(name) for name, _ in rows))
    lines = [f"{title}:"]
    for name, text in rows:
        filled = textwrap.wrap(text, width - left - 4)
        if len(name) > left:
            lines.append(f"  {name}")
            name = ""
        lines += [f"  {name:<{left}}  {filled[0]}", *(f"{'':<{left + 4}}{line}" for line in filled[1:])]
    return "\n".join(lines) + "\n"


def _examples(examples: Iterable[tuple[str, str]], width: int) -> str:
    """Examples. A command line is never wrapped, so that it can be copied."""
    lines = ["Examples:"]
    for what, command in examples:
        lines += [f"  # {line}" for line in textwrap.wrap(what, width - 4)]
        lines.append(f"  {command}")
    return "\n".join(lines) + "\n"
