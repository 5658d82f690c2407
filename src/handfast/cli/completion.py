"""`handfast completion`: what a shell offers when Tab is pressed.

The script for the shell is small: it asks `handfast --complete WORD...` for candidates, where the last word is the one
that is being typed. So the shells know what the declarations say.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from handfast.cli.declare import Argument, Command, servers

__all__ = ["COMMAND", "candidates", "complete"]

MOST_NAMES: Final = 200
PATIENCE: Final = 0.5
"""Seconds that a server has to tell names: a person waits."""

SCRIPTS: Final = {
    "bash": """\
_handfast() {
  local IFS=$'\\n'
  local words=("${COMP_WORDS[@]:1:COMP_CWORD}")
  COMPREPLY=($(compgen -W "$(handfast --complete "${words[@]}" 2>/dev/null)" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _handfast handfast
""",
    "zsh": """\
#compdef handfast
_handfast() {
  local -a found
  found=("${(@f)$(handfast --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n "$found" ]] && compadd -a found || _files
}
compdef _handfast handfast
""",
    "fish": """\
complete -c handfast -f -a '(handfast --complete (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


def _script(options: Any) -> int:
    print(SCRIPTS[options.shell], end="")
    return 0


def complete(words: Sequence[str]) -> int:
    """Print the candidates for the last word, one on each line."""
    for candidate in candidates(list(words) or [""]):
        print(candidate)
    return 0


def candidates(words: Sequence[str]) -> Iterator[str]:
    from handfast.cli.commands import MODULES, command_named

    *before, start = words
    if not before:
        yield from (word for word in [*MODULES, "--help", "--version"] if word.startswith(start))
        return
    if before[0] not in MODULES or "--" in before:
        return  # the shell knows files by itself
    command = command_named(before[0])
    previous = next((option for option in command.options if option.flag == before[-1] and option.metavar), None)
    if previous is not None:
        found: Sequence[str] = previous.choices
    elif start.startswith("-"):
        flags = [flag for option in command.options for flag in (option.flag, option.negative) if flag]
        found = [*flags, "--help"]
    else:
        found = list(_arguments(command, before[1:], start))
    yield from (word for word in found if word.startswith(start))


def _arguments(command: Command, before: Sequence[str], start: str) -> Iterator[str]:
    """Candidates for the next argument that is not an option."""
    valued = {option.flag for option in command.options if option.metavar}
    given = [
        word for i, word in enumerate(before) if not word.startswith("-") and (i == 0 or before[i - 1] not in valued)
    ]  # fmt: skip
    if len(given) >= len(command.arguments):
        return
    argument: Argument = command.arguments[len(given)]
    yield from argument.choices
    if argument.completes == "names":
        yield from _names(before, start)


def _names(before: Sequence[str], start: str) -> Iterator[str]:
    """Locks that are held, of the servers that the line names."""
    from itertools import islice
    from types import SimpleNamespace

    from handfast.errors import HandfastError
    from handfast.operate.locks import held
    from handfast.operate.servers import Deployment

    urls = [before[i + 1] for i, word in enumerate(before[:-1]) if word == "--url"]
    try:
        with Deployment(servers(SimpleNamespace(url=urls)), timeout=PATIENCE) as deployment:
            names = (info.name for info in held(deployment, "*") if info.name.startswith(start))
            yield from (name for name in islice(names, MOST_NAMES) if name.isprintable())
    except (OSError, HandfastError):
        return  # a person who presses Tab is not to read errors


COMMAND: Final = Command(
    name="completion",
    summary="Print a script that completes commands, options and names with Tab.",
    description="""
Prints a script for the shell. It completes commands and options, and the names of locks that are held for show and
break.
""",
    run=_script,
    arguments=(Argument("SHELL", "bash, zsh or fish.", choices=tuple(SCRIPTS)),),
    examples=(
        ("For bash, in ~/.bashrc.", 'eval "$(handfast completion bash)"'),
        ("For zsh, in ~/.zshrc, behind compinit.", 'eval "$(handfast completion zsh)"'),
        ("For fish.", "handfast completion fish > ~/.config/fish/completions/handfast.fish"),
    ),
)
