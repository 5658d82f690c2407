"""Who waits for what in this process, in the order of their coming.

There is one line for each lock that somebody waits for. Only its head talks to the servers; all others sleep until it
is their turn, so ten thousand waiting tasks are one waiter to a server. Whoever leaves a line, for whatever reason, wakes
the next one if it was the head.

A cohort's lock may also be given from its holder to the head of its line, without a word to any server (`pass_on`).

Several threads may use the same lines. Every change is made under `Lines.lock`, which is nobody's to keep: nothing is
awaited or sent under it. Only who leads a new line needs no lock for that (`lead`): it is one step of a dictionary.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final
from weakref import WeakValueDictionary

from handfast.core.commands import Request
from handfast.core.effects import Bell, Brief, Watch
from handfast.core.hold import HELD, Hold, Turn
from handfast.core.terms import Terms
from handfast.errors import ConfigError

YIELD: Final = 0.05
"""Seconds for which a cohort that has used up its turn leaves a free lock to those of other processes."""

__all__ = ["Line", "Lines", "Place", "Sight", "still_held"]


Sight = tuple[bytes | None, int, float, dict[str, str] | None]
"""What was last seen of a lock's holder, for whoever gives up waiting for it: who it was; for how many milliseconds more
(negative: without end); when that was; and what each node said, or None where the only one said who holds it."""


class Place(Watch):
    """One waiter's place in a line, and what it gets to hear there."""

    # What few places need are class attributes until one differs.
    vouched = 0
    """The second until which its brief claim is good, as the server has answered it."""
    asked = False
    """Something was sent that is to be undone if it comes to nothing."""
    sent = 0.0
    """When it last asked, by our clock, just before."""
    hold: Any = None
    """Of a fair lock: what its owner will hold, if it comes to that."""
    lease: Any = None
    """What it has come to."""
    told = False
    """It was told of that it waits."""
    split = False
    """Its last attempt won some nodes, and not enough."""

    def __init__(
        self, line: Line, request: Request, terms: Terms, bell: Bell | None, since: float, wait: float | None, who: Any
    ) -> None:
        self.bell = bell
        self.keys = ()
        self.changed = set()
        self.message = ()
        self.claim = b""
        """Of a fair lock: its entry in the server's queue, as the server has last answered it."""
        self.owner = b""
        self.time = 0.0
        """When it last asked by the server's clock, then; 0.0 if it was not told."""
        self.given: Hold | None = None
        """What a sibling has passed on to it."""
        self.line = line
        self.request = request
        self.terms = terms
        self.since = since
        self.wait = wait
        self.who = who
        """The thread or task."""
        self.until = None if wait is None else since + wait
        self.headed = since
        """When it came to the head of its line."""

    def come_as(self, nonce: bytes) -> None:
        """For a fair lock: under a new owner, and with all that can be made of a hold beforehand. Once it is ours others
        wait for every microsecond."""
        # In capitals: by this those who wait can tell a holder that will hand over from one that will not.
        self.owner = self.request.settings.owner_start + nonce.upper()
        self.hold = Hold(self.request, self.owner, self.terms.ttl, 0.0, 0.0, 1, 0)

    def usable(self, now: float) -> Hold | None:
        """What a sibling has given to it, if it is still good; what is not is forgotten, it ends by itself."""
        if self.given is not None and not still_held(self.given, now):
            self.given = None
        return self.given

    def at_most(self, seconds: float, now: float) -> float:
        """So long, and no longer than it waits."""
        return seconds if self.until is None else Brief(seconds, max(0.0, self.until - now))

    def sooner(self, at: float) -> float:
        """That moment, or the end of its waiting."""
        return at if self.until is None else min(at, self.until)


class Line:
    """All who wait for one lock."""

    crowd: OrderedDict[Place, None] | None = None
    """Ordered, and any of them can leave at once; made for the second to come: many lines have only ever one place."""
    head: Place | None = None
    keys: bytes | tuple[bytes, ...] = b""
    sight: Sight | None = None
    barred: tuple[float, dict[str, str]] | None = None
    """Since when the nodes that answer may not vote, and what each says; None while a majority may."""
    hailed = False
    """Its head waits briefly, and does not look at what it was answered so far."""
    queued = False
    """A server has said that somebody holds it, and did not say who."""
    outage: float | None = None
    """Since when no majority could be asked; None while one can."""
    holder: Hold | None = None
    """What somebody of this line got last, if it may still be held."""
    yields = 0.0
    """Until when those of other processes are let go first."""

    @property
    def places(self) -> list[Place]:
        """The head first."""
        return list(self.crowd) if self.crowd is not None else [] if self.head is None else [self.head]


