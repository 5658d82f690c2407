"""What locks and leases can say of themselves, without talking to anybody: the half that threads and asyncio share."""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any, NoReturn, Protocol

from handfast import log
from handfast.core import renewal
from handfast.core.commands import Request
from handfast.core.hold import HELD, Hold
from handfast.core.terms import Terms
from handfast.drivers.clock import now
from handfast.errors import LeaseLost, NoQuorum
from handfast.options import duration

__all__ = ["Entry", "LeaseView", "LockView"]


class Dropper(Protocol):
    """What a lease needs of its client at its end."""

    _ending: Callable[[Hold], None]

    def _unfinished(self, hold: Hold) -> None: ...


class Entry:
    """How often a lock is held under one owner: by a thread or task for a reentrant lock (one hold, shared), by whoever
    presents an explicit owner (a hold for each). The last release counts."""

    __slots__ = ("_home", "_key", "count", "hold", "token")

    def __init__(self, home: MutableMapping[Any, Entry], key: Any, hold: Hold | None) -> None:
        self._home = home
        self._key = key
        self.hold = hold
        """The hold that all share, if they do."""
        self.token = 0
        self.count = 1
        home[key] = self

    def enter(self, at: float) -> Hold | None:
        """Once more, if the shared hold is still held: that hold."""
        hold = self.hold
        if not self.count or hold is None or hold.state != HELD or hold.deadline <= at:
            return None
        self.count += 1
        return hold

    def leave(self) -> bool:
        """Once less; True if that was the last."""
        self.count -= 1
        if self.count:
            return False
        if self._home.get(self._key) is self:
            del self._home[self._key]
        return True


class LeaseView:
    """A lease: the right to do something until `remaining()` is 0. The owner is the lease, not a thread or a task."""

    __slots__ = ("__dict__", "__weakref__", "_client", "_entry", "_hold")

    _over = False
    """This view of a reentrant lease was released; the hold may go on."""
    _still_ours = False
    _event: object = None

    def __init__(self, client: Dropper, hold: Hold, entry: Entry | None = None) -> None:
        self._client = client
        self._hold = hold
        self._entry = entry
        """Of a lock that is counted: a reentrant one, or one with an explicit owner."""

    @property
    def name(self) -> str:
        """The lock's name; several names are joined by a comma."""
        return self._hold.name

    @property
    def owner(self) -> str:
        """Who holds it, as the server knows it."""
        return self._hold.owner.decode(errors="replace")

    @property
    def token(self) -> int | None:
        """The fencing token: larger than that of every earlier acquisition of this name. None with fence=False."""
        return self._hold.token or None

    @property
    def votes(self) -> tuple[str, ...]:
        """The nodes known to hold it."""
        hold = self._hold
        return tuple(node.label for node in hold.group.nodes if hold.votes >> node.index & 1)

    def remaining(self) -> float:
        """Seconds of validity left on this machine's own clock; 0.0 when it is over."""
        hold = self._hold
        if hold.state != HELD or self._over:
            return 0.0
        return max(0.0, hold.deadline - now())

    @property
    def valid(self) -> bool:
        """Neither released nor lost, and some time is left."""
        return self.remaining() > 0.0

    def check(self, need: float = 0.0) -> None:
        """Raise LeaseLost unless at least `need` seconds are left: the last look before something irreversible."""
        seconds = need if need == 0.0 else duration(need, "need", zero=True)
        left = self.remaining()
        if left <= 0.0 or left < seconds:
            raise self._loss(f"{left:.3f} s left, {seconds:g} s needed" if left > 0.0 else "")

    def _leave(self) -> bool:
        """This lease of a counted lock ends here; True if it is the last, and what the server holds ends with it."""
        if self._over or self._entry is None:
            self._still_ours = False
            # Once more for the last of them: an interrupt may have struck before it was released.
            return self._entry is not None and not self._entry.count and self._hold.state == HELD
        self._over = True
        hold = self._hold
        self._still_ours = hold.state == HELD and hold.deadline > now()
        last = self._entry.leave()
        if not last and self._entry.hold is None and hold.leave():
            hold.end()
            self._client._ending(hold)
        return last

    def _confirm_extended(self) -> None:
        hold = self._hold
        if hold.state != HELD:
            raise self._loss()
        if hold.retrying:
            # Not a loss: it runs on to its deadline, and the watchdog goes on trying.
            group = hold.group
            confirmed = sum(1 for said in hold.doubts.values() if said == "confirmed")
            raise NoQuorum(
                hold.name, granted=confirmed, needed=group.need, total=group.n, nodes=hold.doubts
            )  # fmt: skip

    def _give_up(self) -> bool:
        """Nobody will release it any more; True if something was still held and now is the watchdog's to release."""
        hold = self._hold
        if hold.state != HELD or (self._entry is not None and not self._leave()):
            return False
        self._client._unfinished(hold)
        return True

    def __del__(self) -> None:
        # Better released now than renewed for ever; one that is not renewed is left to its ttl.
        try:
            hold = self._hold
        except AttributeError:
            return  # interrupted while it was made; its hold is undone where it was made
        if hold.state == HELD and hold.renew_until != 0.0 and self._give_up():
            log.warning("%s: a lease was dropped without release; it is released now", hold.name)

    def _loss(self, reason: str = "") -> LeaseLost:
        hold = self._hold
        if not reason:
            renewal.expire(hold, now())
            reason = "it was released" if self._over else hold.reason or f"it was {hold.state}"
        return LeaseLost(hold.name, owner=self.owner, token=self.token, reason=reason)

    def __repr__(self) -> str:
        hold, seconds = self._hold, self.remaining()
        state = hold.state if not self._over else "released"
        if state == HELD and seconds == 0.0:
            state = "expired"  # and lost as soon as the watchdog has looked at it
        left = f", {_shown(seconds)} left" if state == HELD else ""
        fence = f", token {hold.token}" if hold.token else ""
        return f"<{type(self).__name__} {hold.name!r} {state}{left}{fence}, owner {self.owner}>"

    def __reduce__(self) -> NoReturn:
        # Also asked by copy.copy(): a copy would release the lock when it is dropped.
        raise TypeError(
            "a lease cannot be pickled or copied: send lease.token with the work, or take the lock where the work is done"
        )


def _shown(seconds: float) -> str:
    """A time that is left: so finely that it is never nothing."""
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{math.ceil(seconds * 1000)} ms"


class LockView(Request):
    """What to take, and how."""

    # With a dictionary for what few locks need; it is made when it is needed.
    __slots__ = ("__dict__", "_client", "_reentrant")

    _reentrant: bool

    def _terms(self, ttl: object) -> Terms:
        settings = self.settings
        return settings.terms if ttl is None else settings.terms_for(settings.policy.checked_ttl(ttl))

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Lock {self.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lock cannot be pickled or copied: send its name, and call lock() on a client of the process that needs it"
        )
