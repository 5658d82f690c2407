"""Records what many processes do under a lock, and checks that it was allowed.

Each process appends its events to a file of its own. An event is one line in one write, so the file of a killed process
is complete up to its last moment. All processes are on one machine and share one monotonic clock (`now`), so sorting
their intervals is enough to find two holders at once.

A *holding* lasts from the return of the acquisition to its end as its holder knew it: the last moment at which the lease
said that it was valid. A *write* is a value that was computed from another (`base`), with the number that the resource
gave it. The numbers are consecutive, so a missing one shows a writer that was killed before it could record its write.

    overlap         another holder began to hold a name before a holding of it had ended
    order           acquisition B began after A had returned, and B's token is not larger
    duplicate       two holdings of one name have the same token
    lost update     a write replaced a value that its writer had not read, and both were written under a valid lease
    late write      as lost update, but one of the two was written after its lease had ended: only a token prevents it
    lower token     the resource accepted a token lower than one that it had accepted before
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ..net.clock import now

__all__ = ["Failure", "History", "Holding", "Recorder", "Violation", "Write", "now", "read"]


@dataclass(frozen=True)
class Holding:
    """An owner believed that it held a lock."""

    name: str
    owner: str
    token: int | None
    began: float
    """When the acquisition began."""
    since: float
    """When the acquisition returned."""
    until: float
    """The end of the lease, as known at the time of the record. The last record of a holding counts."""
    process: int
    over: bool = False
    """The holding has ended. Before that, the death of its process ends it as well."""


@dataclass(frozen=True)
class Failure:
    """An acquisition failed."""

    name: str
    began: float
    ended: float
    reason: str
    process: int


@dataclass(frozen=True)
class Write:
    """An owner wrote a value that it had computed from `base`."""

    register: str
    base: int
    value: int
    token: int | None
    order: int | None
    """The resource's number for the write; None if the resource refused it."""
    late: bool
    """The lease had ended before the write was complete."""
    owner: str
    process: int


@dataclass(frozen=True)
class Death:
    """A process was killed."""

    process: int
    at: float


@dataclass(frozen=True)
class Violation:
    """A broken guarantee. `where` is the name of the lock or of the register."""

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.where}: {self.text}"


EVENTS: Final = {kind.__name__: kind for kind in (Holding, Failure, Write, Death)}


class Recorder:
    """Writes the events of one process. Threads may share it. A forked process needs its own."""

    def __init__(self, folder: Path | str) -> None:
        self._process = os.getpid()
        path = Path(folder, f"{self._process}.history")
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def took(self, name: str, owner: str, token: int | None, *, began: float, until: float) -> Holding:
        """Record an acquisition that has just returned: when it began, and until when its lease is valid."""
        holding = Holding(name, owner, token, began, now(), until, self._process)
        self._write(holding)
        return holding

    def renewed(self, holding: Holding, until: float) -> None:
        """Record a renewal. Only needed if the process may be killed before `ended`."""
        self._write(replace(holding, until=until))

    def ended(self, holding: Holding, until: float) -> None:
        """Record the end, before the release is sent. `until` is now, or the end of the lease if that was earlier."""
        self._write(replace(holding, until=until, over=True))

    def failed(self, name: str, reason: str, *, began: float) -> None:
        self._write(Failure(name, began, now(), reason, self._process))

    def wrote(
        self, register: str, base: int, value: int, *, token: int | None, order: int | None, late: bool, owner: str
    ) -> None:
        """Record a write after the resource has replied. `order` is its number for the write; None if it refused."""
        self._write(Write(register, base, value, token, order, late, owner, self._process))

    def died(self, process: int) -> None:
        """Record that another process was killed: it holds nothing any more."""
        self._write(Death(process, now()))

    def close(self) -> None:
        os.close(self._file)

    def _write(self, event: Holding | Failure | Write | Death) -> None:
        line = json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n"
        os.write(self._file, line.encode())


