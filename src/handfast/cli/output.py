"""The output of the commands: tables that fit the terminal, colours, JSON, progress.

Names and owners come from servers, so they may contain anything. `printable` keeps control characters from a terminal.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import fields
from shutil import get_terminal_size
from typing import Any, Final, NamedTuple, TextIO

__all__ = [
    "Column",
    "Progress",
    "Table",
    "coloured",
    "help_width",
    "is_terminal",
    "note",
    "pause",
    "print_json",
    "printable",
    "terminal_width",
    "to_json",
]

CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
GAP: Final = "  "
PROGRESS_AFTER: Final = 1.0
"""Seconds after which progress is shown."""
PROGRESS_EVERY: Final = 0.1
WIDEST_HELP: Final = 100


def is_terminal(stream: TextIO) -> bool:
    return stream.isatty()


def terminal_width() -> int:
    return get_terminal_size((80, 24)).columns


def help_width() -> int:
    return min(terminal_width(), WIDEST_HELP) if is_terminal(sys.stdout) else 80


def note(text: str) -> None:
    """A line for people, on stderr."""
    print(f"handfast: {printable(text)}", file=sys.stderr, flush=True)


def pause(seconds: float) -> None:
    """Sleep between two readings. Raises BrokenPipeError if the reader of standard output closes its pipe."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    # The system counts milliseconds, in 32 bits.
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(min(seconds * 1000, 2**31 - 1))):
        raise BrokenPipeError


def printable(text: str) -> str:
    """The text without characters that could move the cursor or change the direction of writing.

    >>> printable("a\\x1b[2Jb\\u202ec\\nd")
    'a\\\\x1b[2Jb\\\\u202ec\\\\nd'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == " " or (c.isprintable() and unicodedata.category(c) != "Cf") else _escaped(c) for c in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def coloured(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in colour, if it goes to a terminal with colours."""
    if not styles or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    if not is_terminal(stream or sys.stdout):
        return text
    return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"


# -- tables ------------------------------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """The number of columns that a text takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )  # fmt: skip


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """The text in exactly this width: padded, or cut off with an ellipsis."""
    size = cells(text)
    if size > width:
        kept = ""
        for letter in text:
            if cells(kept + letter) > width - 1:
                break
            kept += letter
        text, size = f"{kept}…", cells(kept) + 1
    space = " " * (width - size)
    return space + text if right else text + space


class Column(NamedTuple):
    """A column of a table."""

    title: str
    right: bool = False
    least: int = 0
    """How far it may shrink if the terminal is narrow; 0: it keeps its width."""
    leaves: int = 0
    """The order in which columns are left out in a terminal that is even narrower: 1 is the first; 0: never."""


class Table:
    """Lines of a table. The first rows decide the widths, which fit the terminal if there is one."""

    def __init__(self, columns: Sequence[Column], first: Sequence[Sequence[str]], width: int | None) -> None:
        self._columns = columns
        self._cut = width is not None
        wanted = {
            i: max([cells(column.title), *(cells(row[i]) for row in first)]) for i, column in enumerate(columns)
        }  # fmt: skip
        self._widths = wanted if width is None else self._fit(wanted, width)
        """By number, of the columns that are shown."""

    def _fit(self, wanted: dict[int, int], width: int) -> dict[int, int]:
        """Shrink the columns that may shrink. If that is not enough, leave one out and begin again."""
        widths = self._shrunk(dict(wanted), width)
        leaving = [i for i in wanted if self._columns[i].leaves]
        if _total(widths) <= width or not leaving:
            return widths
        del wanted[min(leaving, key=lambda i: self._columns[i].leaves)]
        return self._fit(wanted, width)

    def _shrunk(self, widths: dict[int, int], width: int) -> dict[int, int]:
        """Shrink the widest column, until all fit."""
        while _total(widths) > width:
            able = [i for i in widths if self._columns[i].least and widths[i] > self._columns[i].least]
            if not able:
                break
            widths[max(able, key=lambda i: widths[i])] -= 1
        return widths

    def header(self) -> str:
        return self.line([column.title for column in self._columns])

    def line(self, row: Sequence[str]) -> str:
        parts = [
            fitted(row[i], width if self._cut else max(width, cells(row[i])), right=self._columns[i].right)
            for i, width in self._widths.items()
        ]
        return GAP.join(parts).rstrip()


def _total(widths: dict[int, int]) -> int:
    return sum(widths.values()) + len(GAP) * (len(widths) - 1)


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(thing: Any) -> str:
    """One line; data classes are objects."""
    # ASCII: escapes everything that a terminal could take for a command.
    return json.dumps(thing, separators=(",", ":"), default=_fields)


def _fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def print_json(thing: Any) -> None:
    sys.stdout.write(to_json(thing) + "\n")


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress:
    """A line on stderr that changes in place, for work that takes longer than a second. Only on a terminal."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if is_terminal(sys.stderr):
            # In a thread, because the work may be a single call.
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()

    def show(self, text: str) -> None:
        """Show what is being done now."""
        self._text = text

    def _tick(self) -> None:
        wait = PROGRESS_AFTER
        while not self._over.wait(wait):
            wait = PROGRESS_EVERY
            text = printable(self._text)
            sys.stderr.write(f"\r\x1b[K{fitted(text, min(cells(text), terminal_width() - 1))}")
            sys.stderr.flush()
        if wait == PROGRESS_EVERY:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def end(self) -> None:
        """Remove the line."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
