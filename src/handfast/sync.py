"""The facade for threads: blocking calls, context managers and a decorator."""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar, Unpack, overload

from handfast._client import BaseClient, wait_of
from handfast._lease import BaseLease, BaseLock, Block, Reentries, Reentry, loss_of
from handfast._reports import OnLostCalls
from handfast.core import guard, inspect
from handfast.core.acquire import acquire
from handfast.core.config import Timing
from handfast.core.hold import HELD, Hold
from handfast.core.local_queue import Acquisition
from handfast.core.release import payloads, release
from handfast.core.renew import extend
from handfast.default import PerProcess
from handfast.discovery.endpoints import Endpoints, from_redis, locate
from handfast.errors import ConfigError, Contended, LeaseLost
from handfast.name_from_call import check_template, skipping, template_key
from handfast.net import clock
from handfast.net.thread_pool import BasePool, ThreadPool
from handfast.net.threads import run
from handfast.option_types import CLIENT_OPTIONS, ClientOptions, LockOptions, Servers, explain_options
from handfast.options import Policy, Seconds, refused_words

if TYPE_CHECKING:
    from handfast._interrupt import ThreadBody
    from handfast.core.inspect import Holder
    from handfast.watchdog import Watchdog

__all__ = ["Client", "Lease", "Lock", "bootstrap", "connect", "from_client", "lock"]

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")

LEAVE_WITHIN = 0.5
"""Seconds that waiting threads have to leave the queues when the process ends."""


class Lease(BaseLease):
    """A held lock. Release it, or leave the `with` block that made it. A dropped lease is released."""

    __slots__ = ()

    _client: Client
    _body: ThreadBody | None = None
    """Interrupts the body of the open `with` block when the lease is lost."""

    def extend(self, ttl: Seconds | None = None) -> None:
        """Renew now. `ttl` replaces the lease's ttl, also for later renewals. Raises LeaseLost if the lease has ended, or
        NoQuorum if too few nodes confirm."""
        seconds = self._hold.ttl if ttl is None else self._hold.config.policy.checked_ttl(ttl)
        self.check()
        self._client._extend(self._hold, seconds)
        self._confirm_extended()

    def release(self) -> bool:
        """Release the lock. True if the lease was still valid. Further calls do nothing and return False."""
        if self._reentry is not None and not self._leave():
            return self._was_valid
        return self._client._release(self._hold)

    @property
    def lost(self) -> threading.Event:
        """An event that is set when the lease is lost, or its client is closed. At the lease's deadline it is set within
        milliseconds, even if no server can be reached."""
        self._expire()
        with _event_lock:
            event = self._event
            # A child after a fork makes a new event: a thread of the parent may hold the lock of the inherited one.
            stale = self._hold.ended_early and isinstance(event, threading.Event) and not event.is_set()
            if stale or not isinstance(event, threading.Event):
                event = self._event = threading.Event()
                self._hold.when_lost(event.set)
        return event

    def __enter__(self) -> Lease:
        self._begin_block(id(sys._getframe(1)))
        return self

    def _begin_block(self, frame: int) -> None:
        hold, thread = self._hold, threading.get_ident()
        self._enter_block(Block(thread, hold, frame))
        if hold.config.policy.on_lost == "interrupt":
            from handfast._interrupt import ThreadBody

            self._body = ThreadBody(hold, thread, lambda: loss_of(hold, hold.reason))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_block(kind, error)

    def _end_block(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        body = self._body
        try:
            if body is not None:
                body.leave()
            self.release()
        except BaseException:
            # An interrupt struck before the block was left, or before anything was sent.
            if body is not None:
                body.leave()
            self._give_up()
            raise
        finally:
            self._leave_block()
            if body is not None:
                body.left()
        reason = self._hold.why_ended
        if not reason:
            return
        if kind is None:
            raise self._loss(reason)
        if body is not None and kind is body.kind:
            raise self._loss(reason) from error  # the raised class is local and cannot be pickled
        if error is not None:
            self._note_loss(error)


_event_lock = threading.RLock()
"""Reentrant, because a finalizer may run while it is held."""


def _renew_lock() -> None:
    """Make a new lock in a child after a fork: another thread of the parent may hold the old one."""
    global _event_lock
    _event_lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_lock)


