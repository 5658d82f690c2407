"""What locks and leases can say of themselves, without talking to anybody: the half that threads and asyncio share."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import MutableMapping
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from handfast import log
from handfast.core import renew
from handfast.core.config import LockConfig, LockRequest, Timing
from handfast.core.hold import HELD, Hold
from handfast.errors import LeaseLost, NoQuorum
from handfast.net.clock import now
from handfast.options import duration
from handfast.protocol.keys import queue_keys

__all__ = ["BaseLease", "BaseLock", "Block", "Blocks", "Reentry", "loss_of"]

G = TypeVar("G", bound="BaseLease")


class LeaseKeeper(Protocol):
    """What a lease needs of its client at its end."""

    def _abandon_lease(self, hold: Hold) -> None: ...


class Reentry:
    """How often a thread or task has entered a reentrant lock. All its leases share one hold; the last release counts."""

    __slots__ = ("_home", "_key", "count", "hold")

    def __init__(self, home: MutableMapping[Any, Reentry], key: Any, hold: Hold) -> None:
        self._home = home
        self._key = key
        self.hold = hold
        self.count = 1
        home[key] = self

    def enter(self, at: float) -> Hold | None:
        """Once more, if the hold is still held: that hold."""
        if not self.count or not self.hold.held_at(at):
            return None
        self.count += 1
        return self.hold

    def leave(self) -> bool:
        """Once less; True if that was the last."""
        self.count -= 1
        if self.count:
            return False
        if self._home.get(self._key) is self:
            del self._home[self._key]
        return True


class Block(Generic[G]):
    """One `with` block that is open."""

    __slots__ = ("_lease", "caller", "frame", "keys", "what")

    def __init__(self, caller: Any, what: object, lease: G, frame: int) -> None:
        self.caller = caller
        """The thread or task that entered it."""
        self.what = what
        """The lock or lease behind `with`."""
        # Weak: a lease that nobody has any more must be dropped, and so released, though its block was never left.
        self._lease = weakref.ref(lease)
        self.keys = lease._hold.keys
        self.frame = frame
        """The id of the frame that has the block; 0 where it does not matter."""

    @property
    def lease(self) -> G:
        lease = self._lease()
        assert lease is not None, "the lock behind `with` keeps it"
        return lease

    @property
    def dropped(self) -> bool:
        return self._lease() is None

    def encloses_this_call(self) -> bool:
        """Whoever calls this is inside the block, directly or not.

        The block of a generator is not on the stack while the generator rests, and another thread may end it. So a thread
        that waits for such a block does not wait for itself.
        """
        if not self.frame or _runs_a_loop():
            return True  # a thread whose event loop stands still cannot resume a generator or a task
        frame = sys._getframe()
        while id(frame) != self.frame:
            if frame.f_back is None:
                return False
            frame = frame.f_back
        return True


def _runs_a_loop() -> bool:
    events = sys.modules.get("asyncio.events")
    return events is not None and events._get_running_loop() is not None


class Blocks(Generic[G]):
    """The open blocks of a client, by lock and caller.

    They are needed at the end of a block, and where a wait begins. Callers touch only their own lists, so no lock is
    needed; except a caller that ends the block of another one, which nobody else touches at that time.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[bytes, Any], list[Block[G]]] = {}

    def enter(self, caller: Any, what: object, lease: G, frame: int = 0) -> None:
        block = Block(caller, what, lease, frame)
        for key in block.keys:
            blocks = self._open.setdefault((key, caller), [])
            if blocks:
                blocks[:] = [each for each in blocks if not each.dropped]
            blocks.append(block)

    def find(self, caller: Any, what: object, key: bytes) -> Block[G] | None:
        """The innermost block behind `with what`: the caller's own or, if it has none, that of another caller. Some test
        frameworks end a block in another task than they entered it in, and generators wander between threads."""
        for block in reversed(self._open.get((key, caller), ())):
            if block.what is what and not block.dropped:
                return block
        others = [
            block for blocks in list(self._open.values()) for block in blocks if block.what is what and not block.dropped
        ]
        return others[-1] if others else None

    def leave(self, block: Block[G]) -> None:
        for key in block.keys:
            blocks = self._open.get((key, block.caller), [])
            if block in blocks:
                blocks.remove(block)
            if not blocks:
                self._open.pop((key, block.caller), None)

    def held_around(self, caller: Any, request: LockRequest, at: float) -> str | None:
        """A name among those requested that the caller holds in a block around this call."""
        for name, key in zip(request.names, request.keys, strict=True):
            for block in self._open.get((key, caller), ()):
                if not block.dropped and block.lease._hold.held_at(at) and block.encloses_this_call():
                    return name
        return None


