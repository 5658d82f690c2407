"""A fake server with the lab's interface and invented data, for states that a real run shows too rarely."""

from __future__ import annotations

import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

PAGE = files("lab") / "page"
CSP = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
TOKEN = "invented-token"


def rung(name: str, number: int, expect: str = "oversold", **facts: Any) -> dict[str, Any]:
    scenario = {"name": f"{name}/slow", "title": "work takes too long", "fault": "an order is held up", "expect": expect}
    return {
        "name": name,
        "number": number,
        "title": f"The {name} lock",
        "story": "It was `fast`.\n\nBut it broke.",
        "source": '"""It was fast."""\n\nclass Lock(Rung):\n    pass  # nothing\n',
        "servers": "one",
        "scenarios": [{**scenario, "must_be_safe": expect == "safe"}],
        **facts,
    }


def holder(order: str, worker: str, since: float, until: float, **facts: Any) -> dict[str, Any]:
    times = {"from": since, "to": until}
    return {"order": order, "worker": worker, "stripe": 0, "end": "released", "overlap": False, **times, **facts}


def score(scenario: str, **facts: Any) -> dict[str, Any]:
    """A score with two holders at once and a stale write."""
    pieces = {"stock": 100, "sold": 149, "oversold": 49, "left": 0, "lost": 0, "refused": 0}
    times = {"stuck": 1.02, "seconds": 2.31, "rate": 121.4, "p50": 0.071, "p99": 1.212}
    outcome = {"verdict": "oversold", "expect": "oversold", "must_be_safe": False, "as_expected": True}
    return {
        "scenario": scenario,
        "free": False,
        "injected": False,
        "stopped": False,
        **outcome,
        **pieces,
        **times,
        "evidence": ["o1 (w1) waited 1.2 s between read and write; its key had expired"],
        "holders": [holder("o1", "w1", 0.02, 1.93, overlap=True), holder("o2", "w2", 1.03, 1.2, overlap=True)],
        "overlaps": [[1.03, 1.2]],
        "stock_line": [[0.0, 100], [1.2, 99], [1.93, 99], [1.95, 100], [2.3, 0]],
        "marks": [{"t": 0.9, "text": "w1 is paused (SIGSTOP)"}],
        "load": {"requests": 320, "failed": 0, "sold": 149, "busy": 3, "sold_out": 168, "percentiles": {"50": 0.07}},
        **facts,
    }


def live(scenario: str, **facts: Any) -> dict[str, Any]:
    numbers = {"t": 0.1, "progress": 0.1, "stock": 100, "sold": 1, "left": 99, "oversold": 0, "rate": 10.0}
    return {
        "scenario": scenario,
        "free": False,
        "injected": False,
        "stopped": False,
        **numbers,
        "holders": [],
        "overlaps": [],
        "stock_line": [[0.0, 100]],
        "marks": [],
        **facts,
    }


def invented() -> dict[str, Any]:
    return {
        "interactive": True,
        "finished": False,
        "settings": {"stock": 100, "buyers": 16, "workers": 3, "seconds": 4.0, "database": "sqlite", "frontend": "nginx"},
        "rungs": [rung("lua", 1), rung("fenced", 2, "safe")],
        "scores": {},
        "unjudged": {},
        "live": None,
        "queue": [],
        "workers": [{"name": f"w{i}", "pid": 4710 + i, "state": "up", "holding": None} for i in (1, 2, 3)],
        "nodes": [],
    }


class FakeLab:
    """`with FakeLab() as lab:` serves the page; `lab.posts` has the requests of its buttons."""

    def __init__(self) -> None:
        self.state = invented()
        self.posts: list[tuple[str, str | None, Any]] = []
        self.refusal: tuple[int, str] | None = None
        self._streams: list[queue.Queue[bytes | None]] = []
        self._one_at_a_time = threading.Lock()
        lab = self

        class Answer(_Answer):
            fake = lab

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    def __enter__(self) -> FakeLab:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self.hang_up()
        self._server.server_close()  # waits for the threads that still answer
        self._thread.join()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/?token={TOKEN}"

    def send(self, event: str, data: Any) -> None:
        with self._one_at_a_time:
            for stream in self._streams:
                stream.put(_event(event, data))

    def change(self, **facts: Any) -> None:
        self.state.update(facts)
        self.send("state", self.state)

    def hang_up(self) -> None:
        for stream in self._streams:
            stream.put(None)
        self._streams = []

    def listen(self) -> queue.Queue[bytes | None]:
        stream: queue.Queue[bytes | None] = queue.Queue()
        with self._one_at_a_time:  # no change is lost between its first state and its place in the list
            stream.put(b"retry: 50\n\n" + _event("state", self.state))
            self._streams.append(stream)
        return stream


def _event(event: str, data: Any) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()


class _Answer(BaseHTTPRequestHandler):
    fake: FakeLab

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/api/events":
            self._stream()
        else:
            self._file("index.html" if path == "/" else path.removeprefix("/static/"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.fake.posts.append((self.path, self.headers["X-Lab-Token"], body))
        status, error = self.fake.refusal or (202, "")
        self._send(status, "application/json", json.dumps({"error": error} if error else {"ok": True}).encode())

    def _stream(self) -> None:
        stream = self.fake.listen()
        self._head(200, "text/event-stream")
        try:
            while (part := stream.get()) is not None:
                self.wfile.write(part)
        except ConnectionError:
            pass  # the page was closed

    def _file(self, name: str) -> None:
        self._send(200, KINDS[name.rpartition(".")[2]], (PAGE / name).read_bytes())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self._head(status, kind)
        self.wfile.write(body)

    def _head(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", CSP)
        self.end_headers()

    def log_request(self, code: object = "-", size: object = "-") -> None:
        """Silent."""
