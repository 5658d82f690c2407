"""The part of locks and leases that both facades share. It sends nothing: it knows validity, reentry and open blocks."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final, NoReturn

from handfast.core import renew
from handfast.core.config import LockConfig, LockRequest, Timing
from handfast.core.hold import HELD, Hold
from handfast.errors import LeaseLost, NoQuorum
from handfast.net.clock import now
from handfast.options import duration
from handfast.protocol.keys import queue_keys

__all__ = ["BaseLease", "BaseLock", "Block", "Blocks", "Reentries", "Reentry", "loss_of"]


FEW: Final = 8
"""The number of reentrant locks of one thread that are not worth a look."""


class Reentry:
    """Counts how often a thread or task has entered a reentrant lock. All its leases share one hold, and only the last
    release ends it."""

    __slots__ = ("_home", "_key", "count", "hold")

    def __init__(self, home: Reentries, key: Any, hold: Hold) -> None:
        self._home = home
        self._key = key
        self.hold = hold
        self.count = 1
        home[key] = self
        if len(home) > home.most:
            home.forget_ended()

    def enter(self, at: float) -> Hold | None:
        """Enter again and return the hold; None if it is not held any more."""
        if not self.count or not self.hold.held_at(at):
            return None
        self.count += 1
        return self.hold

    def leave(self) -> bool:
        """Leave once. True if this was the last time."""
        self.count -= 1
        if self.count:
            return False
        if self._home.get(self._key) is self:
            del self._home[self._key]
        return True


class Reentries(dict[Any, Reentry]):
    """The reentrant locks that one thread or task holds, by keys."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        super().__init__()
        self.most = FEW
        """With more entries than this, those that have ended are dropped."""

    def forget_ended(self) -> None:
        """Drop the entries of leases that were not released: they were lost, or dropped and left to their ttl. This is
        called after as many new entries as it has left over, so a new entry costs no more if there are many."""
        for entry in list(self.values()):
            if entry.hold.state != HELD:
                self.pop(entry._key, None)
        self.most = max(FEW, 2 * len(self))


class Block:
    """One open `with` block. It does not keep its lease alive. If an interrupt strikes before `__exit__` begins, the
    block is never left, and the lease is released when its lock is dropped."""

    __slots__ = ("caller", "frame", "hold")

    def __init__(self, caller: Any, hold: Hold, frame: int) -> None:
        self.caller = caller
        """The thread or task that entered the block."""
        self.hold = hold
        self.frame = frame
        """The id of the frame that contains the block; 0 for asyncio, where it is not needed."""

    def encloses_this_call(self) -> bool:
        """Whether this call is made inside the block, directly or not.

        While a generator is suspended, its block is not on the stack, and another thread may end it. So a thread that
        waits for the lock of such a block does not wait for itself.
        """
        if not self.frame or _runs_a_loop():
            return True  # this thread blocks its event loop, so it cannot resume a generator or a task
        frame = sys._getframe()
        while id(frame) != self.frame:
            if frame.f_back is None:
                return False
            frame = frame.f_back
        return True


def _runs_a_loop() -> bool:
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


class Blocks:
    """The open blocks of a client, by key. A caller looks here to see whether it would wait for itself.

    A caller that has entered several times, as an explicit owner or by a reentrant lock, has its outermost block here. If
    several callers have, it is the first one's. No lock is needed, because every step is atomic.
    """

    def __init__(self) -> None:
        self.by_key: dict[bytes, Block] = {}

    def enter(self, block: Block) -> None:
        for key in block.hold.keys:
            before = self.by_key.setdefault(key, block)
            if before is not block and before.hold.state != HELD:
                self.by_key[key] = block

    def leave(self, block: Block) -> None:
        for key in block.hold.keys:
            if self.by_key.get(key) is block:
                self.by_key.pop(key, None)

    def held_around(self, caller: Any, request: LockRequest, at: float) -> str | None:
        """A requested name that the caller already holds in a block around this call, or None."""
        for name, key in zip(request.names, request.keys, strict=True):
            block = self.by_key.get(key)
            if block is not None and block.caller == caller and block.hold.held_at(at) and block.encloses_this_call():
                return name
        return None


