"""Programs that tests run in separate processes."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import handfast
from handfast import HandfastError
from handfast.testing import Server

__all__ = ["attempt", "defect", "hanging", "program", "running"]

ROOT = Path(__file__).parents[2]
"""Programs start here, so that they can import `tests`."""


def defect(sentence: str) -> pytest.MarkDecorator:
    """A test that fails until the defect is repaired, and only by its own assertion."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"issue: {sentence}")


def attempt(lock: handfast.Lock, **options: Any) -> handfast.Lease | HandfastError:
    """The lease, or the error that says why there is none."""
    try:
        return lock.acquire(**options)
    except HandfastError as error:
        return error


@contextmanager
def hanging(server: Server, seconds: float) -> Iterator[None]:
    """A server that does not answer for so long; the block lasts as long."""
    resume = threading.Timer(seconds, server.resume)
    server.pause()
    resume.start()
    try:
        yield
    finally:
        resume.join()


def program(source: str, *args: str, within: float = 20.0) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process of its own, to its end."""
    command = [sys.executable, "-c", textwrap.dedent(source), *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=within, cwd=ROOT)


class Running:
    """A Python program that works while the test does: it reads lines and answers each with one line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, word: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(word + "\n")
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the program ended instead of answering {word!r}")
        return answer.strip()


@contextmanager
def running(source: str, *args: str) -> Iterator[Running]:
    """Start such a program; it ends when its input does."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        cwd=ROOT,
    )
    try:
        yield Running(process)
    finally:
        process.communicate(timeout=10)
