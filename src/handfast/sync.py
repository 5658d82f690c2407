"""handfast for threads: blocking calls, context managers, a decorator."""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from _thread import get_ident
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from handfast.catch import Catch
from handfast.core import commands, fair, guard, mutex
from handfast.core.commands import Request, Target
from handfast.core.hold import HELD, LOST, Hold
from handfast.core.lineup import line_up
from handfast.core.terms import Terms
from handfast.default import PerProcess
from handfast.drivers import clock
from handfast.drivers.threads import DONE, ThreadDriver, ThreadLobby, run
from handfast.endpoints import Endpoints, from_redis, locate
from handfast.errors import ConfigError, Contended
from handfast.facade import BaseClient, patience_of
from handfast.given import ClientOptions, LockOptions, Servers
from handfast.lease import Entry, LeaseView, LockView
from handfast.options import Seconds
from handfast.templates import skipping, template_key
from handfast.wire.bells import ThreadBell
from handfast.wire.blocking import IDLE_CHECK

if TYPE_CHECKING:
    from handfast.core.census import Holder
    from handfast.drivers.pool import LanePool
    from handfast.watchdog import Watchdog

__all__ = ["Client", "Lease", "Lock", "bootstrap", "connect", "from_client", "lock"]

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")
T = TypeVar("T")

_tick = time.monotonic
_now = clock.now
SPARE_LANES = 16
"""Idle sets of connections that a client keeps; threads that come and go in bursts make more for a while."""


class Lease(LeaseView):
    """A held lock. Release it, or leave the `with` that made it; one that is dropped is released, not kept."""

    __slots__ = ()

    _client: Client

    def extend(self, ttl: Seconds | None = None) -> None:
        """Renew now, by `ttl` (which then stays) or as before. LeaseLost if it is over, NoQuorum if too few confirm."""
        seconds = self._hold.ttl if ttl is None else self._hold.settings.policy.checked_ttl(ttl)
        self.check()
        self._client._extend(self._hold, seconds)
        self._confirm_extended()

    def release(self) -> bool:
        """Give the lock back; True if it was still ours. Further calls do nothing and say False."""
        client, hold = self._client, self._hold
        if self._entry is not None and not self._leave():
            return self._still_ours
        if hold.state != HELD or client._closed:
            return False
        if hold.settings.cohort and client._pass_on(hold):
            return True
        return client._run(mutex.release, hold, client)

    @property
    def lost(self) -> threading.Event:
        """Set when the lease is lost, within milliseconds of its deadline, also if no server can be reached."""
        with _event_lock:
            event = self._event
            # A child after a fork must not touch what it inherited of an event: it makes a new one.
            stale = self._hold.state == LOST and isinstance(event, threading.Event) and not event.is_set()
            if stale or not isinstance(event, threading.Event):
                event = self._event = threading.Event()
                self._hold.watch(event.set)
        return event

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except BaseException:
            self._give_up()  # an interrupt struck before anything was sent
            raise
        if kind is None and self._hold.reason:
            raise self._loss()


_event_lock = threading.Lock()


def _renew_lock() -> None:
    """In a child after a fork: another thread of the parent may have held it."""
    global _event_lock
    _event_lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


class _Entered(threading.local):
    """Of each thread: the leases of the `with` blocks it is in."""

    def __init__(self, everyone: list[list[Lease]]) -> None:
        # Called once in each thread, with the same list.
        self.leases: list[Lease] = []
        self.everyone = everyone
        everyone.append(self.leases)

    def elsewhere(self) -> list[Lease]:
        """Entered by another thread, as generators that wander between the threads of a pool do."""
        return next((leases for leases in self.everyone if leases), self.leases)


class Lock(LockView):
    """A lock that can be taken, again and again, by any thread; each taking is a lease of its own."""

    __slots__ = ()

    _client: Client
    _entered: _Entered | None = None
    """Of each thread: the leases of the `with` blocks it is in."""

    def acquire(self, *, wait: Seconds | EllipsisType | None = ..., ttl: Seconds | None = None) -> Lease:
        """Take the lock, waiting up to `wait` seconds (None: without end), or raise NotAcquired."""
        settings = self.settings
        terms = settings.terms if ttl is None else self._terms(ttl)
        patience = settings.wait if wait is ... else patience_of(wait)
        if self._reentrant:
            return self._client._reenter(self, terms, patience)
        if settings.fair and not settings.cohort and patience != 0:
            return self._client._queue(self, terms, patience)
        return self._client._acquire(self, terms, patience)

    def try_acquire(self, *, ttl: Seconds | None = None) -> Lease | None:
        """Take the lock if it is free, else None; never waits. An outage still raises: it is not contention."""
        try:
            return self.acquire(wait=0, ttl=ttl)
        except Contended:
            return None

    def holder(self) -> Holder | None:
        """Who holds it now, as the servers see it; None if nobody does."""
        from handfast.core import census

        return self._client._run(census.holder, self)

    def waiters(self) -> list[str]:
        """Who waits for it, the next one first: those of this client, and of a fair lock one of every other process."""
        from handfast.core import census

        mine = [_thread_name(who) for who in self._client._lines.waiting(self)]
        return self._client._run(census.waiters, self, mine)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            if self._entered is None:
                with _event_lock:
                    self._entered = self._entered or _Entered([])
            self._entered.leases.append(lease)
            return lease
        except BaseException:
            lease.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leases = self._entered.leases or self._entered.elsewhere()  # type: ignore[union-attr]
        # Until it has ended it stays entered: an interrupt must not separate us from it.
        try:
            leases[-1].__exit__(kind, error, trace)
        except BaseException:
            leases[-1]._give_up()
            raise
        finally:
            leases.pop()


