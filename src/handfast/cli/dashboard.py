"""`handfast dashboard`: a web page about the locks."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from handfast.cli import CommandError
from handfast.cli.declare import SERVER_OPTIONS, Command, Option, interval, servers

__all__ = ["COMMAND"]

PORT: Final = 8737
TOKEN: Final = "HANDFAST_DASHBOARD_TOKEN"
"""A variable and not an option, because every user of a machine can read the command lines of its processes."""


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= 65535):
        raise ValueError(f"{text!r} is not a port from 0 to 65535")
    return int(text)


def _announce(url: str) -> None:
    print(url, flush=True)
    if sys.stderr.isatty():
        print("Ctrl-C ends it.", file=sys.stderr)


def _dashboard(options: Any) -> int:
    from handfast.dashboard import serve

    try:
        serve(
            servers(options),
            host=options.host,
            port=options.port,
            token=os.environ.get(TOKEN),
            hosts=options.allow_host or (),
            prefix=options.prefix,
            interval=options.interval,
            announce=_announce,
        )
    except ModuleNotFoundError as error:
        raise CommandError(f"{error}: pip install 'handfast[dashboard]'") from None
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise CommandError(f"{where}: {error.strerror or error}; choose another --host or --port") from None
    except KeyboardInterrupt:
        pass
    return 0


COMMAND: Final = Command(
    name="dashboard",
    summary="Serve a web page about the locks.",
    description=f"""
Shows who holds and who waits, the votes of each node, what happens, how long waits and holds take, and what the doctor
says of the nodes. It reads and never writes. All viewers share one reader, which rests longer than it reads.

On loopback, the default, every user of this machine has access. On any other address every request needs a token;
the printed address contains it. Each start makes a new one, unless ${TOKEN} is set. There is no
encryption: put a proxy with TLS before it, or use an SSH tunnel.

It needs pip install 'handfast[dashboard]'.
""",
    run=_dashboard,
    options=(
        Option("--host", "The address to listen at, 127.0.0.1 by default.", "ADDRESS", default="127.0.0.1"),
        Option("--port", f"The port, {PORT} by default; 0 for any that is free.", "PORT", _port, PORT),
        Option(
            "--allow-host",
            "A name under which the page may be asked for, for example that of a proxy.",
            "NAME",
            repeat=True,
        ),
        interval("1s"),
        *SERVER_OPTIONS,
    ),
    statuses=(("0", "It was ended by Ctrl-C."),),
    examples=(
        ("On this machine.", "handfast dashboard"),
        ("For other machines, which need the printed address.", "handfast dashboard --host 0.0.0.0"),
    ),
)
