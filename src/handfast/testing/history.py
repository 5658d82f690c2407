"""What many processes did under a lock, and whether it was allowed.

Each process appends what it does to a file of its own, one line in one write, so the file of a process that was killed is
good up to its last moment. All processes are on one machine and so have one clock that never goes back (`now`): to
find two holders at once it is enough to sort their intervals.

A *holding* lasts from the return of the acquisition to its end, as its holder believed: the last moment at which the
lease said that it was valid. A *write* is a value that was computed from another (`base`), with the number that the
resource gave it; numbers are consecutive, so that one that is missing (its writer was killed before it could tell) shows.

    overlap         somebody else began to hold a name before a holding of it had ended
    order           B began after A had returned, and B's token is not larger
    duplicate       two holdings of one name with the same token
    lost update     a write replaced a value that its writer had not read, both written under a valid lease
    late write      the same, but one of the two was written after its lease had ended: no lock prevents it, a token can
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
    """Somebody believed to hold a lock."""

    name: str
    owner: str
    token: int | None
    began: float
    """When the acquisition was asked for."""
    since: float
    """When it returned."""
    until: float
    """The end of the lease, as known when this was written; the last word on it is what counts."""
    process: int
    over: bool = False
    """It has ended: before that, the death of its process ends it too."""


@dataclass(frozen=True)
class Failure:
    """Somebody wanted a lock and did not get it."""

    name: str
    began: float
    ended: float
    reason: str
    process: int


@dataclass(frozen=True)
class Write:
    """Somebody wrote what it had computed from `base`."""

    register: str
    base: int
    value: int
    token: int | None
    order: int | None
    """The resource's own number for it; None if it was refused."""
    late: bool
    """Written, or still being written, after the lease had ended."""
    owner: str
    process: int


@dataclass(frozen=True)
class Death:
    """A process was killed."""

    process: int
    at: float


@dataclass(frozen=True)
class Violation:
    """What is not allowed. `where` is the lock or the register."""

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.where}: {self.text}"


EVENTS: Final = {kind.__name__: kind for kind in (Holding, Failure, Write, Death)}


class Recorder:
    """Where one process writes down what it does. Threads may share it; a process after a fork needs its own."""

    def __init__(self, folder: Path | str) -> None:
        self._process = os.getpid()
        path = Path(folder, f"{self._process}.history")
        self._file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)

    def took(self, name: str, owner: str, token: int | None, *, began: float, until: float) -> Holding:
        """An acquisition that began then has just returned; its lease is believed in until then."""
        holding = Holding(name, owner, token, began, now(), until, self._process)
        self._write(holding)
        return holding

    def renewed(self, holding: Holding, until: float) -> None:
        """Only needed where a process may be killed: `ended` has the last word."""
        self._write(replace(holding, until=until))

    def ended(self, holding: Holding, until: float) -> None:
        """To be said before the release is sent: `until` is now, or when the lease ended if that was earlier."""
        self._write(replace(holding, until=until, over=True))

    def failed(self, name: str, reason: str, *, began: float) -> None:
        self._write(Failure(name, began, now(), reason, self._process))

    def wrote(
        self, register: str, base: int, value: int, *, token: int | None, order: int | None, late: bool, owner: str
    ) -> None:
        """After the resource has answered, with its number for the write; None if it refused."""
        self._write(Write(register, base, value, token, order, late, owner, self._process))

    def died(self, process: int) -> None:
        """Of another process, after it was killed: from now on it holds nothing."""
        self._write(Death(process, now()))

    def close(self) -> None:
        os.close(self._file)

    def _write(self, event: Holding | Failure | Write | Death) -> None:
        line = json.dumps({"event": type(event).__name__, **asdict(event)}) + "\n"
        os.write(self._file, line.encode())


@dataclass
class History:
    """What happened, in the order of its beginning, and what is wrong with it."""

    holdings: list[Holding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return sorted({each.name for each in self.holdings} | {each.name for each in self.failures})

    def violations(self) -> list[Violation]:
        """Everything that is not allowed, whatever the faults were; which of it was to be expected, the caller knows."""
        found: list[Violation] = []
        for name in self.names:
            held = sorted((each for each in self.holdings if each.name == name), key=lambda each: each.since)
            found += [*_overlaps(name, held), *_disorder(name, held), *_duplicates(name, held)]
        for register in sorted({each.register for each in self.writes}):
            accepted = sorted(_accepted(self.writes, register), key=lambda pair: pair[0])
            found += [*_lost_updates(register, accepted), *_lower_tokens(register, accepted)]
        return found

    def idle(self, name: str, begin: float, end: float) -> float:
        """The longest time in which nobody held it, between these moments."""
        longest, free_since = 0.0, begin
        for each in sorted(self.holdings, key=lambda each: each.since):
            if each.name == name and each.until > begin and each.since < end:
                longest = max(longest, each.since - free_since)
                free_since = max(free_since, each.until)
        return max(longest, end - free_since, 0.0)

    def stuck(self, since: float) -> list[str]:
        """Locks that somebody has asked for since then, in vain, and that nobody has got."""
        wanted = {each.name for each in self.failures if each.ended > since}
        return sorted(wanted - {each.name for each in self.holdings if each.since > since})


def read(folder: Path | str) -> History:
    """What all processes have written down so far in this folder."""
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
        for line in lines[:-1]:  # what follows the last line break is nothing, or torn
            fields: dict[str, Any] = json.loads(line)
            yield EVENTS[fields.pop("event")](**fields)


def _overlaps(name: str, held: Iterable[Holding]) -> Iterator[Violation]:
    """One for each holding in which others began: a holder that never notices is one fault, however many come."""
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