class Lock(BaseLock):
    """A lock that any thread can acquire, any number of times. Each acquisition is a lease of its own."""

    __slots__ = ()

    _client: Client

    def acquire(
        self, *args: Never, wait: Seconds | EllipsisType | None = ..., ttl: Seconds | None = None, **others: Never
    ) -> Lease:
        """Acquire the lock, or raise NotAcquired.

        wait: Seconds to wait; None: without end; 0: not at all. The default is the lock's.
        ttl: Seconds that the lease lasts on the servers unless it is renewed. The default is the lock's.
        """
        if args or others:
            raise refused_words(args, others)
        if self._client._running_loop() is not None:
            _in_event_loop(self)
        seconds = self.config.wait if wait is ... else wait_of(wait)
        timing = self._timing(ttl)
        client = self._client
        return client._reenter(self, timing, seconds) if self._reentrant else client._acquire(self, timing, seconds)

    def try_acquire(self, *, ttl: Seconds | None = None) -> Lease | None:
        """Acquire the lock if it is free, else return None. This never waits. An outage raises, because the lock may be
        free."""
        try:
            return self.acquire(wait=0, ttl=ttl)
        except Contended:
            return None

    def holder(self) -> Holder | None:
        """The present holder, as the servers see it; None if the lock is free."""
        return self._client._pool.use(self.key, inspect.holder, self)

    def waiters(self) -> list[str]:
        """The waiters, the next one first: all waiters of this client, and one waiter of each other client."""
        local = self._client._queues.waiting(self)
        return self._client._pool.use(self.key, inspect.waiters, self, _thread_name, local)

    def __enter__(self) -> Lease:
        lease = self.acquire()
        try:
            self._leases.append(lease)
            lease._begin_block(id(sys._getframe(1)))
            return lease
        except BaseException:
            lease.release()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The lease stays in `_leases` until its block has ended: after an interrupt, it must still be found.
        lease: Any = None
        try:
            lease = self._innermost()
            lease._end_block(kind, error)
        except BaseException:
            (lease or self._innermost())._give_up()
            raise
        finally:
            self._leases.remove(lease or self._innermost())


def _in_event_loop(lock: Lock) -> None:
    """Warn, or raise for an rlock: the thread that acquires the lock runs an event loop."""
    if lock._reentrant:
        raise ConfigError(
            f"{lock.name}: a blocking rlock() in an event loop would let every task of the thread in; use handfast.aio"
        )
    import warnings

    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("handfast."):
        level, frame = level + 1, frame.f_back
    # Python shows such a warning once for each line of the caller.
    warnings.warn(
        f"{lock.name}: this blocking acquire stops the event loop, and every task in it; "
        "use handfast.aio, or run it in a thread with asyncio.to_thread()",
        RuntimeWarning,
        stacklevel=level,
    )


def _thread_name(ident: int) -> str:
    return next((thread.name for thread in threading.enumerate() if thread.ident == ident), f"thread {ident}")


