"""The transitions that run on a server, one `.lua` file each; its header gives keys, arguments and reply."""

from __future__ import annotations

import os
from typing import Final

try:  # the interpreter's own: hashlib brings OpenSSL along, which takes longer to load than all the scripts
    from _sha1 import sha1  # type: ignore[import-not-found]  # pyright: ignore[reportMissingImports]
except ImportError:
    from hashlib import sha1

__all__ = ["NAMES", "SHA", "TEXT"]

NAMES: Final = ("acquire", "raise", "extend", "heal", "release", "mark", "claim", "pass")
INCLUDE: Final = b"--@ "
"""Before the name of another file that belongs here: Lua on a server has no other way to share code."""


def _text(name: str) -> bytes:
    with open(os.path.join(os.path.dirname(__file__), f"{name}.lua"), "rb") as file:
        lines = file.read().splitlines()
    # Comments are for people; every connection loads every script, so the servers get the code alone.
    return b"\n".join(
        _text(line.removeprefix(INCLUDE).decode()) if line.startswith(INCLUDE) else line
        for line in lines
        if line.startswith(INCLUDE) or not line.lstrip().startswith(b"--")
    )


TEXT: Final[dict[str, bytes]] = {name: _text(name) for name in NAMES}
SHA: Final[dict[str, bytes]] = {
    name: sha1(text, usedforsecurity=False).hexdigest().encode() for name, text in TEXT.items()
}