@dataclass
class History:
    """All events, sorted by the time of their beginning, and the violations in them."""

    holdings: list[Holding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return sorted({each.name for each in self.holdings} | {each.name for each in self.failures})

    def violations(self) -> list[Violation]:
        """All violations, whatever faults were injected. The caller knows which of them those faults explain."""
        found: list[Violation] = []
        for name in self.names:
            held = sorted((each for each in self.holdings if each.name == name), key=lambda each: each.since)
            found += [*_overlaps(name, held), *_disorder(name, held), *_duplicates(name, held)]
        for register in sorted({each.register for each in self.writes}):
            accepted = sorted(_accepted(self.writes, register), key=lambda pair: pair[0])
            found += [*_lost_updates(register, accepted), *_lower_tokens(register, accepted)]
        return found

    def idle(self, name: str, begin: float, end: float) -> float:
        """The longest time between `begin` and `end` in which no owner held the lock."""
        longest, free_since = 0.0, begin
        for each in sorted(self.holdings, key=lambda each: each.since):
            if each.name == name and each.until > begin and each.since < end:
                longest = max(longest, each.since - free_since)
                free_since = max(free_since, each.until)
        return max(longest, end - free_since, 0.0)

    def stuck(self, since: float) -> list[str]:
        """Names of locks with a failed acquisition since `since`, and no successful one."""
        wanted = {each.name for each in self.failures if each.ended > since}
        return sorted(wanted - {each.name for each in self.holdings if each.since > since})


def read(folder: Path | str) -> History:
    """Read the events that all processes have recorded in this folder so far."""
    history, deaths = History(), dict[int, float]()
    held: dict[tuple[int, str, str, float], Holding] = {}
    for event in _events(Path(folder)):
        if isinstance(event, Holding):
            held[event.process, event.name, event.owner, event.since] = event
        elif isinstance(event, Failure):
            history.failures.append(event)
        elif isinstance(event, Write):
            history.writes.append(event)
        else:
            deaths[event.process] = event.at
    for each in held.values():
        until = each.until if each.over else min(each.until, deaths.get(each.process, math.inf))
        if until > each.since:
            history.holdings.append(replace(each, until=until))
    history.holdings.sort(key=lambda each: each.since)
    history.failures.sort(key=lambda each: each.began)
    return history


def _events(folder: Path) -> Iterator[Holding | Failure | Write | Death]:
    for path in sorted(folder.glob("*.history")):
        lines = path.read_text().split("\n")
        for line in lines[:-1]:  # the text after the last line break is empty or incomplete
            fields: dict[str, Any] = json.loads(line)
            yield EVENTS[fields.pop("event")](**fields)


def _overlaps(name: str, held: Iterable[Holding]) -> Iterator[Violation]:
    """One violation for each holding during which others began: a holder that never notices is one fault, not many."""
    last: Holding | None = None
    told = False
    for each in held:
        if last is not None and each.since < last.until and not told:
            both = min(last.until, each.until) - each.since
            yield Violation("overlap", name, f"{each.owner} held it for {both:.6f} s together with {last.owner}")
            told = True
        if last is None or each.until > last.until:
            last, told = each, False


def _disorder(name: str, held: list[Holding]) -> Iterator[Violation]:
    returned = [each for each in held if each.token is not None]
    ahead, highest = 0, 0
    for each in sorted(returned, key=lambda each: each.began):
        while returned[ahead].since < each.began:
            highest = max(highest, returned[ahead].token or 0)
            ahead += 1
        if (each.token or 0) <= highest:
            yield Violation("order", name, f"token {each.token} of {each.owner} after {highest} was given out")


def _duplicates(name: str, held: Iterable[Holding]) -> Iterator[Violation]:
    for token, times in Counter(each.token for each in held if each.token is not None).items():
        if times > 1:
            yield Violation("duplicate", name, f"token {token} was given out {times} times")


def _accepted(writes: Iterable[Write], register: str) -> list[tuple[int, Write]]:
    return [(each.order, each) for each in writes if each.register == register and each.order is not None]


def _lost_updates(register: str, accepted: list[tuple[int, Write]]) -> Iterator[Violation]:
    for (before, last), (order, write) in pairwise(accepted):
        if order == before + 1 and write.base != last.value:
            kind = "late write" if write.late or last.late else "lost update"
            text = f"write {order} by {write.owner} was made from {write.base}, and replaced {last.value} by {last.owner}"
            yield Violation(kind, register, text)


def _lower_tokens(register: str, accepted: list[tuple[int, Write]]) -> Iterator[Violation]:
    highest = 0
    for order, write in accepted:
        if write.token is not None and write.token < highest:
            yield Violation("lower token", register, f"write {order} had {write.token}, {highest} had been seen")
        highest = max(highest, write.token or 0)
