"""A small lab for tests, with the built-in balancer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("aiohttp", reason="pip install --group lab")

from lab.environment import Plan
from tests.support.postgres import database, postgres

__all__ = ["Lab", "database", "plan", "postgres", "started"]


@pytest.fixture
def plan() -> Plan:
    return Plan(stock=30, buyers=8, workers=3, seconds=15.0, frontend="built-in")


class Lab:
    """`python -m lab` as a separate process, with its own folder for temporary files."""

    def __init__(self, tmp: Path, *options: str) -> None:
        self.tmp = tmp
        command = [sys.executable, "-m", "lab", *options]
        pipe = subprocess.PIPE
        environment = {**os.environ, "TMPDIR": str(tmp)}
        self.process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True)

    def address(self) -> str:
        """The address of its page, which it prints when everything runs."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "http://" in line:
                return line.split()[-1]
        raise AssertionError("the lab ended without an address")

    def children(self) -> list[int]:
        return [
            int(pid)
            for each in Path(f"/proc/{self.process.pid}/task").glob("*/children")
            for pid in each.read_text().split()
        ]

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[Lab]]:
    """Tests append the labs that they start. Labs that still run at the end are killed."""
    labs: list[Lab] = []
    yield labs
    for lab in labs:
        if lab.process.poll() is None:
            lab.end(signal.SIGKILL)
