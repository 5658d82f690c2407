"""A web page about the locks of a deployment: `pip install "handfast[dashboard]"`, `handfast dashboard`.

    reading.py   asks the servers: one reader for all viewers, with pauses, so that it costs the servers little
    board.py     the state: locks, recent holders, the tape, times; its changes from one snapshot to the next
    feed.py      the threads that read, and the messages for viewers: first everything, then differences
    access.py    access control: loopback, token, Host header
    server.py    the addresses of the page and of its data
    page/        the page itself: plain HTML, CSS and JavaScript

It reads and never writes. Names and owners may contain anything, so the page shows them as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from handfast.option_types import Servers

__all__ = ["serve"]


def serve(
    servers: Servers = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8737,
    token: str | None = None,
    hosts: Sequence[str] = (),
    prefix: str = "handfast:",
    interval: float = 1.0,
    announce: Callable[[str], object] = print,
) -> None:
    """Serve the dashboard until Ctrl-C or SIGTERM.

    servers: As for `handfast.connect`.
    host: On another address than loopback a token is needed; it is part of the address that is announced.
    port: 0 for any that is free.
    token: One of your own. By default one is made, where one is needed.
    hosts: Names under which the page may be asked for, besides `host` and IP addresses.
    prefix: The locks' namespace.
    interval: Seconds between two looks at the servers; longer if a look takes long.
    announce: Called with the page's address, once it can be opened.

    OSError if it cannot listen there.
    """
    from handfast.dashboard.server import Dashboard

    with Dashboard(servers, host=host, port=port, token=token, hosts=hosts, prefix=prefix, interval=interval) as page:
        announce(page.url)
        page.run()
