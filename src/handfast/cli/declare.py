"""The declaration of a command. The parser, the help, docs/cli.md and the shell completion are made from it."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from handfast.cli import USAGE, CommandError
from handfast.cli.durations import duration
from handfast.options import names_of

__all__ = [
    "COUNT",
    "JSON",
    "SERVER_OPTIONS",
    "Argument",
    "Command",
    "Option",
    "interval",
    "lock_name",
    "number",
    "parse",
    "servers",
]


class Option(NamedTuple):
    """An option with a value, or a switch."""

    flag: str
    help: str
    metavar: str = ""
    """What its value is called; empty for a switch."""
    convert: Callable[[str], Any] = str
    default: Any = None
    choices: tuple[str, ...] = ()
    repeat: bool = False
    negative: str = ""
    """The flag that turns a switch off."""

    @property
    def name(self) -> str:
        return self.flag.lstrip("-").replace("-", "_")


class Argument(NamedTuple):
    """A word that is not an option."""

    name: str
    help: str
    default: str | None = None
    """None if it must be given."""
    convert: Callable[[str], Any] = str
    completes: str = ""
    """`names`: the shell offers the names of locks that are held."""
    choices: tuple[str, ...] = ()


class Command(NamedTuple):
    """One subcommand."""

    name: str
    summary: str
    """One line."""
    description: str
    """Paragraphs, with an empty line between two."""
    run: Callable[[Any], int]
    """Gets the options as attributes; returns the exit status."""
    arguments: tuple[Argument, ...] = ()
    options: tuple[Option, ...] = ()
    examples: tuple[tuple[str, str], ...] = ()
    """What it is good for, and the command line."""
    statuses: tuple[tuple[str, str], ...] = ()
    """Exit statuses and what they mean."""
    program: str = ""
    """What comes behind `--`, if anything does."""


SERVER_OPTIONS: Final = (
    Option(
        "--url",
        "A server, once for each node of a quorum: redis://, rediss://, valkey://, unix://, redis+sentinel://, "
        "redis+cluster:// or embedded://. Without it $HANDFAST_URL, several separated by spaces; without that "
        "embedded://, a server that is shared by all processes of this user on this machine.",
        "URL",
        repeat=True,
    ),
    Option("--prefix", "How the keys of the locks begin, 'handfast:' by default.", "TEXT", default="handfast:"),
)


def servers(options: Any) -> list[str]:
    """The servers that a command uses."""
    import os

    if options.url and not all(map(str.strip, options.url)):
        # Not embedded://: ten machines would have ten separate locks.
        raise CommandError("--url is empty: is a variable not set? For a server on this machine write embedded://", USAGE)
    given = options.url or [os.environ.get("HANDFAST_URL", "")]
    return [url for each in given for url in each.split()] or ["embedded://"]


class _Parser(argparse.ArgumentParser):
    """argparse prints its usage and exits. Here an error is one line with the next step."""

    def error(self, message: str) -> NoReturn:
        raise CommandError(f"{message}; see: {self.prog} --help", USAGE)


def parse(command: Command, words: Sequence[str]) -> Any:
    """The options and arguments of a command, as attributes; `program` is what came behind `--`."""
    words, program = _split(command, list(words))
    parser = _Parser(prog=f"handfast {command.name}", add_help=False, allow_abbrev=False)
    for option in command.options:
        _add(parser, option)
    for argument in command.arguments:
        how: dict[str, Any] = {} if argument.default is None else {"nargs": "?", "default": argument.default}
        if argument.choices:
            how["choices"] = argument.choices
        parser.add_argument(argument.name.lower(), metavar=argument.name, type=_checked(argument.convert), **how)
    found = parser.parse_args(words)
    found.program = program
    return found


def _split(command: Command, words: list[str]) -> tuple[list[str], list[str]]:
    """The command's own words, and the program with its arguments."""
    if not command.program:
        return words, []
    if "--" not in words:
        raise CommandError(f"put -- before the command to run; see: handfast {command.name} --help", USAGE)
    at = words.index("--")
    if at == len(words) - 1:
        raise CommandError(f"a command is missing behind --; see: handfast {command.name} --help", USAGE)
    return words[:at], words[at + 1 :]


def _add(parser: argparse.ArgumentParser, option: Option) -> None:
    if not option.metavar:
        parser.add_argument(option.flag, dest=option.name, action="store_true", default=option.default or False)
        if option.negative:
            parser.add_argument(option.negative, dest=option.name, action="store_false", default=option.default)
        return
    parser.add_argument(
        option.flag,
        dest=option.name,
        metavar=option.metavar,
        default=option.default,
        type=_checked(option.convert),
        action="append" if option.repeat else "store",
        choices=option.choices or None,
    )


def _checked(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """argparse hides the text of a ValueError, but shows the text of its own error."""

    def checked(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return checked


def lock_name(text: str) -> str:
    """A name that a lock can have."""
    names_of(text)  # a ConfigError, which is a ValueError, has the reason
    return text


def number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


def _pause(text: str) -> float:
    seconds = duration(text)
    if not seconds:
        raise ValueError("the pause between two looks must not be 0: the servers have other work")
    return seconds


def interval(default: str) -> Option:
    return Option("--interval", f"How often to look, {default} by default.", "DURATION", _pause, duration(default))


COUNT: Final = Option("--count", "End after so many looks.", "N", number, 0)


JSON: Final = Option("--json", "Print JSON, for programs.")
