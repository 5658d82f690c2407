"""Spinner: a blocking round trip polls for a moment before it sleeps, while that pays."""

from __future__ import annotations

import os
import threading

import pytest

from handfast.net import spinning
from handfast.net.spinning import LONGEST, LONGEST_PAUSE, MISSES, PAUSE, Spinner

POLL = 1e-6
"""Seconds that one poll takes here."""


class Server:
    """A clock, and a poller whose reply comes `after` so many seconds. Every poll that may sleep is counted."""

    def __init__(self, after: float) -> None:
        self.time = 100.0
        self.after = after
        self.sleeps = 0
        self.due = 0.0
        self.stolen = 0.0
        """Seconds that another thread keeps the interpreter's lock during a poll."""

    def clock(self) -> float:
        return self.time

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        if milliseconds:
            self.sleeps += 1
            self.time = max(self.time, min(self.due, self.time + milliseconds / 1000))
        self.time += POLL + self.stolen
        return [(1, 1)] if self.time >= self.due else []

    def ask(self, spinner: Spinner) -> bool:
        """One round trip. True if it did without sleeping."""
        before, self.due = self.sleeps, self.time + self.after
        assert spinner.poll(self, 1.0) == [(1, 1)]  # type: ignore[arg-type]
        return self.sleeps == before


@pytest.fixture
def spinner(monkeypatch: pytest.MonkeyPatch) -> Spinner:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    return Spinner()


def near(monkeypatch: pytest.MonkeyPatch, after: float = 50e-6) -> Server:
    server = Server(after)
    monkeypatch.setattr(spinning, "_clock", server.clock)
    return server


def test_reply_of_a_near_server_is_awaited_without_sleeping(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch)
    assert all(server.ask(spinner) for _ in range(50))


def test_no_spinning_on_a_machine_with_one_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    server, spinner = near(monkeypatch), Spinner()
    assert not any(server.ask(spinner) for _ in range(5))


def test_spinning_ends_after_twice_the_usual_time(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch, after=20e-6)
    for _ in range(50):
        server.ask(spinner)
    server.after, began = 0.5, server.time
    spun = 0.0

    def sleep(milliseconds: float) -> list[tuple[int, int]]:
        nonlocal spun
        if milliseconds and not spun:
            spun = server.time - began
        return Server.poll(server, milliseconds)

    monkeypatch.setattr(server, "poll", sleep)
    assert not server.ask(spinner)
    assert 20e-6 < spun < 80e-6 < LONGEST


def test_far_server_is_given_up_for_longer_and_longer(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch, after=0.005)
    spun = 0
    for _ in range(2000):  # ten seconds
        before = server.time
        polls = 0

        def poll(milliseconds: float) -> list[tuple[int, int]]:
            nonlocal polls
            polls += 1
            return Server.poll(server, milliseconds)

        monkeypatch.setattr(server, "poll", poll)
        server.ask(spinner)
        spun += polls > 1
        assert server.time - before < 0.006
    # At first MISSES times, and once after each pause: of 20, 40, 80 ms and so on, up to a second.
    assert MISSES < spun <= MISSES + 6 + 10 / LONGEST_PAUSE + 1


def test_spinning_is_tried_again_after_a_pause(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch, after=0.005)
    for _ in range(MISSES):
        assert not server.ask(spinner)
    server.after = 50e-6
    assert not server.ask(spinner)
    server.time += PAUSE
    assert server.ask(spinner)


def test_thread_that_keeps_the_interpreter_ends_spinning(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch)
    server.stolen = 0.005
    for _ in range(MISSES):
        server.ask(spinner)
    assert not server.ask(spinner)


def test_threads_that_compute_end_spinning(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch)
    monkeypatch.setattr(spinning, "_cpu_of_process", lambda: 0.5 * server.time)
    monkeypatch.setattr(spinning, "_cpu_of_thread", lambda: 0.25 * server.time)
    for _ in range(3):  # also after each pause
        server.ask(spinner)
        server.time += LONGEST_PAUSE
        assert not server.ask(spinner)


def test_idle_threads_do_not_end_spinning(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch)
    monkeypatch.setattr(spinning, "_cpu_of_process", lambda: 0.95 * server.time)
    monkeypatch.setattr(spinning, "_cpu_of_thread", lambda: 0.9 * server.time)
    for _ in range(100):
        assert server.ask(spinner)
        server.time += PAUSE


def test_another_thread_begins_a_new_look(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch)
    monkeypatch.setattr(spinning, "_cpu_of_process", lambda: server.time)
    monkeypatch.setattr(spinning, "_cpu_of_thread", lambda: 0.0)
    assert server.ask(spinner)
    server.time += PAUSE
    monkeypatch.setattr(threading, "get_ident", lambda: -1)
    assert server.ask(spinner)


def test_contended_lock_ends_spinning_for_a_moment(spinner: Spinner, monkeypatch: pytest.MonkeyPatch) -> None:
    server = near(monkeypatch)
    assert server.ask(spinner)
    spinner.rest()
    assert not server.ask(spinner)
    server.time += PAUSE
    assert server.ask(spinner)
