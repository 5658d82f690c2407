"""Errors for acquisitions that failed: they name the holder, and the answer of each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from handfast.core.config import LockKeys
from handfast.core.io import SILENT, Fault
from handfast.core.nodes import NodeGroup
from handfast.core.votes import is_grant
from handfast.errors import ConfigError, Contended, NoQuorum, NotAcquired
from handfast.protocol.claims import Refused

__all__ = ["cannot_succeed", "contended", "describe", "not_acquired"]


def contended(group: NodeGroup, answers: Sequence[Any], *, decided: bool = False) -> bool:
    """Whether another owner has the lock, and enough nodes say so. Faults alone do not explain such a failure."""
    refused = any(a is not None and type(a) is not Fault and not is_grant(a) for a in answers)
    faults = sum(1 for a in answers if type(a) is Fault or (a is None and not decided))
    return refused and faults <= group.n - group.need


def cannot_succeed(group: NodeGroup, answers: Sequence[Any]) -> bool:
    """Whether so many nodes have a lasting fault that the others are no majority."""
    lasting = 0
    for answer in answers:
        if type(answer) is Fault and answer.lasting:
            lasting += 1
    return lasting > group.n - group.need


def describe(group: NodeGroup, answers: Sequence[Any], timeout: float, *, decided: bool = False) -> dict[str, str]:
    """The answer of each node, in words."""
    said: dict[str, str] = {}
    for node, answer in zip(group.nodes, answers, strict=True):
        if answer is None:
            # If the other nodes have decided already, this one had no time to answer.
            silent = "had not answered yet" if decided else f"no answer in {timeout * 1000:.0f} ms"
            text = node.fault.text if node.fault is not None else silent
        elif type(answer) is Fault:
            text = answer.text
        elif is_grant(answer):
            text = "granted"
        elif type(answer) is Refused and answer.holder:
            text = f"held by {answer.holder.decode(errors='replace')}"
        else:
            text = "held by another"
        said[node.label] = text
    return said


def _bootstrap_hint(group: NodeGroup, answers: Sequence[Any]) -> str:
    """A hint if no node votes, as in a new deployment."""
    quarantined = sum(1 for a in answers if type(a) is Fault and a.kind == "quarantine")
    if group.voters() or quarantined < group.need:
        return ""
    return f"if these servers are new and nobody has used them, {group.bootstrap_call} opens them at once"


_NEXT_STEP: Final = {
    "MOVED": "use redis+cluster:// in the URL",
    "NOAUTH": "put user name and password into the URL, as in redis://user:password@host",
    "NOPERM": "give this user the rights that README lists under Known limits",
    "OOM": "free memory on the server, or raise its maxmemory",
    "READONLY": "name the master in the URL, or let Sentinel find it with redis+sentinel://",
    "WRONGPASS": "check user name and password in the URL",
    "WRONGTYPE": "choose another name, or another prefix=",
    "database": "choose another database in the URL",
    "dns": "check the host name in the URL",
    "maxclients": "raise the server's maxclients, or use fewer connections",
    "refused": "check that the server runs, and its address in the URL",
    "timeout": "check the server and the network to it",
}
"""What to do about a fault, by its kind. Other faults pass by themselves, or their text says what to do."""


def _next_step(answers: Sequence[Any], *, decided: bool) -> str:
    """What to do about the faults, once for each kind. The text of a fault may say it already, behind a semicolon."""
    faults = [SILENT if answer is None and not decided else answer for answer in answers]
    kinds = dict.fromkeys(fault.kind for fault in faults if type(fault) is Fault and ";" not in fault.text)
    return "; ".join(_NEXT_STEP[kind] for kind in kinds if kind in _NEXT_STEP)


def not_acquired(
    target: LockKeys,
    answers: Sequence[Any],
    timeout: float,
    *,
    age: float = 0.0,
    decided: bool = False,
    won: bool = False,
) -> NotAcquired | ConfigError:
    """The error for these answers, which are `age` seconds old. `won`: a majority granted, but the hold failed."""
    group, name = target.group, target.name
    for node, answer in zip(group.nodes, answers, strict=True):
        if type(answer) is Fault and answer.kind == "config":
            return ConfigError(f"{node.label}: {answer.text}")
    nodes = describe(group, answers, timeout, decided=decided)
    if not contended(group, answers, decided=decided):
        if won:
            nodes = dict.fromkeys(
                nodes, "granted, but too late for the lease's validity, or with no agreement on a token"
            )
        granted = 0 if won else sum(1 for answer in answers if is_grant(answer))
        hint = _bootstrap_hint(group, answers) or _next_step(answers, decided=decided)
        return NoQuorum(name, granted=granted, needed=group.need, total=group.n, nodes=nodes, hint=hint)
    refusals = [answer for answer in answers if type(answer) is Refused and answer.holder]
    if not refusals:
        return Contended(name, holder=None, remaining=None, nodes=nodes)
    holders = [refusal.holder for refusal in refusals]
    holder = max(holders, key=holders.count)
    left = max(refusal.left_ms for refusal in refusals if refusal.holder == holder)
    remaining = None if left < 0 else max(0.0, left / 1000 - age)
    return Contended(name, holder=holder.decode(errors="replace"), remaining=remaining, nodes=nodes)
