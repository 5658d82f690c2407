"""The part of a client that both facades share: its servers, its settings, and the making of locks and leases.

`sync.py` and `aio.py` add the running of operations. A hold becomes a lease in `_grant` and nowhere else. An acquisition
that ends in an exception, for example by Ctrl-C after the grant, is taken back in `_take_back` and nowhere else.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, Unpack

from handfast import _lifetime, log
from handfast._lease import BaseLease, BaseLock, Blocks
from handfast._reports import Reports
from handfast.core import guard
from handfast.core.config import LockConfig, LockRequest
from handfast.core.handshake import Steps, handshake
from handfast.core.hold import HELD, Hold
from handfast.core.local_queue import Acquisition, Waiter, WaitQueues
from handfast.core.nodes import NodeGroup
from handfast.discovery.endpoints import Endpoints
from handfast.errors import ConfigError, LeaseLost
from handfast.events import Event, Kind
from handfast.net import clock
from handfast.net.address import Address
from handfast.option_types import LOCK_OPTIONS, ClientOptions, LockOptions, explain_options
from handfast.options import Policy, duration, names_of, owner_of, policy

if TYPE_CHECKING:
    from handfast.net.cluster_routes import SlotRouter
    from handfast.watchdog import Watchdog

__all__ = ["BaseClient", "wait_of"]

L = TypeVar("L", bound=BaseLock)
G = TypeVar("G", bound=BaseLease)


class BaseClient(Generic[L, G]):
    """Servers, settings, and the watchdog that renews this client's leases."""

    _lease_type: type[G]
    _lock_type: type[L]
    _name_of: Callable[[Any], str]
    """The name of a thread or task."""
    _now = staticmethod(clock.now)
    """The clock of the leases."""
    _bootstrap: str
    """The call that opens a new deployment, for error messages."""
    _caller: Callable[[], Any]
    """Returns the calling thread or task."""
    _caller_kind: str
    """The word for a caller in messages: "thread" or "task"."""

    def __init__(self, where: Endpoints, options: ClientOptions) -> None:
        given: dict[str, Any] = dict(options)
        guarded = given.pop("guard", None)
        if guarded is not None and not isinstance(guarded, bool):
            raise ConfigError(f"guard must be True or False, not {guarded!r}")
        self._policy = self._check_on_lost(policy(given))
        self._where = where
        self._addresses = addresses = where.addresses
        clustered = any(address.cluster is not None for address in addresses)
        self._guarded = len(addresses) > 1 if guarded is None else guarded
        if clustered and self._guarded:
            raise ConfigError(
                "the restart guard does not work on a cluster, whose names move between nodes: set guard=False; "
                "with replicas=k a grant survives a failover"
            )
        labels = [address.label for address in addresses]
        self._group = NodeGroup(labels, self._policy, guard=self._guarded, clustered=clustered)
        if self._guarded:
            guard.install(self._group)
        # The watchdog keeps `_shake`, and the embedded servers keep `open_new`. Neither may refer to the client, which
        # would then never be collected.
        self._shake = _shaker(self._group, addresses, self._now)
        if self._guarded:
            where.open_new = functools.partial(_open_new, self._policy)
        self._routes: SlotRouter | None = None
        if clustered:
            from handfast.net import cluster_aio  # noqa: F401 - the watchdog needs it; see below about imports and forks
            from handfast.net.cluster_routes import SlotRouter

            self._routes = SlotRouter(addresses)
        # Import this late, because it imports asyncio; but not at the first lock: if another thread forks during the
        # import, the child waits for it for ever.
        from handfast import watchdog

        self._attach = watchdog.attach
        self._dog: Watchdog | None = None
        self._dog_lock = threading.Lock()
        self._closed = False
        self._reports = self._group.observer = Reports(self._call_on_lost)
        self._group.bootstrap_call = f"{self._bootstrap}(client)"
        self._queues = self._new_queues()
        self._blocks = Blocks()
        self._configs: dict[tuple[Any, ...], LockConfig] = {}
        _lifetime.clients.add(self)
        self._belongings = _lifetime.Belongings(self._group, where)
        self._collected = weakref.finalize(self, self._belongings.collected)
        self._collected.atexit = False  # see _lifetime.py

    # -- making locks

    @explain_options(LOCK_OPTIONS)
    def lock(self, name: str | Sequence[str], *, owner: str | None = None, **options: Unpack[LockOptions]) -> L:
        """Make a lock on a name, or on several names at once, all or none. This sends nothing: use the lock in `with`, or
        call `acquire()`. Each acquisition is a lease of its own.

        An option that is not given has the client's value:

        owner: Callers with the same owner hold the lock together: the second one re-enters, and gets the token of the
            first. By default each acquisition is an owner of its own.
        """
        config = self._config(options)
        names = (name,) if type(name) is str and 0 < len(name) <= SHORT_NAME else names_of(name)
        if self._routes is not None and len(names) > 1:
            self._routes.check(names, [config.key_of(each) for each in names])
        try:
            return self._lock_type(self, config, names, None if owner is None else owner_of(owner).encode())
        except UnicodeEncodeError:
            names_of(name)  # raises a ConfigError with a better text
            raise

    def rlock(self, name: str | Sequence[str], **options: Unpack[LockOptions]) -> L:
        """Make a reentrant lock: the thread or task that holds it acquires it again at once, with the same token and
        without a round trip.

        The options are those of lock(), without `owner`.
        """
        if "owner" in options:
            raise ConfigError("a reentrant lock has its thread or task for an owner; use lock() with owner=")
        lock = self.lock(name, **options)
        lock._reentrant = True
        return lock

    def _config(self, options: Any) -> LockConfig:
        """The settings of a lock with these options. They are checked once and kept."""
        if self._closed:
            raise ConfigError("this client is closed; connect() makes a new one")
        # The key has the types as well: 1 equals True, but is no valid value for a switch.
        key = (*options.items(), *map(type, options.values())) if options else ()
        try:
            known = self._configs.get(key)
        except TypeError:  # an unhashable value; it is not allowed, and the check names it
            return self._prepared(self._checked(options))
        if known is None:
            if len(self._configs) > 256:
                self._configs.clear()
            known = self._configs[key] = self._prepared(self._checked(options))
        return known

    def _prepared(self, settings: Policy) -> LockConfig:
        start = f"{socket.gethostname()}:{os.getpid()}:{settings.label}:".encode()
        return LockConfig(self._group, settings, start)

    def _checked(self, options: dict[str, Any]) -> Policy:
        known = self._check_on_lost(policy(dict(options), self._policy))
        if self._guarded:
            # The guard has one high-water mark and one max_ttl for the whole namespace.
            if known.prefix != self._policy.prefix and known.fence:
                raise ConfigError(
                    "the restart guard covers the client's prefix only: set prefix= on connect(), or fence=False here"
                )
            if known.max_ttl > self._policy.max_ttl:
                raise ConfigError(
                    f"max_ttl of {known.max_ttl:g} s is more than the client's {self._policy.max_ttl:g} s, for which "
                    "a restarted node does not vote: set it on connect()"
                )
        return known

    def _check_on_lost(self, settings: Policy) -> Policy:
        """Return the settings, or raise ConfigError if this facade does not support their on_lost=."""
        raise NotImplementedError

    def _call_on_lost(self, callback: Callable[[LeaseLost], object], error: LeaseLost) -> None:
        """Call an on_lost= callback, from any thread."""
        raise NotImplementedError

    # -- listening

    def listen(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Call `listener` with each Event, in the thread in which it happens. The returned function ends this.

        `help(handfast.Event)` explains the kinds of events. A listener must be quick and must not use the client: callers
        and renewals wait for it. If it raises, the exception is logged and nothing else changes.
        """
        self._queues.telling = True
        return self._reports.listen(listener)

    def _tell(self, waiter: Waiter, seconds: float, outcome: str) -> None:
        """See WaitQueues.tell."""
        kind: Kind = "waiting_ended" if outcome else "waiting_began"
        event = Event(kind, waiter.acquisition.request.name, self._name_of(waiter.caller), seconds, outcome)
        log.debug("%s: %s by %s, %.3f s %s", event.name, kind, event.who, seconds, outcome)
        self._reports.tell(event)

    def _new_queues(self) -> WaitQueues:
        queues = WaitQueues(
            threading.Lock(),
            warn=log.warning,
            tell=self._tell,
            renew=self._schedule,
            forget=self._forget,
            abandon=self._abandon,
        )
        queues.telling = bool(self._reports.listeners) or log.debugs()
        queues.check_nested = self._check_nested
        return queues

    def _check_nested(self, request: LockRequest, caller: Any) -> None:
        """See WaitQueues.check_nested."""
        if request.owner is not None or not self._blocks.by_key:
            return
        name = self._blocks.held_around(caller, request, self._now())
        if name is not None:
            raise ConfigError(f"this {self._caller_kind} already holds {name}; use rlock()")

    # -- holds and leases

    def _grant(self, hold: Hold, acquisition: Acquisition) -> G:
        """Make a lease of a hold. This is the only place that does so."""
        if self._closed:
            raise ConfigError("this client was closed while it waited for the lock")
        if not hold.handovers:  # a hold from a sibling is in the schedule already
            if hold.turn is not None:
                self._queues.acquired(hold)
            if not hold.config.renewed_for_ever:
                _limit_renewal(hold)
            self._schedule(hold)
        if self._closed:  # by another thread in the meantime, which has not seen this hold
            raise ConfigError("this client was closed while it waited for the lock")
        if self._reports.listeners:
            self._reports.of_hold("acquired", hold, self._now() - acquisition.began, who=self._who())
        return self._lease_type(self, hold)

    def _who(self) -> str:
        return self._name_of(self._caller())

    def _take_back(self, acquisition: Acquisition, error: BaseException) -> None:
        """Take back an acquisition that has ended in an exception, even if it was granted already."""
        hold = acquisition.hold
        if hold is not None and hold.state == HELD:
            self._abandon(hold)
        elif acquisition.touched:
            self._abandon(acquisition.remains())
        self._clear(acquisition)
        if self._reports.listeners:
            seconds = self._now() - acquisition.began
            self._reports.not_acquired(acquisition.request.name, self._who(), seconds, error)

    def _clear(self, acquisition: Acquisition) -> None:
        """Let the watchdog take back the votes and claims that the acquisition's own connections could not."""
        for remains in acquisition.left_behind:
            self._abandon(remains)

    def _abandon_lease(self, hold: Hold) -> None:
        """Let the watchdog release a lease whose caller is gone. Listeners hear of its end."""
        hold.abandoned = True
        self._abandon(hold)

    def _warn_soon(self, text: str, *args: object) -> None:
        """Let the watchdog's thread log a warning. A finalizer must not: its thread may hold a lock of a log handler."""
        if self._dog is not None:
            self._dog.call_soon(log.warning, text, *args)

    def _abandon(self, hold: Hold) -> None:
        """Let the watchdog release a hold whose caller is gone."""
        self._forget(hold)
        hold.give_up()
        if hold.unanswered:
            # A node that has not answered may carry out the claim after the watchdog's release.
            hold.may_arrive_late = True
        dog = self._dog if self._closed else self._watchdog()
        if dog is not None:
            dog.finish(hold)

    def _released(self, hold: Hold) -> None:
        """Take a hold out of the schedule after its release, and report it."""
        if self._dog is not None:
            self._dog.schedule.remove(hold)
        if self._group.n > 1:
            self._queues.released(hold)
        if self._reports.listeners:
            self._reports.ended(hold, self._who())
        if self._closed:
            return
        if hold.release_unconfirmed:
            self._watchdog().finish(hold)
        elif self._group.n > 1 and self._dog is not None:
            hold.repeat_release = self._dog.finish

    def _hand_over(self, hold: Hold) -> bool:
        """Hand a cohort's hold over to the next waiter of this client."""
        try:
            passed = None if self._closed else self._queues.hand_over(hold, self._now())
            if passed is None:
                return False
            self._forget(hold)
            if not passed.config.renewed_for_ever:
                _limit_renewal(passed)
            self._schedule(passed)  # renew it even before the waiter takes it
            if self._reports.listeners:
                self._reports.ended(hold, self._who())
            return True
        except BaseException:
            # After an interrupt: if no waiter has got the hold, nothing else would release it.
            if hold.next_hold is None and hold.state != HELD:
                self._abandon_lease(hold)
            raise

    def _schedule(self, hold: Hold) -> None:
        """Add a hold to the schedule. Callers set `renew_until` first. The parts of a lock of several names are always
        renewed while the others are missing."""
        dog = self._dog or self._watchdog()
        dog.schedule.add(hold)
        if not self._group.all_nodes_vote:
            dog.nudge(self._group)

    def _forget(self, hold: Hold) -> None:
        """Take a hold out of the schedule."""
        if self._dog is not None:
            self._dog.schedule.remove(hold)

    def _watchdog(self) -> Watchdog:
        dog = self._dog
        if dog is None:
            with self._dog_lock:
                dog = self._dog
                if dog is None:
                    if self._closed:
                        raise ConfigError("this client was closed while it waited for the lock")
                    dog = self._dog = self._attach(self._group, self._addresses, self._shake)
                    self._belongings.dog = dog
        return dog

    # -- the end

    def _shut(self) -> bool:
        """Make no more locks, and wake the waiters. True for the one caller that must close the rest."""
        with self._dog_lock:  # no thread can attach a watchdog after this
            if self._closed:
                return False
            self._closed = True
        self._collected.detach()
        self._configs.clear()
        self._queues.close()
        return True

    def _send_waiters_away(self) -> None:
        """Take back the claims of all waiters at the end of the process: a waiter must not get a lock that is released
        now. The event loop has ended, so the watchdog does it."""
        if self._dog is not None:
            for acquisition in self._queues.acquisitions():
                if acquisition.touched:
                    self._dog.finish(acquisition.remains())

    def _release_all_at_exit(self, dog: Watchdog) -> None:
        """Release all renewed holds at the end of the process."""
        dog.release_all_at_exit(self._group)

    def _forked(self) -> None:
        """Start anew in the child after a fork: leases, locks and connections belong to the parent."""
        self._dog = self._belongings.dog = None
        self._dog_lock = threading.Lock()
        self._reports.forked()
        self._queues = self._new_queues()
        self._where.forked()
        self._configs = {}

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Client {', '.join(a.label for a in self._addresses)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: call connect() in each process that needs one")


def _limit_renewal(hold: Hold) -> None:
    """Set the end of renewal, for settings that do not renew for ever."""
    settings = hold.config.policy
    hold.renew_until = 0.0 if not settings.renew else hold.renew_from + (settings.max_hold or 0.0)


SHORT_NAME = 256
"""Characters. A name of this length never exceeds MAX_NAME bytes in UTF-8."""


def _shaker(group: NodeGroup, addresses: Sequence[Address], now: Callable[[], float]) -> Callable[[int], Steps]:
    def shake(index: int) -> Steps:
        """The handshake for a new connection to a node."""
        address = addresses[index]
        moves = address.resolver is not None or address.cluster is not None
        return handshake(group, group.nodes[index], address.login(), now, log.warning, moves)

    return shake


def _open_new(settings: Policy, addresses: Sequence[Address]) -> None:
    """Let new embedded servers vote at once: no lease can be outstanding on them."""
    from handfast.net.threads import ThreadIO, run

    group = NodeGroup([a.label for a in addresses], settings, guard=True)
    io = ThreadIO(group, addresses, _shaker(group, addresses, clock.now))
    try:
        said = run(guard.bootstrap(io, group))
    finally:
        io.close()
    if group.voters() < group.n:
        raise ConfigError(f"the embedded servers could not be opened: {said}")


def wait_of(wait: object) -> float | None:
    """Check the argument wait=, and return it in seconds; None: without end."""
    return None if wait is None else 0.0 if wait == 0 and type(wait) is int else duration(wait, "wait", zero=True)
