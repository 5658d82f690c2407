"""`handfast break`: take a lock away from its holder."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from handfast.cli import CONTENDED, UNAVAILABLE, USAGE, CommandError
from handfast.cli.declare import JSON, SERVER_OPTIONS, Command, Option, number
from handfast.cli.show import NAME, describe

if TYPE_CHECKING:
    from handfast.operate.breaking import Broken
    from handfast.operate.locks import LockInfo

__all__ = ["COMMAND", "confirmed"]

FREE: Final = 1


def _break(options: Any) -> int:
    from handfast.cli.clients import deployment
    from handfast.cli.output import Progress, print_json
    from handfast.operate.breaking import break_lock
    from handfast.operate.locks import look

    with deployment(options) as servers:
        with Progress("asking the servers"):
            servers.check()
            (seen,) = look(servers, [options.name])
        servers.check_faults()
        if seen is None:
            raise CommandError(f"{options.name}: nobody holds it; there is nothing to break", FREE)
        _check_token(seen, options.token)
        if not options.yes:
            print("\n".join(describe(seen)), file=sys.stderr)
            if not confirmed(f"Take {seen.name} away from {seen.owner.short}?"):
                raise CommandError("nothing was changed", FREE)
        with Progress("breaking the lock"):
            result = break_lock(servers, seen, reason=options.reason)
    if options.json:
        print_json(result)
    else:
        _tell(result)
    return {"broken": 0, "changed": CONTENDED, "unknown": UNAVAILABLE}[result.outcome]


def _check_token(seen: LockInfo, token: int | None) -> None:
    if token is not None and token != seen.token:
        raise CommandError(f"{seen.name}: its token is {seen.token} and not {token}; nothing was changed", CONTENDED)


def confirmed(question: str) -> bool:
    """A person says yes. Where there is nobody to ask, --yes is needed."""
    from handfast.cli.output import printable

    if not sys.stdin.isatty():
        raise CommandError("there is no terminal to ask at: pass --yes if you are sure", USAGE)
    print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _tell(result: Broken) -> None:
    from handfast.cli.output import note, printable

    name, whom = printable(result.lock.name), printable(result.lock.owner.short)
    token = "" if result.lock.token is None else f", token {result.lock.token}"
    if result.outcome == "broken":
        print(f"{name}: taken away from {whom}{token}")
        if result.now is not None:
            print(f"{name}: held by {printable(result.now.owner.short)} now")
    elif result.outcome == "changed":
        note(f"{name}: {whom} does not hold it any more, or has another token; nothing was changed. Look again.")
    else:
        note(f"{name}: too few servers could be asked, so {whom} may still hold it")
    if result.outcome != "changed":
        for node, said in result.nodes.items():
            if said not in ("broken", "handed over", "not held"):
                note(f"{node}: {said}")


COMMAND: Final = Command(
    name="break",
    summary="Take a lock away from its holder.",
    description="""
For a holder that hangs while its lock is renewed. Shows the holder, and asks first. The lock is broken only if it still
has the owner and the token that were shown; the servers compare them in the same step. The next waiter gets it at once.
The holder finds out at its next renewal, and its token is smaller than that of every later holder.

Each server writes who broke the lock, and why, to a stream, handfast:audit, which keeps the last 1000; handfast show
displays them. Without that line nothing is broken.
""",
    run=_break,
    arguments=(NAME,),
    options=(
        Option("--yes", "Do not ask."),
        Option("--token", "Only if this is still its token.", "TOKEN", number),
        Option("--reason", "Goes into the audit line.", "TEXT", default=""),
        JSON,
        *SERVER_OPTIONS,
    ),
    examples=(
        ("Look, then break.", "handfast break nightly --reason 'host is on fire'"),
        ("For a script: only what was seen.", "handfast break nightly --yes --token 1794849212245028"),
    ),
    statuses=(
        ("0", "The lock was broken."),
        (str(FREE), "Nobody holds it, or the question was answered with no."),
        (str(UNAVAILABLE), "Too few servers could be asked."),
        (str(CONTENDED), "It has changed hands meanwhile, or its token is another; nothing was changed."),
    ),
)