class Client(BaseClient[Lock, Lease]):
    """Makes locks on one node or a quorum. Threads may share it, and a forked child may go on using it."""

    _lease_type = Lease
    _lock_type = Lock
    _name_of = staticmethod(_thread_name)
    _bootstrap = "handfast.bootstrap"
    _caller = staticmethod(threading.get_ident)
    _caller_kind = "thread"

    def __init__(self, where: Endpoints, options: ClientOptions) -> None:
        self._on_lost_calls = OnLostCalls()
        super().__init__(where, options)
        from asyncio import _get_running_loop  # the watchdog has imported asyncio by now

        self._running_loop = _get_running_loop
        self._pool = self._new_pool()
        self._belongings.end_connections = self._pool.close
        self._reentries: weakref.WeakKeyDictionary[threading.Thread, Reentries] = weakref.WeakKeyDictionary()

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
        """Decorate a function to run under a lock. `{parameter}` in the name stands for the call's argument.

        With `skip=True`, a call that finds the lock held does not run the function, and returns None or `skip_value`. It
        does not wait for the lock unless `wait=` is given here. The other options are those of lock().
        """
        import inspect as inspection

        check_template(name)
        instead, options = skipping(skip, skip_value, options)
        self.lock("checked", owner=owner, **options)

        def decorate(function: Callable[P, R]) -> Callable[P, Any]:
            late = (inspection.iscoroutinefunction, inspection.isgeneratorfunction, inspection.isasyncgenfunction)
            if any(outlives(function) for outlives in late):
                raise ConfigError(
                    f"{function.__qualname__} would outlive the lock: locked() takes a plain function here; "
                    "for async functions use handfast.aio"
                )
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
        """Release all renewed leases and close all connections. A body that still runs loses its lease: `lost` is set,
        and the end of its block raises LeaseLost."""
        self._pool.closed = True  # the waiters that are woken now make no more connections
        if not self._shut():
            return
        try:
            if self._dog is not None:
                self._dog.unregister(self._group).result()
        finally:  # an interrupt ends this wait, but the watchdog goes on closing
            self._pool.close()
            self._where.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_on_lost(self, settings: Policy) -> Policy:
        if settings.on_lost == "interrupt":
            from handfast import _interrupt  # this imports ctypes, which few programs need

            _interrupt.check_available()
        return settings

    def _call_on_lost(self, callback: Callable[[LeaseLost], object], error: LeaseLost) -> None:
        self._on_lost_calls.add(callback, error)

    # -- running operations

    def _new_pool(self) -> BasePool:
        if self._routes is None:
            return ThreadPool(self._group, self._addresses, self._shake)
        from handfast.net.cluster_pool import RoutedPool

        return RoutedPool(self._group, self._routes, self._shake)

    def _acquire(self, lock: Lock, timing: Timing, wait: float | None) -> Lease:
        access = self._pool.access(lock.key)
        acquisition = Acquisition(lock, timing, wait, clock.now())
        try:
            lease = self._grant(run(acquire(access, self._queues, acquisition)), acquisition)
        except BaseException as error:
            self._take_back(acquisition, error)
            raise
        if acquisition.left_behind:
            self._clear(acquisition)
        return lease

    def _release(self, hold: Hold) -> bool:
        if hold.state != HELD or self._closed:
            return False
        if hold.config.cohort and self._hand_over(hold):
            return True
        try:
            single = self._group.n == 1
            released = self._pool.use(hold.key, release, hold) if single else self._release_where_acquired(hold)
        except BaseException:
            if hold.state != HELD:  # otherwise nothing was sent, and the lease is still held
                self._abandon_lease(hold)
            raise
        self._released(hold)
        return released

    def _release_where_acquired(self, hold: Hold) -> bool:
        """Release on the connections that carried the acquisition: on others, the release may overtake the claim at a
        slow node of a quorum. If another thread uses these connections now, the watchdog repeats the release for nodes
        that have not answered the claim."""
        pool = self._pool
        if pool.take(hold.carrier):
            return pool.use_taken(hold.carrier, release, hold)
        released = pool.use(hold.key, release, hold)
        if hold.unanswered:
            hold.release_unconfirmed = hold.may_arrive_late = True
        return released

    def _reenter(self, lock: Lock, timing: Timing, wait: float | None) -> Lease:
        mine = self._reentries.get(threading.current_thread())
        if mine is None:
            mine = self._reentries[threading.current_thread()] = Reentries()
        entry = mine.get(lock.keys)
        if entry is not None and (hold := entry.enter(clock.now())) is not None:
            return Lease(self, hold, entry)
        lease = self._acquire(lock, timing, wait)
        lease._reentry = Reentry(mine, lock.keys, lease._hold)
        return lease

    def _extend(self, hold: Hold, ttl: float) -> None:
        schedule = self._watchdog().schedule
        schedule.promised(hold, ttl)
        try:
            began = clock.now()
            self._pool.use(hold.key, extend, hold, ttl)
            self._reports.renewal_ended([hold], clock.now() - began)
        finally:
            if hold.state == HELD:
                schedule.changed(hold)

    def _send_waiters_away(self) -> None:
        self._queues.close(exiting=True)
        # Wait until the waiters have left: a server would hand a lock that is released now to a waiter of this process.
        end = clock.now() + LEAVE_WITHIN
        while self._queues.by_key and clock.now() < end:
            time.sleep(0.001)

    def _release_all_at_exit(self, dog: Watchdog) -> None:
        # Use an existing connection: at this point Python starts no thread that could make a new one.
        io = self._pool.take_idle()
        if io is not None and io.ready:
            for hold in dog.renewed(self._group):
                if hold.begin_release():
                    io.send_and_forget(payloads(hold, hold.who, hold.token_floor), len(hold.names))
                    hold.finish_release()
            io.close()
        super()._release_all_at_exit(dog)

    def _forked(self) -> None:
        super()._forked()
        self._on_lost_calls.forked()
        self._pool.forked()
        self._reentries = weakref.WeakKeyDictionary()


@explain_options(CLIENT_OPTIONS)
def connect(servers: Servers = None, **options: Unpack[ClientOptions]) -> Client:
    """Make a client for one server (a URL), for a quorum of independent servers (a list), or for $HANDFAST_URL. It sends
    nothing yet.

    A URL begins with redis://, rediss:// (TLS), valkey://, valkeys://, unix://, redis+sentinel://, redis+cluster:// or
    embedded://. Without $HANDFAST_URL the default is embedded://, a server that this user's processes share on this
    machine.

    The options apply to all locks of the client. lock() may override all of them but `guard`:
    """
    return Client(locate(servers), options)


_default = PerProcess(connect)


def lock(name: str | Sequence[str], *, owner: str | None = None, **options: Unpack[LockOptions]) -> Lock:
    """Make a lock for a script, without a client of its own. All threads of the process share a client, which `connect()`
    makes on first use. Options are those of `Client.lock()`."""
    return _default.get().lock(name, owner=owner, **options)


def from_client(clients: object, **options: Unpack[ClientOptions]) -> Client:
    """Make a client for the server of a redis-py client, with its address and credentials. Several clients are a quorum.

    The options are those of connect().
    """
    return Client(from_redis(clients), options)


def bootstrap(client: Client) -> dict[str, str]:
    """Open a new deployment: its nodes may vote at once, instead of after a quarantine. Returns the outcome by node.

    Only for servers on which no lease can be outstanding. On a deployment that is in use, this changes nothing.
    """
    if client._routes is not None:
        raise ConfigError("a cluster has no restart guard, so there is nothing to open")
    return client._pool.use(b"", guard.bootstrap, client._group)