class BaseLease:
    """A lease: the right to do something until `remaining()` is 0. The owner is the lease, not a thread or a task."""

    __slots__ = ("__dict__", "__weakref__", "_client", "_hold", "_reentry")

    _left = False
    """This lease of a reentrant lock was released; the hold may go on."""
    _was_valid = False
    """Whether it was valid at that moment."""
    _event: object = None

    def __init__(self, client: Any, hold: Hold, reentry: Reentry | None = None) -> None:
        self._client = client
        self._hold = hold
        self._reentry = reentry

    @property
    def name(self) -> str:
        """The lock's name; several names are joined by a comma."""
        return self._hold.name

    @property
    def owner(self) -> str:
        """Who holds it, as the server knows it."""
        return self._hold.who.owner.decode(errors="replace")

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
        if hold.state != HELD or self._left:
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
        """This lease of a reentrant lock ends here; True if it is the last, and the hold must be released."""
        assert self._reentry is not None
        if self._left:
            self._was_valid = False
            # Once more for the last of them: an interrupt may have struck before it was released.
            return not self._reentry.count and self._hold.state == HELD
        self._left = True
        self._was_valid = self._hold.held_at(now())
        return self._reentry.leave()

    def _confirm_extended(self) -> None:
        hold = self._hold
        if hold.state != HELD:
            raise self._loss()
        if hold.retrying:
            # Not a loss: it runs on to its deadline, and the watchdog goes on trying.
            group, nodes = hold.group, hold.renewal_replies
            confirmed = sum(1 for said in nodes.values() if said == "confirmed")
            raise NoQuorum(hold.name, granted=confirmed, needed=group.need, total=group.n, nodes=nodes)

    def _give_up(self) -> bool:
        """Nobody will release it any more. True if something was still held; the watchdog releases it."""
        hold = self._hold
        if hold.state != HELD or (self._reentry is not None and not self._leave()):
            return False
        self._client._abandon_lease(hold)
        return True

    def __del__(self) -> None:
        # Better released now than renewed for ever. One that is not renewed is left to its ttl.
        try:
            hold = self._hold
        except AttributeError:
            return  # interrupted while it was made; its hold is taken back where it was made
        if hold.state == HELD and hold.renew_until != 0.0 and self._give_up():
            log.warning("%s: a lease was dropped without release; it is released now", hold.name)

    def _expire(self) -> None:
        """Notice a deadline that has passed before the watchdog does."""
        renew.expire(self._hold, now())

    def _loss(self, reason: str = "") -> LeaseLost:
        """The error for `reason`; without one, for what the lease has come to."""
        hold = self._hold
        if not reason:
            self._expire()
            reason = "it was released" if self._left else hold.reason or f"it was {hold.state}"
        return loss_of(hold, reason)

    def _note_loss(self, error: BaseException) -> None:
        """The body has raised something else: that is what the caller gets, with a note about the loss."""
        if not isinstance(error, LeaseLost) or error.owner != self.owner:
            note = str(self._loss(self._hold.reason))
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)

    def __repr__(self) -> str:
        hold, seconds = self._hold, self.remaining()
        state = hold.state if not self._left else "released"
        if state == HELD and seconds == 0.0:
            state = "expired"  # and lost as soon as the watchdog has looked at it
        left = f", {_shown(seconds)} left" if state == HELD else ""
        fence = f", token {hold.token}" if hold.token else ""
        return f"<{type(self).__name__} {hold.name!r} {state}{left}{fence}, owner {self.owner}>"

    def __reduce__(self) -> NoReturn:
        # copy.copy() asks for it too: a copy would release the lock when it is dropped.
        raise TypeError(
            "a lease cannot be pickled or copied: send lease.token with the work, or take the lock where the work is done"
        )


def loss_of(hold: Hold, reason: str) -> LeaseLost:
    owner = hold.who.owner.decode(errors="replace")
    return LeaseLost(hold.name, owner=owner, token=hold.token or None, reason=reason)


def _shown(seconds: float) -> str:
    """The time that is left, fine enough that it is never nothing."""
    return f"{seconds:.1f} s" if seconds >= 1.0 else f"{math.ceil(seconds * 1000)} ms"


class BaseLock(LockRequest):
    """What to acquire, and how."""

    # With a dictionary for what few locks need; it is made when it is needed.
    __slots__ = ("__dict__", "_client", "_reentrant")

    _leases: list[Any] | None = None
    """Of the blocks that it is in."""

    def __init__(
        self, client: Any, config: LockConfig, names: tuple[str, ...], owner: bytes | None, *, reentrant: bool = False
    ) -> None:
        self.config = config
        self.group = config.group
        self.names = names
        self.key = config.key_of(names[0])
        self.queue_keys = queue_keys(self.key)
        self.owner = owner
        self._client = client
        self._reentrant = reentrant

    def _keep(self, lease: Any) -> None:
        """A block begins: its lease lives as long as the lock, unless the block ends first."""
        if self._leases is None:
            self._leases = []
        self._leases.append(lease)

    def _drop(self, lease: Any) -> None:
        if self._leases is not None and lease in self._leases:
            self._leases.remove(lease)

    def _timing(self, ttl: object) -> Timing:
        config = self.config
        return config.timing if ttl is None else config.timing_for(config.policy.checked_ttl(ttl))

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Lock {self.name!r}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a lock cannot be pickled or copied: send its name, and call lock() on a client of the process that needs it"
        )
