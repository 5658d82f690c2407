"""A dashboard that runs in a thread, and viewers that read its stream."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from handfast.dashboard.server import Dashboard
from tests.support.eventually import eventually

__all__ = ["Viewer", "running", "viewing"]

INTERVAL = 0.05


@contextmanager
def running(servers: str | Sequence[str], **options: Any) -> Iterator[Dashboard]:
    with Dashboard(servers, **{"interval": INTERVAL, **options}) as page:
        thread = threading.Thread(target=page.run)
        thread.start()
        eventually(lambda: page._server.started, 10)
        try:
            yield page
        finally:
            page.stop()
            thread.join(30)


class Viewer:
    """Puts the messages together as the page does."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.rows: dict[int, list[Any]] = {}
        self.tape: list[dict[str, Any]] = []
        self.last: dict[str, Any] = {}
        self.next()

    def next(self) -> str:
        """Read one message; returns its kind."""
        kind = ""
        for line in self._lines:
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                self._take(json.loads(line.removeprefix("data: ")))
                return kind
        raise AssertionError("the stream has ended")

    def _take(self, message: dict[str, Any]) -> None:
        if "points" in message:
            self.rows, self.tape = {}, []
        else:
            assert message["seq"] == self.last["seq"] + 1
        self.last = self.last | message
        for gone in message.get("gone", ()):
            del self.rows[gone]
        for row in message["rows"]:
            self.rows[row[0]] = row
        for number, ends in message.get("renewed", ()):
            self.rows[number][4] = ends
        self.tape += message["tape"]

    @property
    def locks(self) -> dict[str, list[Any]]:
        """Rows by name: number, name, owner, token, end, begin, span, waiters, votes, state."""
        return {row[1]: row for row in self.rows.values()}

    def until(self, kind: str, name: str) -> dict[str, Any]:
        """Read on until the tape has this line."""
        for _ in range(400):
            for line in self.tape:
                if (line["kind"], line["name"]) == (kind, name):
                    return line
            self.next()
        raise AssertionError(f"no {kind} of {name} in {self.tape}")


@contextmanager
def viewing(page: Dashboard, **headers: str) -> Iterator[Viewer]:
    url = page.url.partition("?")[0]
    with httpx.stream("GET", f"{url}api/events", headers=headers, timeout=30) as answer:
        assert answer.status_code == 200
        yield Viewer(answer.iter_lines())
