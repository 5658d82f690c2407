"""Importing the package where something is missing that it needs."""

from __future__ import annotations

from tests.support.programs import program

FORKLESS = """
import concurrent.futures.thread, logging, os, random, threading
del os.fork, os.register_at_fork
try:
    import handfast
except ImportError as error:
    print(error)
else:
    print("imported")
"""


def test_import_without_fork_works_or_says_why_not() -> None:
    said = program(FORKLESS)
    assert said.stdout.strip() == "imported" or "Linux" in said.stdout, said.stderr.strip().rpartition("\n")[2]