class BaseLease:
    """A lease: the right to act until `remaining()` is 0. It belongs to no thread or task: any of them may release it."""

    __slots__ = ("__dict__", "__weakref__", "_block", "_client", "_hold", "_reentry")

    _left = False
    """This lease of a reentrant lock was released. The hold may go on."""
    _was_valid = False
    """Whether the lease was valid at that moment."""
    _event: object = None

    def __init__(self, client: Any, hold: Hold, reentry: Reentry | None = None) -> None:
        self._client = client
        self._hold = hold
        self._reentry = reentry
        self._block: Block | None = None
        """The open `with` block of this lease."""

    def _enter_block(self, block: Block) -> None:
        self._block = block
        self._client._blocks.enter(block)

    def _leave_block(self) -> Block | None:
        """Leave the block, if it is open, and return it."""
        block, self._block = self._block, None
        if block is not None:
            self._client._blocks.leave(block)
        return block

    @property
    def name(self) -> str:
        """The lock's name. Several names are joined by commas."""
        return self._hold.name

    @property
    def owner(self) -> str:
        """The owner in the lock's key on the servers."""
        return self._hold.who.owner.decode(errors="replace")

    @property
    def token(self) -> int | None:
        """The fencing token. It is larger than the token of every earlier acquisition of this name. None with
        fence=False."""
        return self._hold.token or None

    @property
    def votes(self) -> tuple[str, ...]:
        """The nodes that are known to have given their vote."""
        hold = self._hold
        return tuple(node.label for node in hold.group.nodes if hold.votes >> node.index & 1)

    def remaining(self) -> float:
        """Seconds of validity left, on this machine's clock; 0.0 after the end."""
        hold = self._hold
        if hold.state != HELD or self._left:
            return 0.0
        return max(0.0, hold.deadline - now())

    @property
    def valid(self) -> bool:
        """Whether the lease is neither released nor lost, and time is left."""
        return self.remaining() > 0.0

    def check(self, need: float = 0.0) -> None:
        """Raise LeaseLost unless at least `need` seconds are left. Call this before an irreversible step."""
        seconds = need if need == 0.0 else duration(need, "need", zero=True)
        left = self.remaining()
        if left <= 0.0 or left < seconds:
            raise self._loss(f"{left:.3f} s left, {seconds:g} s needed" if left > 0.0 else "")

    def _leave(self) -> bool:
        """End this lease of a reentrant lock. True if it is the last one, so that the hold must be released."""
        assert self._reentry is not None
        if self._left:
            self._was_valid = False
            # Release the last one again: an interrupt may have struck before the release.
            return not self._reentry.count and self._hold.state == HELD
        self._left = True
        self._was_valid = self._hold.held_at(now())
        return self._reentry.leave()

    def _confirm_extended(self) -> None:
        hold = self._hold
        if hold.state != HELD:
            raise self._loss()
        if hold.retrying:
            # This is no loss: the lease is valid until its deadline, and the watchdog tries again.
            group, nodes = hold.group, hold.renewal_replies
            confirmed = sum(1 for said in nodes.values() if said == "confirmed")
            raise NoQuorum(hold.name, granted=confirmed, needed=group.need, total=group.n, nodes=nodes)

    def _give_up(self) -> bool:
        """Let the watchdog release this lease. True if it was still held."""
        hold = self._hold
        if hold.state != HELD or (self._reentry is not None and not self._leave()):
            return False
        self._client._abandon_lease(hold)
        return True

    def __del__(self) -> None:
        # Without this a dropped lease would be renewed for ever. A lease that is not renewed is left to its ttl.
        try:
            hold = self._hold
        except AttributeError:
            return  # an interrupt struck in __init__; `_take_back` handles the hold
        if hold.state == HELD and hold.renew_until != 0.0 and self._give_up():
            self._client._warn_soon("%s: a lease was dropped without release; it is released now", hold.name)

    def _expire(self) -> None:
        """Mark the hold lost if its deadline has passed and the watchdog has not noticed yet."""
        renew.expire(self._hold, now())

    def _loss(self, reason: str = "") -> LeaseLost:
        """The error for `reason`; without a reason, for the present state of the lease."""
        hold = self._hold
        if not reason:
            self._expire()
            reason = "it was released" if self._left else hold.why_ended or f"it was {hold.state}"
        return loss_of(hold, reason)

    def _note_loss(self, error: BaseException) -> None:
        """Add a note about the loss to the exception that the body has raised."""
        if not isinstance(error, LeaseLost) or error.owner != self.owner:
            note = str(self._loss(self._hold.reason))
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

    def __repr__(self) -> str:
        hold, seconds = self._hold, self.remaining()
        state = hold.state if not self._left else "released"
        if state == HELD and seconds == 0.0:
            state = "expired"  # the watchdog is about to mark it lost
        left = f", {_shown(seconds)} left" if state == HELD else ""
        fence = f", token {hold.token}" if hold.token else ""
        return f"<{type(self).__name__} {hold.name!r} {state}{left}{fence}, owner {self.owner}>"

    def __reduce__(self) -> NoReturn:
        # copy.copy() calls this too. A copy would release the lock when it is dropped.
        raise TypeError(
            "a lease cannot be pickled or copied: send lease.token with the work, or take the lock where the work is done"
        )


