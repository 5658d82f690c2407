"""The transitions that run on a server. Each is one `.lua` file, whose header explains keys, arguments and reply.

A line `--@ _part` includes another file, because Lua on a server has no other way to share code.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Final

from handfast.protocol.resp import encode

try:  # hashlib imports OpenSSL, which takes longer to load than all the scripts
    from _sha1 import sha1  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
except ImportError:
    from hashlib import sha1

__all__ = ["BREAK", "LOAD_REPLIES", "NAMES", "SHA", "TEXT", "load_scripts", "scripts_in", "text_of"]

NAMES: Final = (
    "claim", "pass", "yield", "acquire_all", "extend", "restore_vote", "raise_token", "delete_owned", "set_marker",
)  # fmt: skip
"""The scripts that clients use: every connection loads them."""
BREAK: Final = "break"
"""For operators: it is loaded when it is run."""
INCLUDE: Final = b"--@ "


def text_of(name: str) -> bytes:
    """Read a script without its comments: every connection loads every script in NAMES."""
    with open(os.path.join(os.path.dirname(__file__), f"{name}.lua"), "rb") as file:
        lines = file.read().splitlines()
    return b"\n".join(
        text_of(line.removeprefix(INCLUDE).decode()) if line.startswith(INCLUDE) else line
        for line in lines
        if line.startswith(INCLUDE) or not line.lstrip().startswith(b"--")
    )


TEXT: Final[dict[str, bytes]] = {name: text_of(name) for name in (*NAMES, BREAK)}
SHA: Final[dict[str, bytes]] = {
    name: sha1(text, usedforsecurity=False).hexdigest().encode() for name, text in TEXT.items()
}
LOAD_REPLIES: Final = len(NAMES)
"""The number of replies if `load_scripts` loads all of them."""


def load_scripts(names: Iterable[str] = NAMES) -> bytes:
    return b"".join(encode(b"SCRIPT", b"LOAD", TEXT[name]) for name in names)


def scripts_in(payload: bytes) -> list[str]:
    """The scripts that the commands run."""
    return [name for name in NAMES if SHA[name] in payload]
