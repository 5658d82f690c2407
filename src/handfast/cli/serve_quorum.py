"""`handfast serve-quorum`: a quorum on this machine, for development."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

from handfast.cli.declare import Argument, Command

__all__ = ["COMMAND"]


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 99):
        raise ValueError(f"{text!r} is not a number of servers from 1 to 99")
    return int(text)


def _serve(options: Any) -> int:
    from handfast.cli.output import Progress
    from handfast.operate.local import LocalQuorum

    wait_for_end = _ends()
    with Progress("starting the servers"):
        quorum = LocalQuorum(options.n)
    with quorum:
        for url in quorum.urls:
            print(url)
        print(f"export HANDFAST_URL={shlex.quote(' '.join(quorum.urls))}")
        sys.stdout.flush()
        if sys.stderr.isatty():
            print("Ctrl-C ends the servers.", file=sys.stderr)
        number = wait_for_end()
    return 0 if number == signal.SIGINT else 128 + number


def _ends() -> Callable[[], int]:
    """Catch the signals that end programs. Returns a function that waits for one of them and returns its number.

    The signals come through a pipe. The handler of a signal cannot set an Event for which its own thread waits: if the
    signal comes while `wait` has the Event's lock, `set` waits for that lock, and nothing goes on.
    """
    ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    numbers = {number for number in ends if signal.getsignal(number) != signal.SIG_IGN}
    reader, writer = os.pipe()
    os.set_blocking(writer, False)  # set_wakeup_fd demands it
    signal.set_wakeup_fd(writer)
    for number in numbers:
        signal.signal(number, lambda *_: None)

    def wait() -> int:
        while (number := os.read(reader, 1)[0]) not in numbers:
            pass
        return number

    return wait


COMMAND: Final = Command(
    name="serve-quorum",
    summary="Run a quorum on this machine, for development.",
    description="""
Starts N servers of the kind that embedded:// uses, on unix sockets in a temporary folder, open for votes. Prints
their URLs and a line for the shell. Ctrl-C ends them and leaves nothing behind; so does the end of this process in
any other way.
""",
    run=_serve,
    arguments=(Argument("N", "How many servers, 3 by default.", default="3", convert=_count),),
    examples=(("In one terminal; copy its last line to another one.", "handfast serve-quorum 5"),),
    statuses=(("0", "It was ended by Ctrl-C."),),
)