def loss_of(hold: Hold, reason: str) -> LeaseLost:
    owner = hold.who.owner.decode(errors="replace")
    return LeaseLost(hold.name, owner=owner, token=hold.token or None, reason=reason)


def _shown(seconds: float) -> str:
    """The remaining time as text, precise enough never to show 0."""
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{math.ceil(seconds * 1000)} ms"


class _NotOfLock:
    """An attribute that the locks of other libraries have. Here the lease has it.

    This is no `__getattr__`, which would slow down every access to every attribute of a lock.
    """

    def __init__(self, hint: str = "") -> None:
        self._hint = hint

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, lock: object, owner: type) -> NoReturn:
        hint = self._hint or f"keep the lease that acquire() returns, and use its {self._name}"
        raise AttributeError(f"a lock has no attribute {self._name!r}: {hint}", name=self._name, obj=lock)


class BaseLock(LockRequest):
    """A lock: the names to acquire, and the settings."""

    __slots__ = ("__weakref__", "_client", "_leases", "_reentrant")

    def __init__(
        self, client: Any, config: LockConfig, names: tuple[str, ...], owner: bytes | None, *, reentrant: bool = False
    ) -> None:
        self.config = config
        self.group = config.group
        self.names = names
        self.key = config.key_of(names[0])
        self.keys = (self.key,) if len(names) == 1 else tuple([config.key_of(name) for name in names])
        self.queue_keys = b"" if config.exact and owner is None else queue_keys(self.key)
        self.owner = owner
        self._client = client
        self._reentrant = reentrant
        self._leases: list[Any] = []
        """The leases of the open `with` blocks of this lock. They live as long as the lock, unless a block ends first."""

    if not TYPE_CHECKING:  # otherwise type checkers would accept these attributes
        check, extend, lost, release = _NotOfLock(), _NotOfLock(), _NotOfLock(), _NotOfLock()
        remaining, token, valid, votes = _NotOfLock(), _NotOfLock(), _NotOfLock(), _NotOfLock()
        locked = _NotOfLock("holder() tells who holds it")

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if hasattr(type(self), name)]

    def _innermost(self) -> Any:
        """The lease of the innermost open block of this lock: the caller's own or, if it has none, another caller's.
        Some test frameworks enter a block in one task and end it in another, and a generator may move between threads."""
        leases = self._leases
        if len(leases) > 1:
            caller = self._client._caller()
            for lease in reversed(leases):
                if lease._block is not None and lease._block.caller == caller:
                    return lease
        return leases[-1]

    def _timing(self, ttl: object) -> Timing:
        config = self.config
        return config.timing if ttl is None else config.timing_for(config.policy.checked_ttl(ttl))

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Lock {self.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lock cannot be pickled or copied: send its name, and call lock() on a client of the process that needs it"
        )