def _thread_name(ident: int) -> str:
    return next((thread.name for thread in threading.enumerate() if thread.ident == ident), f"thread {ident}")


class Client(BaseClient[Lock]):
    """Makes locks on one node or a quorum. Safe to share between threads; a fork may go on using it."""

    _lease_type = Lease
    _lock_type = Lock
    _lines_lock = staticmethod(threading.Lock)
    _name_of = staticmethod(_thread_name)

    def __init__(self, where: Endpoints, options: ClientOptions) -> None:
        super().__init__(where, options)
        self._lanes: list[ThreadDriver] = []
        self._pool: LanePool | None = None
        """Instead, for a client of clusters."""
        if self._routes is not None:
            from handfast.drivers.pool import LanePool

            self._pool = LanePool(self._group, self._routes, self._shake)
            self._run = self._run_by_route  # type: ignore[method-assign]
        self._lobby = ThreadLobby(self._run)
        self._owned: weakref.WeakKeyDictionary[threading.Thread, dict[Any, Entry]] = weakref.WeakKeyDictionary()

    @overload
    def locked(
        self, name: str, *, owner: str | None = None, skip: Literal[False] = False, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...

    @overload
    def locked(
        self,
        name: str,
        *,
        owner: str | None = None,
        skip: Literal[True],
        skip_value: None = None,
        **options: Unpack[LockOptions],
    ) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...

    @overload
    def locked(
        self, name: str, *, owner: str | None = None, skip: Literal[True], skip_value: V, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, R]], Callable[P, R | V]]: ...

    def locked(
        self,
        name: str,
        *,
        owner: str | None = None,
        skip: bool = False,
        skip_value: Any = ...,
        **options: Unpack[LockOptions],
    ) -> Callable[..., Any]:
        """Decorate a function to run under a lock; `{parameter}` in the name stands for the call's argument.

        With `skip=True` a call that finds the lock held does not run the function: it returns None, or `skip_value`. It
        does not wait for the lock unless `wait=` is given here.
        """
        import inspect

        instead, options = skipping(skip, skip_value, options)
        self.lock("checked", owner=owner, **options)

        def decorate(function: Callable[P, R]) -> Callable[P, Any]:
            late = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
            if any(outlives(function) for outlives in late):
                raise ConfigError(f"{function.__qualname__} would outlive the lock: locked() takes a plain function here")
            key = template_key(function, name)

            @functools.wraps(function)
            def under_lock(*args: P.args, **kwargs: P.kwargs) -> Any:
                lock = self.lock(key(*args, **kwargs), owner=owner, **options)
                if not skip:
                    with lock:
                        return function(*args, **kwargs)
                try:
                    lease = lock.acquire()
                except Contended:
                    return instead
                with lease:
                    return function(*args, **kwargs)

            return under_lock

        return decorate

    def close(self) -> None:
        """Release what is still held and renewed, and end all connections."""
        if not self._shut():
            return
        try:
            if self._dog is not None:
                self._dog.detach(self._group).result()
        finally:  # an interrupt ends the waiting, nothing else
            while self._lanes:
                self._lanes.pop().close()
            if self._pool is not None:
                self._pool.close()
            self._where.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- running operations ----------------------------------------------------------------------------------------

    def _run(self, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        try:
            lane = self._lanes.pop()
        except IndexError:
            if self._closed:
                raise ConfigError("this client is closed") from None
            lane = ThreadDriver(self._group, self._addresses, self._shake)
        result: Any = None
        try:
            try:
                tick = _tick()
                if tick - lane.used_at > IDLE_CHECK:
                    lane.wake()
                lane.used_at = tick
                operation(lane, *args).send(None)  # as in `run`, without the call
                raise AssertionError("an effect of the blocking driver suspended")
            except StopIteration as end:
                result = end.value
            finally:
                if lane.torn:
                    lane.abandon()
                elif self._closed or len(self._lanes) >= SPARE_LANES:
                    lane.close()
                else:
                    self._lanes.append(lane)
        except BaseException:
            # Ctrl-C may strike after the lock was granted and before the caller has it.
            if isinstance(result, Lease):
                result.release()
            raise
        return result  # type: ignore[no-any-return]

    def _run_by_route(self, operation: Callable[..., Coroutine[Any, Any, T]], *args: Any) -> T:
        if self._closed:
            raise ConfigError("this client is closed")
        pool = self._pool
        assert pool is not None
        # What it is about: a lock or a hold, or the place in line of one who waits.
        target: Target = args[0] if isinstance(args[0], Target) else args[1].request
        lane = pool.take(target.key or target.keys[0])
        result: Any = None
        try:
            try:
                tick = _tick()
                if tick - lane.used_at > IDLE_CHECK:
                    lane.wake()
                lane.used_at = tick
                result = run(operation(lane, *args))
            finally:
                pool.give_back(lane)
        except BaseException:
            if isinstance(result, Lease):  # see _run
                result.release()
            raise
        return result  # type: ignore[no-any-return]

    def _acquire(self, request: Request, terms: Terms, wait: float | None) -> Lease:
        lines, fairly = self._lines, request.settings.fair
        since = 0.0 if wait == 0 else _now()
        lease: Any = None
        if wait == 0 and fairly:
            lease = self._run(fair.try_acquire, request, terms, self)
        elif wait == 0 or not (fairly or (lines.by_keys and lines.waited_for(request))):
            lease = self._run(mutex.acquire, request, terms, wait, self)
        if lease is None:
            catch = Catch(self)
            try:
                lease = run(line_up(self._lobby, lines, request, terms, wait, since, catch))
            except BaseException:
                if catch.lease is not None:  # see _run
                    catch.lease.release()
                raise
        return lease  # type: ignore[no-any-return]

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float) -> Awaitable[None]:
        """See core.hold.Usher. Not from here: who waits in line must not keep the connections of its attempt."""
        return DONE

    def _queue(self, request: Request, terms: Terms, wait: float | None) -> Lease:
        """A fair lock that nobody else of this client waits for: whoever is at once at the head of its line."""
        lines, since, outcome = self._lines, _now(), "acquired"
        place = lines.lead(request, terms, ThreadBell(), since, wait, get_ident())
        if place is None:
            return self._acquire(request, terms, wait)
        try:
            try:
                return self._run(fair.acquire, lines, place, self)  # type: ignore[no-any-return]
            except BaseException as error:
                outcome = type(error).__name__
                raise
            finally:
                try:
                    lines.leave(place)
                except BaseException:
                    lines.leave(place)  # see line_up
                    raise
                if lines.telling and place.told:
                    lines.tell(place, _now() - since, outcome)
        except BaseException:
            # Ctrl-C may strike after the lock was granted and before the caller has it.
            if place.lease is not None:
                place.lease.release()
            raise

    def _reenter(self, request: Request, terms: Terms, wait: float | None) -> Lease:
        mine = self._owned.setdefault(threading.current_thread(), {})
        entry = mine.get(request.keys)
        if entry is not None and (hold := entry.enter(_now())) is not None:
            return Lease(self, hold, entry)
        lease = self._acquire(request, terms, wait)
        lease._entry = Entry(mine, request.keys, lease._hold)
        return lease

    def _extend(self, hold: Hold, ttl: float) -> None:
        dog = self._watchdog()
        dog.promised(hold, ttl)
        try:
            self._run(mutex.extend, hold, ttl)
        finally:
            if hold.state == HELD:
                dog.refile(hold)

    def _send_away(self) -> None:
        self._lines.close(exiting=True)

    def _last_words(self, dog: Watchdog) -> None:
        # A connection that is there already: at this point no new thread may be started to make one.
        lane = self._lanes.pop() if self._lanes else None
        if lane is not None and lane.settled:
            for hold in dog.renewed(self._group):
                if hold.leave():
                    lane.post(commands.release(hold, hold.owner, hold.floor))
                    hold.end()
            lane.close()
        super()._last_words(dog)

    def _forked(self) -> None:
        super()._forked()
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            lane.abandon()
        if self._pool is not None:
            self._pool.forked()
        self._owned = weakref.WeakKeyDictionary()


def connect(servers: Servers = None, **options: Unpack[ClientOptions]) -> Client:
    """A client for one server (a URL), a quorum of independent ones (a list), or $HANDFAST_URL. Sends nothing yet."""
    return Client(locate(servers), options)


_default = PerProcess(connect)


def lock(name: str | Sequence[str], *, owner: str | None = None, **options: Unpack[LockOptions]) -> Lock:
    """A lock for a script, without a client of its own: that of the process is made on first use, by `connect()`.
    Options are those of `Client.lock()`."""
    return _default.get().lock(name, owner=owner, **options)


def from_client(clients: object, **options: Unpack[ClientOptions]) -> Client:
    """A client for the server of a redis-py client (several: a quorum), with its address and credentials."""
    return Client(from_redis(clients), options)


def bootstrap(client: Client) -> dict[str, str]:
    """Open a new deployment: its nodes may vote at once, instead of after a quarantine. What happened, by node.

    Only for servers on which no lease can be outstanding. On a deployment that is in use it changes nothing.
    """
    if client._routes is not None:
        raise ConfigError("a cluster has no restart guard, so there is nothing to open")
    return client._run(guard.bootstrap, client._group)
