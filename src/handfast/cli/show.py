"""`handfast show`: everything about one lock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from handfast.cli import UNAVAILABLE
from handfast.cli.declare import JSON, SERVER_OPTIONS, Argument, Command, lock_name

if TYPE_CHECKING:
    from handfast.operate.locks import LockDetail, LockInfo

__all__ = ["COMMAND", "NAME", "describe"]

FREE: Final = 1


def _show(options: Any) -> int:
    from handfast.cli.clients import deployment
    from handfast.cli.ls import TOO_FEW
    from handfast.cli.output import Progress, note, print_json
    from handfast.operate.locks import detail

    with deployment(options) as servers, Progress("asking the servers"):
        found = detail(servers, options.name)
        sees_all = servers.sees_all
    if options.json:
        print_json(found)
    else:
        print("\n".join(_lines(found)))
    if not sees_all:
        note(TOO_FEW)
        return UNAVAILABLE
    return FREE if found.lock is None else 0


def _lines(found: LockDetail) -> Iterator[str]:
    from handfast.cli.durations import shown
    from handfast.cli.output import coloured, printable

    yield coloured(printable(found.name), "bold")
    if found.lock is None:
        token = "" if found.last_token is None else f"; its last token was {found.last_token}"
        yield f"  free{token}"
    else:
        yield from describe(found.lock)
    if found.waiters:
        yield coloured(f"  waiting ({len(found.waiters)})", "bold")
        for number, waiter in enumerate(found.waiters, 1):
            yield f"    {number}. {printable(waiter.owner.short)}, for {shown(waiter.since)}"
    for line in found.audit:
        yield coloured(f"  broken {_time(line.at)} by {printable(line.by)}", "yellow")
        token = "" if line.token is None else f", token {line.token}"
        reason = f": {printable(line.reason)}" if line.reason else ""
        yield f"    held by {printable(line.owner.short)}{token}{reason}"
    for label, text in found.faults.items() if found.lock is None else ():
        yield coloured(f"  {label}: {text}", "red")


def describe(info: LockInfo) -> Iterator[str]:
    """The holder of a lock, in some lines."""
    from handfast.cli.durations import shown
    from handfast.cli.output import coloured, printable

    yield f"  owner    {printable(info.owner.text)}"
    if info.owner.host:
        label = f", label {printable(info.owner.label)}" if info.owner.label else ""
        yield f"  holder   process {info.owner.pid} on {printable(info.owner.host)}{label}"
    yield f"  kind     {info.kind}"
    yield f"  token    {'none' if info.token is None else info.token}"
    yield f"  held     {shown(info.since)}"
    yield f"  ends in  {'never: its key has no end' if info.ttl is None else shown(info.ttl) + ' unless renewed'}"
    if info.state != "held":
        yield coloured("  state    nobody has the votes of a majority", "yellow")
    if len(info.votes) > 1:
        yield "  votes"
        for vote in info.votes:
            said = vote.error or ("free" if vote.owner is None else printable(vote.owner))
            mark = "✗" if vote.error else "○" if vote.owner is None else "●" if vote.owner == info.owner.text else "◐"
            yield f"    {mark} {vote.node}  {said}" + (f", {shown(vote.ttl)}" if vote.owner is not None else "")


def _time(at: float) -> str:
    import datetime

    return datetime.datetime.fromtimestamp(at).astimezone().isoformat(" ", "seconds")


NAME: Final = Argument("NAME", "The lock.", convert=lock_name, completes="names")

COMMAND: Final = Command(
    name="show",
    summary="Show one lock: its holder, its waiters, its votes, who has broken it.",
    description="""
Shows who holds a lock and who waits for it, the next one first, and on a quorum the vote of each node. Of each
process that waits, the servers know one waiter. Breaks by operators (see handfast break) are listed with who broke
it, when and why.
""",
    run=_show,
    arguments=(NAME,),
    options=(JSON, *SERVER_OPTIONS),
    examples=(
        ("Who holds it?", "handfast show nightly"),
        ("Its token, for a script.", "handfast show nightly --json | jq .lock.token"),
    ),
    statuses=(
        ("0", "The lock is held."),
        (str(FREE), "The lock is free."),
        (str(UNAVAILABLE), "Too few servers answered."),
    ),
)
