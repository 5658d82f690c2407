"""Relays and fake servers. They run in threads, so that they work beside a blocked event loop."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Impostor", "Relay"]

Serve = Callable[[socket.socket], None]


class _Listener:
    """A listening port; a thread serves each connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self.accepted = 0
        self._open: set[socket.socket] = set()
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.accepted += 1
            self._open.add(sock)
            threading.Thread(target=self._handle, args=(sock,), daemon=True).start()

    def _handle(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.serve(sock)
        self._end(sock)

    def _end(self, sock: socket.socket) -> None:
        # shutdown: a thread that waits in recv would not notice a mere close.
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()
        self._open.discard(sock)

    def serve(self, sock: socket.socket) -> None:
        raise NotImplementedError

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    def hang_up(self) -> None:
        """Close all connections; new ones are accepted."""
        for sock in list(self._open):
            self._end(sock)

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Impostor(_Listener):
    """A server that is no Redis: `talk` gets the socket; its return closes the connection."""

    def __init__(self, talk: Serve) -> None:
        self.serve = talk  # type: ignore[method-assign]
        super().__init__()

    @classmethod
    def hanging_up(cls) -> Impostor:
        return cls(lambda sock: None)

    @classmethod
    def silent(cls) -> Impostor:
        return cls(_drain)

    @classmethod
    def saying(cls, *parts: bytes, every: float = 0.0, hang_up: bool = False) -> Impostor:
        """Answers the first request, whatever it is, with these parts."""

        def talk(sock: socket.socket) -> None:
            sock.recv(65536)
            for part in parts:
                sock.sendall(part)
                time.sleep(every)
            if not hang_up:
                _drain(sock)

        return cls(talk)


def _drain(sock: socket.socket) -> None:
    while sock.recv(65536):
        pass


class Relay(_Listener):
    """Forwards between a client and a server, and does what a bad network does.

    `requests` and `replies` are gates: while one is shut, what goes that way is kept back, in order.
    """

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self.sent: list[bytearray] = []
        """What clients sent, by connection."""
        self.requests = threading.Event()
        self.replies = threading.Event()
        self.requests.set()
        self.replies.set()
        self.byte_by_byte = False
        self.answers_late = False
        """A reply is kept back until the client sends something again."""
        self.cut_after: int | None = None
        """Bytes of the next reply after which the connection ends."""
        self.cut_only = b""
        """The reply that is cut must follow a request with these bytes on its connection: the watchdog has its own."""
        self.instead: bytes | None = None
        """Sent in the place of the next reply."""
        self._spoken = 0
        self._speech = threading.Condition()
        super().__init__()

    def serve(self, sock: socket.socket) -> None:
        assert self._target.hostname
        with socket.create_connection((self._target.hostname, self._target.port or 6379)) as server:
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            record = bytearray()
            self.sent.append(record)
            back = threading.Thread(target=self._back, args=(server, sock, record), daemon=True)
            back.start()
            with contextlib.suppress(OSError):
                while data := sock.recv(65536):
                    record += data
                    self._pass(self.requests)
                    self._heard()
                    server.sendall(data)
            # As in a network: what the client sent before it closed still arrives.
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_WR)
            self._heard()
            back.join()

    def _back(self, server: socket.socket, sock: socket.socket, record: bytearray) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._pass(self.replies)
                with self._speech:
                    spoken = self._spoken
                    self._speech.wait_for(lambda spoken=spoken: not self.answers_late or self._spoken > spoken)
                cut = None
                if self.cut_only in record:
                    cut, self.cut_after = self.cut_after, None
                instead, self.instead = self.instead, None
                data = (data if instead is None else instead)[:cut]
                for piece in [bytes([b]) for b in data] if self.byte_by_byte else [data]:
                    sock.sendall(piece)
                if cut is not None:
                    break
        self._end(sock)

    def _heard(self) -> None:
        with self._speech:
            self._spoken += 1
            self._speech.notify_all()

    def _pass(self, gate: threading.Event) -> None:
        while not gate.wait(0.1):
            if self._closed:
                raise OSError("closed")

    def punctual(self) -> None:
        """End `answers_late`, and forward what was held back."""
        self.answers_late = False
        self._heard()

    def close(self) -> None:
        self.punctual()
        super().close()
