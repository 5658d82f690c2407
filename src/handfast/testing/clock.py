"""Steps the wall clock of a server or a client while it runs.

A small library (`clockshim.c`) is loaded before all others and adds an offset to the time of day. The offset is in a
file that the process has mapped, so a step is one store. The process sees it when it next reads its clock; an idle Valkey
reads it ten times a second. Monotonic clocks are not changed: NTP, an operator or a virtual machine steps the wall clock
only. It needs Linux and a C compiler.
"""

from __future__ import annotations

import atexit
import functools
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["Clock", "missing"]

SOURCE: Final = Path(__file__).with_name("clockshim.c")
OFFSET: Final = struct.Struct("=q")
"""The format of the offset, in nanoseconds, as the library reads it."""


def missing() -> str:
    """The reason why clocks cannot be stepped on this machine; "" if they can."""
    if sys.platform != "linux":
        return "clocks are moved by LD_PRELOAD, which only Linux has"
    return "" if _compiler() else "clocks are moved by a C library, and there is no C compiler (cc) here"


class Clock:
    """A clock for one or more processes:
    `with Clock() as clock, Server(env=clock.environment) as server: clock.step(3600)`."""

    def __init__(self, ahead: float = 0.0) -> None:
        self._shim = _shim()
        self._folder = Path(tempfile.mkdtemp(prefix="handfast-clock-"))
        path = self._folder / "offset"
        path.write_bytes(OFFSET.pack(0))
        with path.open("r+b") as file:
            self._offset = mmap.mmap(file.fileno(), OFFSET.size)
        self.environment = {"LD_PRELOAD": str(self._shim), "HANDFAST_CLOCK": str(path)}
        """The environment variables for a process that uses this clock."""
        self.step(ahead)

    @property
    def ahead(self) -> float:
        """How many seconds this clock is ahead of the machine's."""
        nanoseconds: int = OFFSET.unpack_from(self._offset)[0]
        return nanoseconds / 1e9

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back if `seconds` is negative."""
        OFFSET.pack_into(self._offset, 0, OFFSET.unpack_from(self._offset)[0] + round(seconds * 1e9))

    def close(self) -> None:
        """Remove the clock's file. Running processes keep their offset."""
        self._offset.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC") or "cc")


@functools.cache
def _shim() -> Path:
    """The path of the library. It is compiled at first use and kept while this process lives."""
    if reason := missing():
        raise RuntimeError(reason)
    folder = Path(tempfile.mkdtemp(prefix="handfast-clock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    library = folder / "clockshim.so"
    made = subprocess.run(
        [_compiler() or "cc", "-shared", "-fPIC", "-O2", "-Wall", "-o", str(library), str(SOURCE)],
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise RuntimeError(f"the clock library does not compile here:\n{made.stderr}")
    return library
