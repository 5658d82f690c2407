"""`handfast serve-quorum`: a quorum on this machine, for development."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from types import FrameType
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

    ended = threading.Event()
    caught: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        ended.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)
    with Progress("starting the servers"):
        quorum = LocalQuorum(options.n)
    with quorum:
        for url in quorum.urls:
            print(url)
        print(f"export HANDFAST_URL={shlex.quote(' '.join(quorum.urls))}")
        sys.stdout.flush()
        if sys.stderr.isatty():
            print("Ctrl-C ends the servers.", file=sys.stderr)
        ended.wait()
    return 0 if caught == [signal.SIGINT] else 128 + caught[0]


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
