"""`handfast completion`: the candidates that a shell offers at Tab.

The script for the shell is small: it asks `handfast --complete WORD...` for candidates, where the last word is the one
that is being typed. So all shells use the declarations. Behind `--` the shell completes as for any command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from handfast.cli.declare import Argument, Command, servers

__all__ = ["COMMAND", "candidates", "complete"]

MOST_NAMES: Final = 200
PATIENCE: Final = 0.5
"""Seconds that a server has to return names, because a person waits."""

SCRIPTS: Final = {
    # bash splits words at : and =, so it sends the whole line, and the part that bash keeps is cut off. The names are
    # quoted, because bash inserts them unchanged.
    "bash": """\
_handfast() {
  local line="${COMP_LINE:0:COMP_POINT}" found one start
  COMPREPLY=()
  mapfile -t found < <("$1" --complete-line "$line" 2>/dev/null)
  start="${found[0]}"
  [[ -n $start ]] && printf -v start %q "$start"
  for one in "${found[@]:1}"; do
    printf -v one %q "$one"
    COMPREPLY+=("${one:${#start}}")
  done
  if [[ ${#COMPREPLY[@]} = 0 && $line = *' -- '* && ${line##* -- } != *' '* ]]; then
    COMPREPLY=($(compgen -c -- "$2"))
  fi
}
complete -o default -F _handfast handfast
""",
    "zsh": """\
#compdef handfast
_handfast() {
  local -a found
  local -i at=${words[(ie)--]}
  if (( at < CURRENT )); then
    shift at words
    (( CURRENT -= at ))
    _normal
    return
  fi
  found=("${(@f)$("${words[1]}" --complete "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  [[ -n "$found" ]] && compadd -a found || _files
}
compdef _handfast handfast
""",
    "fish": """\
function __handfast
  set -l words (commandline -opc) (commandline -ct)
  set -l at (contains -i -- -- $words)
  if test -n "$at" -a "$at" -lt (count $words)
    complete -C (string join ' ' -- (string escape -- $words[(math $at + 1)..-1]))
  else
    $words[1] --complete $words[2..] 2>/dev/null
  end
end
complete -c handfast -f -a '(__handfast)'
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


def complete_line(line: str) -> int:
    """For bash: print the start of the last word that stays, as bash quotes it, and the candidates for that word."""
    words = _words(line)
    last = words[-1]
    print(last[: max(last.rfind(":"), last.rfind("=")) + 1])
    return complete(words[1:])


def _words(line: str) -> list[str]:
    """The words of a command line that may end inside a quotation; the last one is being typed."""
    import shlex

    for close in ("", "'", '"'):
        try:
            return shlex.split(line + close) + ([""] if not close and line.endswith(" ") else [])
        except ValueError:
            continue
    return line.split(" ")


def candidates(words: Sequence[str]) -> Iterator[str]:
    from handfast.cli.commands import MODULES, command_named

    *before, start = words
    if not before:
        yield from (word for word in [*MODULES, "--help", "--version"] if word.startswith(start))
        return
    if before[0] not in MODULES or "--" in before:
        return  # the shell completes files itself
    command = command_named(before[0])
    flag, equals, _ = start.partition("=")
    valued = {option.flag: option for option in command.options if option.metavar}
    if before[-1] in valued:
        found: Sequence[str] = valued[before[-1]].choices
    elif equals and flag in valued:
        found = [f"{flag}={choice}" for choice in valued[flag].choices]
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
    """The held locks on the servers that the line names."""
    from glob import escape
    from itertools import islice
    from types import SimpleNamespace

    from handfast.cli import CommandError
    from handfast.errors import HandfastError
    from handfast.operate.locks import held
    from handfast.operate.servers import Deployment

    given = SimpleNamespace(url=_values(before, "--url"), prefix=(_values(before, "--prefix") or ["handfast:"])[-1])
    try:
        with Deployment(servers(given), prefix=given.prefix, timeout=PATIENCE) as deployment:
            names = (info.name for info in held(deployment, f"{escape(start)}*"))
            yield from (name for name in islice(names, MOST_NAMES) if name.isprintable())
    except (OSError, HandfastError, CommandError):
        return  # no error messages while a person types


def _values(words: Sequence[str], flag: str) -> list[str]:
    """The values of an option, in both ways to write it."""
    behind = [words[i + 1] for i, word in enumerate(words[:-1]) if word == flag]
    return behind + [word.partition("=")[2] for word in words if word.startswith(f"{flag}=")]


COMMAND: Final = Command(
    name="completion",
    summary="Print a script that completes commands, options and names with Tab.",
    description="""
Prints a script for the shell. It completes commands, options and, for show and break, the names of locks that are
held.
""",
    run=_script,
    arguments=(Argument("SHELL", "bash, zsh or fish.", choices=tuple(SCRIPTS)),),
    examples=(
        ("For bash, in ~/.bashrc.", 'eval "$(handfast completion bash)"'),
        ("For zsh, in ~/.zshrc, behind compinit.", 'eval "$(handfast completion zsh)"'),
        ("For fish.", "handfast completion fish > ~/.config/fish/completions/handfast.fish"),
    ),
)
