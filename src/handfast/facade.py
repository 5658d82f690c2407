"""What the two facades share: where the servers are, what is set, and the making of locks.

`sync.py` and `aio.py` add the running of operations.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeVar, Unpack

from handfast import log
from handfast.core import guard
from handfast.core.commands import Request
from handfast.core.group import Group
from handfast.core.handshake import Steps, handshake
from handfast.core.hold import HELD, NURSERY_TTL, Hold
from handfast.core.line import Lines, Place
from handfast.core.terms import Settings
from handfast.drivers import clock
from handfast.endpoints import Endpoints
from handfast.errors import ConfigError
from handfast.events import Event
from handfast.given import ClientOptions, LockOptions, RareOptions
from handfast.lease import Entry, LeaseView, LockView
from handfast.options import Policy, Seconds, duration, names_of, owner_of, policy
from handfast.wire.dial import Address

if TYPE_CHECKING:
    from handfast.drivers.routes import Routes
    from handfast.watchdog import Watchdog

__all__ = ["BaseClient", "patience_of"]

_new = object.__new__
SHORT_NAME = 256
"""Characters: a name of as many is never longer than MAX_NAME in UTF-8."""
_NO_CALL: Any = (None, None, 0, 0, 0, None, None)
"""Like no call that could be made."""

L = TypeVar("L", bound=LockView)
_clients: weakref.WeakSet[BaseClient[Any]] = weakref.WeakSet()


class BaseClient(Generic[L]):
    """Servers, settings, and the watchdog that looks after this client's leases."""

    _lease_type: type[LeaseView]
    _lock_type: type[L]
    _lines_lock: Callable[[], AbstractContextManager[Any]]
    _name_of: Callable[[Any], str]
    """Of a thread or task."""

    def __init__(self, where: Endpoints, options: ClientOptions) -> None:
        given: dict[str, Any] = dict(options)
        guarded = given.pop("guard", None)
        if guarded is not None and not isinstance(guarded, bool):
            raise ConfigError(f"guard must be True or False, not {guarded!r}")
        self._policy = policy(given)
        self._where = where
        where.open_new = self._open_new
        addresses = where.addresses
        clustered = any(address.cluster is not None for address in addresses)
        self._guarded = len(addresses) > 1 if guarded is None else guarded
        if clustered and self._guarded:
            raise ConfigError(
                "the restart guard cannot watch a cluster, whose names wander between nodes: set guard=False"
                + (" if you trust it to remember" if guarded is None else "; with replicas=k a grant survives a failover")
            )
        labels = [address.label for address in addresses]
        self._group = Group(labels, self._policy, guard=self._guarded, clustered=clustered)
        self._addresses = addresses
        self._routes: Routes | None = None
        if clustered:
            from handfast.drivers.routes import Routes

            self._routes = Routes(addresses)
        # Late, because it brings asyncio along; but not at the first lock: a child that another thread forks meanwhile
        # would wait for that import for ever.
        from handfast import watchdog

        self._attach = watchdog.attach
        self._dog: Watchdog | None = None
        self._dog_lock = threading.Lock()
        self._ending: Callable[[Hold], None] = self._nothing
        """See core.hold.Keeper."""
        self._closed = False
        self._presented: dict[Any, Entry] = {}
        """Explicit owners of this client that hold something now."""
        self._last: tuple[object, object, object, object, object, object, Settings] = _NO_CALL
        """The latest call of `lock` with the usual options, and its settings."""
        self._listeners: tuple[Callable[[Event], object], ...] = ()
        # Of the instance, not only of the class, where Python would look them up at every acquisition.
        self._lock_type, self._lease_type = type(self)._lock_type, type(self)._lease_type
        self._lines = self._new_lines()
        self._forget()
        _clients.add(self)

    def lock(
        self,
        name: str | Sequence[str],
        *,
        owner: str | None = None,
        ttl: Seconds | EllipsisType = ...,
        wait: Seconds | EllipsisType | None = ...,
        renew: bool | EllipsisType = ...,
        fence: bool | EllipsisType = ...,
        fair: bool | EllipsisType = ...,
        cohort: int | EllipsisType = ...,
        **options: Unpack[RareOptions],
    ) -> L:
        """A lock on a name, or on several names at once, all or none. Sends nothing.

        With `owner` whoever presents the same owner re-enters and refreshes. What is not given is as on the client.
        """
        # A call site mostly passes the same objects as the last one did: then nothing has to be looked up.
        last_ttl, last_wait, last_renew, last_fence, last_fair, last_cohort, settings = self._last
        if (
            ttl is not last_ttl or wait is not last_wait or renew is not last_renew or fence is not last_fence
            or fair is not last_fair or cohort is not last_cohort or options
        ):  # fmt: skip
            usual = {"ttl": ttl, "wait": wait, "renew": renew, "fence": fence, "fair": fair, "cohort": cohort}
            settings = self._settings({**{word: each for word, each in usual.items() if each is not ...}, **options})
            if not options:
                self._last = (ttl, wait, renew, fence, fair, cohort, settings)
        lock: Any = _new(self._lock_type)  # and no __init__: this is done for every acquisition
        lock._client = self
        lock.settings = settings
        lock._reentrant = False
        if owner is None and type(name) is str and 0 < len(name) <= SHORT_NAME and "{" not in name and name[0] != "}":
            try:
                lock.key = (settings.key_start + name + settings.key_end).encode()
            except UnicodeEncodeError:
                pass  # names_of says it in words
            else:
                lock.spelt = name
                lock.owner = None
                return lock  # type: ignore[no-any-return]
        names = names_of(name)
        if settings.fair and (owner is not None or len(names) > 1):
            raise ConfigError("fair=True takes one name, and an owner for each acquisition")
        if self._routes is not None and len(names) > 1:
            self._routes.check(names, [settings.key(each) for each in names])
        Request.__init__(
            lock, settings, names[0] if len(names) == 1 else names, None if owner is None else owner_of(owner).encode()
        )
        return lock  # type: ignore[no-any-return]

    def rlock(self, name: str | Sequence[str], **options: Unpack[LockOptions]) -> L:
        """Like `lock`, but the thread or task that holds it takes it again at once: same token, no round trip."""
        if "owner" in options:
            raise ConfigError("a reentrant lock has its thread or task for an owner; use lock() with owner=")
        lock = self.lock(name, **options)
        lock._reentrant = True
        return lock

    def listen(self, listener: Callable[[Event], object]) -> Callable[[], None]:
        """Have `listener` called with each Event, in whichever thread it happens; call what is returned to end that.

        It should be quick: whoever wants the lock waits for it. What it raises is logged, and changes nothing.
        """
        self._listeners += (listener,)
        self._lines.telling = True

        def end() -> None:
            self._listeners = tuple(each for each in self._listeners if each is not listener)

        return end

    def _tell(self, place: Place, seconds: float, outcome: str) -> None:
        """See Lines.tell."""
        kind: Literal["waiting_began", "waiting_ended"] = "waiting_ended" if outcome else "waiting_began"
        event = Event(kind, place.request.name, self._name_of(place.who), seconds, outcome)
        log.debug("%s: %s by %s, %.3f s %s", event.name, kind, event.who, seconds, outcome)
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:
                log.exception("a listener failed at an event")

    def _new_lines(self) -> Lines:
        lines = Lines(self._lines_lock(), log.warning, self._tell)
        lines.telling = bool(self._listeners) or log.debugs()
        return lines

    def _pass_on(self, hold: Hold) -> bool:
        """Give what a cohort holds to the next of this client who waits for it."""
        try:
            passed = None if self._closed else self._lines.pass_on(hold, clock.now())
            if passed is None:
                return False
            self._ending(hold)
            self._watch(passed)  # also while nobody has taken it
            return True
        except BaseException:
            # An interrupt: whoever was given it may not know, and what was given to nobody nobody else would release.
            if hold.heir is not None:
                self._lines.let_go(hold, False)
            elif hold.state != HELD:
                hold.abandon()
                self._unfinished(hold)
            raise

    def _letting_go(self, hold: Hold, now: float) -> None:
        """See core.hold.Keeper."""
        self._lines.letting_go(hold, now)

    def _let_go(self, hold: Hold, others: bool) -> None:
        """See core.hold.Keeper."""
        self._lines.let_go(hold, others)

    def _shake(self, index: int) -> Steps:
        """The handshake for a new connection to a node."""
        address = self._addresses[index]
        moves = address.beacon is not None or address.cluster is not None
        return handshake(self._group, self._group.nodes[index], address.login(), clock.now, log.warning, moves)

    def _open_new(self, addresses: Sequence[Address]) -> None:
        """Embedded servers were just made for us: nobody can hold anything on them, so they may vote at once."""
        if not self._guarded:
            return
        from handfast.drivers.threads import ThreadDriver, run

        group = Group([a.label for a in addresses], self._policy, guard=True)

        def shake(index: int) -> Steps:
            return handshake(group, group.nodes[index], addresses[index].login(), clock.now, log.warning)

        driver = ThreadDriver(group, addresses, shake)
        try:
            said = run(guard.bootstrap(driver, group))
        finally:
            driver.close()
        if group.voters() < group.n:
            raise ConfigError(f"the embedded servers could not be opened: {said}")

    def _settings(self, options: dict[str, Any]) -> Settings:
        """The settings of a lock: checked when they are first met."""
        if self._closed:
            raise ConfigError("this client is closed")
        # With the types: 1 equals True, but only one of them is a switch.
        key = (*options.items(), *map(type, options.values()))
        try:
            known = self._known.get(key)
        except TypeError:  # something unhashable: no value that is allowed is, so this says which
            return self._prepared(self._checked(options))
        if known is None:
            if len(self._known) > 256:
                self._known.clear()
            known = self._known[key] = self._prepared(self._checked(options))
        return known

    def _forget(self) -> None:
        """Know no settings any more: a closed client makes no locks, a forked one has other owners."""
        self._known: dict[tuple[Any, ...], Settings] = {}
        self._last = _NO_CALL

    def _prepared(self, settings: Policy) -> Settings:
        start = f"{socket.gethostname()}:{os.getpid()}:{settings.label}:".encode()
        return Settings(self._group, settings, start)

    def _checked(self, options: dict[str, Any]) -> Policy:
        known = policy(options, self._policy)
        if known.fair and self._group.n > 1:
            raise ConfigError(
                "fair=True needs one node: on a quorum each node would hand its vote to whom it thinks is next, "
                "and nothing would make them agree; leave it out, waiters of one process still come in their order"
            )
        if self._guarded:
            # The guard keeps one high-water mark and one max_ttl for the whole namespace.
            if known.prefix != self._policy.prefix and known.fence:
                raise ConfigError("a guarded namespace is fenced as a whole: set prefix= on connect(), or fence=False")
            if known.max_ttl > self._policy.max_ttl:
                raise ConfigError(
                    f"max_ttl of {known.max_ttl:g} s is beyond the client's {self._policy.max_ttl:g} s, for which "
                    "restarted nodes are kept from voting: set it on connect()"
                )
        return known

    def _watchdog(self) -> Watchdog:
        dog = self._dog
        if dog is None:
            with self._dog_lock:
                dog = self._dog
                if dog is None:
                    if self._closed:
                        raise ConfigError("this client was closed while it waited for the lock")
                    dog = self._dog = self._attach(self._group, self._addresses, self._shake)
                    self._ending = dog.remove
        return dog

    def _watch(self, hold: Hold) -> None:
        """Hand a new hold to the watchdog."""
        settings = hold.settings.policy
        if not settings.renew:
            hold.renew_until = 0.0
        elif settings.max_hold is not None:
            hold.renew_until = hold.renew_from + settings.max_hold
        if hold.turn is not None and not hold.passes:
            self._lines.took(hold)
        dog = self._dog or self._watchdog()
        dog.add(hold)
        if not self._group.all_vote:
            dog.nudge(self._group)

    @staticmethod
    def _nothing(hold: Hold) -> None:
        """What to do for a hold that nobody watches over."""

    def _granted(self, hold: Hold) -> LeaseView:
        """See core.hold.Keeper."""
        if self._closed:
            raise ConfigError("this client was closed while it waited for the lock")
        dog = self._dog
        if dog is None or hold.settings.special or not self._group.all_vote:
            if not hold.passes:  # what was passed on is watched over since then
                self._watch(hold)
        elif hold.ttl < NURSERY_TTL:
            dog.add(hold)
        else:  # as in `add`, without the call
            dog.nursery.add(hold)
            if hold.ttl < dog.nursing:
                dog.nurse(hold.ttl)
        if self._closed:  # in the meantime, by another thread: nobody would end it
            self._ending(hold)
            raise ConfigError("this client was closed while it waited for the lock")
        lease = _new(self._lease_type)  # and no __init__: this is done for every lease
        lease._client = self
        lease._hold = hold
        lease._entry = self._present(hold) if hold.presented else None
        return lease

    def _present(self, hold: Hold) -> Entry:
        """One more hold under an explicit owner: only the last of this client's may take the key away."""
        key = (hold.owner, hold.keys)
        with self._dog_lock:
            entry = self._presented.get(key)
            if entry is None:
                entry = Entry(self._presented, key, None)
                entry.token = hold.token
                return entry
            entry.count += 1
            # A re-entry keeps its token, though the nodes that answered may have agreed on a later one.
            hold.token = entry.token
            return entry

    def _unfinished(self, hold: Hold) -> None:
        """See core.hold.Keeper."""
        if not self._closed:
            self._watchdog().finish(hold)

    def _shut(self) -> bool:
        """From now on it makes no locks, and who waits for one is told; True for the one caller that sees to the rest."""
        with self._dog_lock:  # whoever attaches a watchdog has done so before, or does no more
            if self._closed:
                return False
            self._closed = True
        self._forget()
        self._lines.close()
        return True

    def _send_away(self) -> None:
        """At the end of the process: who still waits must not get what is released now. No task does: its loop ended."""

    def _last_words(self, dog: Watchdog) -> None:
        """At the end of the process: release what is renewed for its sake."""
        dog.last_words(self._group)

    def _forked(self) -> None:
        """In the child: nothing of the parent's is ours."""
        self._dog = None
        self._dog_lock = threading.Lock()
        self._ending = self._nothing
        self._presented = {}
        self._lines = self._new_lines()
        self._where.forked()
        self._forget()

    def __repr__(self) -> str:
        return f"<{type(self).__module__}.Client {', '.join(a.label for a in self._addresses)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: call connect() in each process that needs one")


def _after_fork() -> None:
    for client in list(_clients):
        client._forked()


@atexit.register
def _at_exit() -> None:
    clients = [client for client in list(_clients) if not client._closed]
    for client in clients:
        client._send_away()
    for client in clients:
        if client._dog is not None:
            client._last_words(client._dog)


os.register_at_fork(after_in_child=_after_fork)


def patience_of(wait: object) -> float | None:
    """How long a call waits, as it says."""
    return None if wait is None else 0.0 if wait == 0 and type(wait) is int else duration(wait, "wait", zero=True)
