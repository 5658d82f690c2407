"""What the commands print: tables that fit the terminal, colours, JSON, progress.

Names and owners come from servers, so they may contain anything. `printable` keeps control characters from a terminal.
"""

from __future__ import annotations

import json
import os
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
    "print_json",
    "printable",
    "terminal_width",
    "to_json",
]

CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
GAP: Final = "  "
PROGRESS_AFTER: Final = 1.0
"""Seconds: what is quicker needs no progress."""
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


def printable(text: str) -> str:
    """The text without what could move the cursor or turn the writing around.

    >>> printable("a\\x1b[2Jb\\u202ec\\nd")
    'a\\\\x1b[2Jb\\\\u202ec\\\\nd'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == " " or (c.isprintable() and unicodedata.category(c) != "Cf") else _escaped(c) for c in text)


def _escaped(letter: str) -> str:
    return letter.encode("unicode_escape").decode()


def coloured(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in colour, if it goes to a terminal that has some."""
    if not styles or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    if not is_terminal(stream or sys.stdout):
        return text
    return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"


# -- tables ------------------------------------------------------------------------------------------------------------


def cells(text: str) -> int:
    """The columns that it takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )  # fmt: skip


def fitted(text: str, width: int, *, right: bool = False) -> str:
    """Exactly as wide: padded, or cut off with an ellipsis."""
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


class Table:
    """Lines of a table. Widths are decided by the first rows, and fit the terminal if there is one."""

    def __init__(self, columns: Sequence[Column], first: Sequence[Sequence[str]], width: int | None) -> None:
        self._columns = columns
        self._cut = width is not None
        self._widths = [
            max([cells(column.title), *(cells(row[i]) for row in first)]) for i, column in enumerate(columns)
        ]  # fmt: skip
        if width is not None:
            self._shrink(width)

    def _shrink(self, width: int) -> None:
        """Take from the widest of those that may shrink, until it fits."""
        while sum(self._widths) + len(GAP) * (len(self._widths) - 1) > width:
            able = [i for i, column in enumerate(self._columns) if column.least and self._widths[i] > column.least]
            if not able:
                return
            self._widths[max(able, key=lambda i: self._widths[i])] -= 1

    def header(self) -> str:
        return self.line([column.title for column in self._columns])

    def line(self, row: Sequence[str]) -> str:
        parts = [
            fitted(text, width if self._cut else max(width, cells(text)), right=column.right)
            for text, width, column in zip(row, self._widths, self._columns, strict=True)
        ]
        return GAP.join(parts).rstrip()


# -- JSON --------------------------------------------------------------------------------------------------------------


def to_json(thing: Any) -> str:
    """One line; data classes are objects."""
    return json.dumps(thing, ensure_ascii=False, separators=(",", ":"), default=_fields)


def _fields(thing: Any) -> dict[str, Any]:
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def print_json(thing: Any) -> None:
    # Half of a surrogate pair, which a hostile name may contain, is no UTF-8.
    sys.stdout.write(to_json(thing).encode(errors="replace").decode() + "\n")


# -- progress ----------------------------------------------------------------------------------------------------------


class Progress:
    """A line on stderr that changes in place, for what takes longer than a second. Only on a terminal."""

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        if is_terminal(sys.stderr):
            # A thread: what takes long may be a single call.
            self._thread = threading.Thread(target=self._tick, daemon=True)
            self._thread.start()

    def show(self, text: str) -> None:
        """What is being done now."""
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
        """Nothing of it stays."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
