"""`handfast bootstrap`: open a new quorum."""

from __future__ import annotations

from typing import Any, Final

from handfast.cli import USAGE, CommandError
from handfast.cli.breaks import confirmed
from handfast.cli.declare import JSON, SERVER_OPTIONS, Command, Option, servers
from handfast.cli.durations import duration

__all__ = ["COMMAND"]

OPEN: Final = ("opened", "open already")


def _open(options: Any) -> int:
    from handfast.cli.clients import quiet_client
    from handfast.cli.output import Progress, note, print_json
    from handfast.options import MAX_TTL
    from handfast.sync import bootstrap

    urls = servers(options)
    if len(urls) == 1 and not urls[0].startswith("embedded:"):
        raise CommandError("one server is no quorum and needs no bootstrap: give --url once for each server", USAGE)
    with quiet_client(options, max_ttl=options.max_ttl or MAX_TTL) as client:
        if not options.yes and not confirmed(f"Is it certain that no lock is held on these {len(urls)} servers?"):
            raise CommandError("nothing was changed", 1)
        with Progress("asking the servers"):
            said = bootstrap(client)
    if options.json:
        print_json(said)
    else:
        for node, text in said.items():
            print(f"{'✓' if text in OPEN else '!'} {node}  {text}")
    count = sum(1 for text in said.values() if text in OPEN)
    if count < len(said):
        note(f"{count} of {len(said)} servers may vote; the others: handfast doctor")
    return 0 if count == len(said) else 1


COMMAND: Final = Command(
    name="bootstrap",
    summary="Let the servers of a new quorum vote at once.",
    description="""
A server of a quorum that has no data may have lost it, with locks that are still held. So it does not vote before the
longest lock that it may have forgotten is over. New servers have forgotten nothing: this command says so, and opens
them at once. Without it they open by themselves, about half a minute after the first client has connected.

Only for servers on which no lock can be held. On servers that are in use it changes nothing.
""",
    run=_open,
    options=(
        Option("--yes", "Do not ask."),
        Option("--max-ttl", "As the clients have it, 30s by default.", "DURATION", duration),
        JSON,
        *SERVER_OPTIONS,
    ),
    examples=(
        ("Three new servers.", "handfast bootstrap --url redis://10.0.0.1 --url redis://10.0.0.2 --url redis://10.0.0.3"),
    ),
    statuses=(("0", "All servers may vote."), ("1", "Some may not; what each said is printed.")),
)