class Lines:
    """The lines of one client."""

    def __init__(
        self, lock: AbstractContextManager[Any], warn: Callable[[str], None], tell: Callable[[Place, float, str], None]
    ) -> None:
        self.lock = lock
        self.warn = warn
        self.telling = False
        """Somebody wants to know."""
        self.tell = tell
        """Told of each waiting's beginning (no outcome) and end: who, after how many seconds, and how it ended."""
        self.closed = False
        self.exiting = False
        """The whole process ends."""
        self.near_from = 0.0
        """Since when, or from when on, servers are thought to be so near that waiting briefly makes sense."""
        self.warned = False
        """It was said that a server refuses tracking."""
        self.by_keys: dict[bytes | tuple[bytes, ...], Line] = {}
        self.turns: WeakValueDictionary[bytes | tuple[bytes, ...], Turn] = WeakValueDictionary()
        """Of cohorts' locks: the last that this client has begun."""

    def join(self, request: Request, terms: Terms, bell: Bell, since: float, wait: float | None, who: Any) -> Place:
        """To the end of its line."""
        keys = request.key or request.keys
        place: Place | None = None
        try:
            with self.lock:
                if self.closed:
                    raise ConfigError("this client is closed")
                line = self.by_keys.get(keys)
                if line is None:
                    line = Line()
                    line.keys, line.crowd = keys, None
                    line.head = place = Place(line, request, terms, bell, since, wait, who)
                    found = self.by_keys.setdefault(keys, line)
                    if found is line:
                        return place
                    line = found  # somebody leads a line of its own since a moment ago
                place = Place(line, request, terms, bell, since, wait, who)
                if line.head is None:  # whoever left last was struck before the line was forgotten
                    line.head, line.crowd = place, None
                elif line.crowd is None:
                    line.crowd = OrderedDict.fromkeys((line.head, place))
                    if line.hailed:  # what it was answered matters to others now
                        line.head.bell.set()
                else:
                    line.crowd[place] = None
            return place
        except BaseException:
            self._never_joined(place)
            raise

    def lead(
        self, request: Request, terms: Terms, bell: Bell, since: float, wait: float | None, who: Any
    ) -> Place | None:
        """Be the head of a line that nobody stands in; None if somebody does, or all is over.

        Without the lock: a line with its head in it is put there in one step.
        """
        line = Line()
        line.keys, line.crowd = request.key, None
        line.head = place = Place(line, request, terms, bell, since, wait, who)
        try:
            if self.by_keys.setdefault(request.key, line) is not line:
                return None
            if not self.closed:
                return place
        except BaseException:
            self.leave(place)
            raise
        self.leave(place)
        return None

    def _never_joined(self, place: Place | None) -> None:
        """An interrupt: the place may stand in the line already, and nobody else would know of it."""
        if place is not None:
            self.leave(place)

    def leave(self, place: Place) -> Hold | None:
        """Out of the line; what was given to it and not taken, if anything. Harmless if it is not in it."""
        line = place.line
        with self.lock:
            given, place.given = place.given, None
            crowd = line.crowd
            # Who has left already does it again after an interrupt: perhaps it has woken nobody.
            if crowd is None:
                was_first = line.head is place
                heir = None if was_first else line.head
            else:
                was_first = line.head is place or place not in crowd
                crowd.pop(place, None)
                heir = next(iter(crowd), None)
            line.head = heir
            if heir is None and self.by_keys.get(line.keys) is line:
                del self.by_keys[line.keys]
        if was_first and heir is not None:
            heir.bell.set()
        return given

    def pass_on(self, hold: Hold, now: float) -> Hold | None:
        """Give what is held to the head of its line; what that now holds, or None if it must be released instead.

        As often in a row as the cohort says, and for no longer than a ttl since it was taken from the server: those of
        other processes wait too.
        """
        line, turn = self.by_keys.get(hold.key or hold.keys), hold.turn
        if line is None or turn is None or turn.over or hold.passes >= hold.settings.cohort:
            return None
        if now >= turn.ends or hold.deadline - now < hold.ttl / 2:
            return None
        with self.lock:
            heir = line.head
            if heir is None or heir.given is not None or not _alike(heir, hold) or not hold.leave():
                return None
            hold.heir = heir.given = passed = hold.successor()
        hold.end()
        heir.bell.set()
        return passed

    def took(self, hold: Hold) -> None:
        """It was taken from the servers: if a cohort's, an older turn of the same lock is over."""
        turn, keys = hold.turn, hold.key or hold.keys
        if turn is not None:
            last = self.turns.get(keys)
            if last is not None and last is not turn:
                last.over = True
            self.turns[keys] = turn

    def letting_go(self, hold: Hold, now: float) -> None:
        """A cohort's lock is about to be released on the servers: nobody of ours takes it before it is known whether
        others want it."""
        line = self.by_keys.get(hold.key or hold.keys)
        if line is not None:
            line.yields = now + YIELD

    def let_go(self, hold: Hold, others: bool) -> None:
        """It was released; if others wait for it, they are let go first."""
        line = self.by_keys.get(hold.key or hold.keys)
        if line is not None and not others:
            line.yields = 0.0
            head = line.head
            if head is not None:
                head.bell.set()

    def began(self, place: Place) -> None:
        """It has to wait."""
        if self.telling and not place.told:
            place.told = True
            self.tell(place, 0.0, "")

    def waited_for(self, request: Request) -> bool:
        """Somebody of this client stands in line for it."""
        return (request.key or request.keys) in self.by_keys

    def waiting(self, request: Request) -> list[Any]:
        """Who stands in a line, the head first."""
        with self.lock:
            line = self.by_keys.get(request.key or request.keys)
            return [place.who for place in line.places] if line is not None else []

    def close(self, *, exiting: bool = False) -> None:
        """Nobody gets anything any more; wake all, to let them know."""
        with self.lock:
            self.closed, self.exiting = True, exiting
            # A list first: who leads a line comes without the lock.
            places = [place for line in list(self.by_keys.values()) for place in line.places]
        for place in places:
            place.bell.set()


def _alike(place: Place, hold: Hold) -> bool:
    """What is held is what it wants, with the same ttl and the same kind of token."""
    request = place.request
    return request.settings is hold.settings and request.owner is None and place.terms.ttl == hold.ttl


def still_held(hold: Hold | None, now: float) -> bool:
    return hold is not None and hold.state == HELD and now < hold.deadline
