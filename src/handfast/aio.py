"""The facade for asyncio. It has the names of the facade for threads, to be awaited.

If a lease is lost inside `async with`, the body is cancelled and the exit raises LeaseLost, as in `asyncio.timeout`. A
cancellation from outside is never swallowed. With `on_lost="event"` the body is not cancelled.
"""

from __future__ import annotations

import asyncio
import functools
import inspect as inspection
import weakref
from collections.abc import Callable, Coroutine, Sequence
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar, Unpack, overload

from handfast._client import BaseClient, wait_of
from handfast._lease import BaseLease, BaseLock, Block, Reentries, Reentry
from handfast._reports import call_on_lost
from handfast.core import guard, inspect, single
from handfast.core.acquire import acquire, put_back
from handfast.core.config import Timing
from handfast.core.hold import HELD, Hold
from handfast.core.local_queue import Acquisition
from handfast.core.release import release
from handfast.core.renew import extend
from handfast.default import PerLoop
from handfast.discovery.endpoints import Endpoints, from_redis, locate
from handfast.errors import ConfigError, Contended, LeaseLost
from handfast.name_from_call import check_template, skipping, template_key
from handfast.net.aio import AsyncIO
from handfast.option_types import CLIENT_OPTIONS, ClientOptions, LockOptions, Servers, explain_options
from handfast.options import Policy, Seconds, refused_words

if TYPE_CHECKING:
    from handfast.core.inspect import Holder
    from handfast.net.cluster_aio import ClusterIO

__all__ = ["Client", "Lease", "Lock", "bootstrap", "connect", "from_client", "lock"]

P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")


class Lease(BaseLease):
    """A held lock. Release it, or leave the `async with` block that made it. A dropped lease is released."""

    __slots__ = ()

    _client: Client

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Renew now. `ttl` replaces the lease's ttl, also for later renewals. Raises LeaseLost if the lease has ended, or
        NoQuorum if too few nodes confirm."""
        seconds = self._hold.ttl if ttl is None else self._hold.config.policy.checked_ttl(ttl)
        self.check()
        await self._client._extend(self._hold, seconds)
        self._confirm_extended()

    def release(self) -> Coroutine[Any, Any, bool]:
        """Release the lock. True if the lease was still valid. Further calls do nothing and return False."""
        return self._client._release(self._hold, self)

    @property
    def lost(self) -> asyncio.Event:
        """An event that is set when the lease is lost, or its client is closed. At the lease's deadline it is set within
        milliseconds, even if no server can be reached."""
        self._expire()
        event, io = self._event, self._client._io
        if not isinstance(event, asyncio.Event):
            event = self._event = asyncio.Event()
            if io is not None:  # None after a fork, when the lease is lost
                self._hold.when_lost(_on_loop(io.loop, event.set))
        if self._hold.ended_early:
            event.set()
        return event

    async def __aenter__(self) -> Lease:
        self._begin_block(asyncio.current_task())
        return self

    def _begin_block(self, task: asyncio.Task[Any] | None) -> None:
        if task is None:
            raise ConfigError("'async with' on a lock needs to run in a task")
        hold = self._hold
        self._enter_block(_Body(task, hold) if hold.config.policy.on_lost == "cancel" else Block(task, hold, 0))

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        return self._end_block(kind, error)

    async def _end_block(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        body = self._leave_block()
        cancelled = isinstance(body, _Body) and body.leave()
        await self._client._release(self._hold, self)
        reason = self._hold.why_ended
        if kind is None and reason:
            raise self._loss(reason)
        if cancelled and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._loss(reason) from error
        if error is not None and reason:
            self._note_loss(error)


class _Body(Block):
    """An open `async with` block whose task is cancelled when the lease is lost."""

    __slots__ = ("_cancelled", "_cancelling")

    def __init__(self, task: asyncio.Task[Any], hold: Hold) -> None:
        self.caller: asyncio.Task[Any] | None = task
        self.hold = hold
        self.frame = 0
        self._cancelling = task.cancelling()
        self._cancelled = False
        hold.when_lost(self)

    def __call__(self) -> None:
        """Cancel the task, from any thread: the lease is lost."""
        task = self.caller
        if task is not None:
            _on_loop(task.get_loop(), self._cancel)()

    def _cancel(self) -> None:
        if self.caller is not None and not self._cancelled:
            self._cancelled = True
            self.caller.cancel("the lease was lost")

    def leave(self) -> bool:
        """End the body. True if it was ended by this cancellation, and by no other."""
        self.hold.stop_listening(self)
        task, self.caller = self.caller, None
        return self._cancelled and task is not None and task.uncancel() <= self._cancelling


def _on_loop(loop: asyncio.AbstractEventLoop, what: Callable[[], Any]) -> Callable[[], None]:
    """Return a function that calls `what` on the loop's thread. It may be called from any thread."""

    def call() -> None:
        try:
            loop.call_soon_threadsafe(what)
        except RuntimeError:
            pass  # the loop is closed, so no task waits for this

    return call


class Lock(BaseLock):
    """A lock that any task can acquire, any number of times. Each acquisition is a lease of its own."""

    __slots__ = ()

    _client: Client

    def acquire(
        self, *args: Never, wait: Seconds | EllipsisType | None = ..., ttl: Seconds | None = None, **others: Never
    ) -> Coroutine[Any, Any, Lease]:
        """Acquire the lock, or raise NotAcquired.

        wait: Seconds to wait; None: without end; 0: not at all. The default is the lock's.
        ttl: Seconds that the lease lasts on the servers unless it is renewed. The default is the lock's.
        """
        # Raise for wrong arguments here, at the call, and not only when the result is awaited.
        if args or others:
            raise refused_words(args, others)
        seconds = self.config.wait if wait is ... else wait_of(wait)
        timing = self.config.timing if ttl is None else self._timing(ttl)
        client = self._client
        return client._reenter(self, timing, seconds) if self._reentrant else client._acquire(self, timing, seconds)

    async def try_acquire(self, *, ttl: Seconds | None = None) -> Lease | None:
        """Acquire the lock if it is free, else return None. This never waits. An outage raises, because the lock may be
        free."""
        try:
            return await self.acquire(wait=0, ttl=ttl)
        except Contended:
            return None

    async def holder(self) -> Holder | None:
        """The present holder, as the servers see it; None if the lock is free."""
        return await inspect.holder(self._client._io_for(self.key), self)

    async def waiters(self) -> list[str]:
        """The waiters, the next one first: all waiters of this client, and one waiter of each other client."""
        local = self._client._queues.waiting(self)
        return await inspect.waiters(self._client._io_for(self.key), self, _task_name, local)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        self._leases.append(lease)
        # The acquisition has checked the loop; looking it up once more would cost more than the rest of the block.
        io = self._client._io
        lease._begin_block(asyncio.current_task(None if io is None else io.loop))
        return lease

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Coroutine[Any, Any, None]:
        lease: Lease = self._innermost()
        self._leases.remove(lease)
        return lease._end_block(kind, error)


def _task_name(task: asyncio.Task[Any] | None) -> str:
    return task.get_name() if task is not None else "no task"


class Client(BaseClient[Lock, Lease]):
    """Makes locks on one node or a quorum, for the tasks of one event loop."""

    _lease_type = Lease
    _lock_type = Lock
    _name_of = staticmethod(_task_name)
    _bootstrap = "handfast.aio.bootstrap"
    _caller = staticmethod(asyncio.current_task)
    _caller_kind = "task"

    def __init__(self, where: Endpoints, options: ClientOptions) -> None:
        super().__init__(where, options)
        self._io: AsyncIO | ClusterIO | None = None
        self._closing: asyncio.Task[None] | None = None
        self._reentries: weakref.WeakKeyDictionary[Any, Reentries] = weakref.WeakKeyDictionary()

    @overload
    def locked(
        self, name: str, *, owner: str | None = None, skip: Literal[False] = False, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]: ...

    @overload
    def locked(
        self,
        name: str,
        *,
        owner: str | None = None,
        skip: Literal[True],
        skip_value: None = None,
        **options: Unpack[LockOptions],
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | None]]]: ...

    @overload
    def locked(
        self, name: str, *, owner: str | None = None, skip: Literal[True], skip_value: V, **options: Unpack[LockOptions]
    ) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R | V]]]: ...

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
        check_template(name)
        instead, options = skipping(skip, skip_value, options)
        self.lock("checked", owner=owner, **options)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, Any]]:
            if not inspection.iscoroutinefunction(function):
                raise ConfigError(
                    f"{function.__qualname__} is not an async function: for plain functions use handfast.connect()"
                )
            key = template_key(function, name)

            @functools.wraps(function)
            async def under_lock(*args: P.args, **kwargs: P.kwargs) -> Any:
                lock = self.lock(key(*args, **kwargs), owner=owner, **options)
                if not skip:
                    async with lock:
                        return await function(*args, **kwargs)
                try:
                    lease = await lock.acquire()
                except Contended:
                    return instead
                async with lease:
                    return await function(*args, **kwargs)

            return under_lock

        return decorate

    def _check_on_lost(self, settings: Policy) -> Policy:
        if settings.on_lost == "interrupt":
            raise ConfigError("on_lost='interrupt' is for threads: asyncio cancels the body, with on_lost='cancel'")
        return settings

    def _call_on_lost(self, callback: Callable[[LeaseLost], object], error: LeaseLost) -> None:
        if self._io is not None:
            _on_loop(self._io.loop, functools.partial(call_on_lost, callback, error))()

    async def close(self) -> None:
        """Release all renewed leases and close all connections, even if the caller is cancelled. A body that still runs
        loses its lease: it is cancelled, and the end of its block raises LeaseLost."""
        if self._shut():
            self._closing = asyncio.create_task(self._end(), name="handfast-close")
        if self._closing is not None and not self._closing.done():
            await asyncio.shield(self._closing)

    async def _end(self) -> None:
        try:
            if self._dog is not None:
                await asyncio.wrap_future(self._dog.unregister(self._group))
        finally:  # asyncio.run() cancels this task if the loop ends first
            if self._io is not None:
                await self._io.close()
            await asyncio.to_thread(self._where.close)

    async def __aenter__(self) -> Client:
        self._connections()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- running operations

    def _connections(self) -> AsyncIO | ClusterIO:
        io, loop = self._io, asyncio.get_running_loop()
        if self._closed:
            raise ConfigError("this client is closed; connect() makes a new one")
        if io is None:
            kind: type[AsyncIO | ClusterIO] = AsyncIO
            if self._routes is not None:
                from handfast.net.cluster_aio import ClusterIO as kind
            io = self._io = kind(self._group, self._addresses, self._shake, loop)
            self._belongings.end_connections = functools.partial(_close_on_its_loop, io)
        elif io.loop is not loop:
            raise ConfigError("this client belongs to another event loop: call connect() in each event loop")
        return io

    def _io_for(self, key: bytes) -> AsyncIO:
        io = self._io
        if type(io) is AsyncIO and io.loop is asyncio.get_running_loop() and not self._closed:
            return io
        io = self._connections()
        return io if isinstance(io, AsyncIO) else io.at(key)

    async def _acquire(self, lock: Lock, timing: Timing, wait: float | None) -> Lease:
        io = self._io_for(lock.key)
        acquisition = Acquisition(lock, timing, wait, self._now())
        failed = asked = None
        try:
            # If nobody waits, one request is all that a single node needs: see single.py.
            asked = single.ask_at_once(io, self._queues, acquisition)
            if asked is not None:
                failed = single.read(io, acquisition, await asked)
            hold = acquisition.hold or await acquire(io, self._queues, acquisition, failed)
            lease = self._grant(hold, acquisition)
        except BaseException as error:
            if asked is not None and acquisition.hold is None:
                put_back(io, io, acquisition, done=False)
            self._take_back(acquisition, error)
            raise
        if acquisition.left_behind:
            self._clear(acquisition)
        return lease

    async def _release(self, hold: Hold, lease: Lease) -> bool:
        # The coroutine refers to the lease. Otherwise a lease that its caller drops here would be given up before its
        # release.
        if lease._reentry is not None and not lease._leave():
            return lease._was_valid
        if hold.state != HELD or self._closed or self._io is None:  # None after a fork: the lease belongs to the parent
            return False
        if hold.config.cohort and self._hand_over(hold):
            return True
        try:
            io = self._io_for(hold.key)
            released = await release(io, hold)
        except BaseException:
            if hold.state != HELD:  # otherwise nothing was sent, and the lease is still held
                self._abandon_lease(hold)
            raise
        self._released(hold)
        return released

    async def _reenter(self, lock: Lock, timing: Timing, wait: float | None) -> Lease:
        mine = self._reentries.get(asyncio.current_task())
        if mine is None:
            mine = self._reentries[asyncio.current_task()] = Reentries()
        entry = mine.get(lock.keys)
        if entry is not None and (hold := entry.enter(self._now())) is not None:
            return Lease(self, hold, entry)
        lease = await self._acquire(lock, timing, wait)
        lease._reentry = Reentry(mine, lock.keys, lease._hold)
        return lease

    async def _extend(self, hold: Hold, ttl: float) -> None:
        schedule = self._watchdog().schedule
        schedule.promised(hold, ttl)
        try:
            began = self._now()
            await extend(self._io_for(hold.key), hold, ttl)
            self._reports.renewal_ended([hold], self._now() - began)
        finally:
            if hold.state == HELD:
                schedule.changed(hold)

    def _forked(self) -> None:
        super()._forked()
        # The connections and the loop belong to the parent. They are dropped here, not closed.
        self._io = None
        self._belongings.end_connections = lambda: None
        self._reentries = weakref.WeakKeyDictionary()


_closing: set[asyncio.Task[None]] = set()
"""Tasks that close connections. They are kept here, because a loop keeps only weak references to its tasks."""


def _close_on_its_loop(io: AsyncIO | ClusterIO) -> None:
    """Close connections on their loop, from another thread. If the loop has ended, its connections are closed already."""

    def start() -> None:
        task = io.loop.create_task(io.close())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    _on_loop(io.loop, start)()


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


_default = PerLoop(connect)


def lock(name: str | Sequence[str], *, owner: str | None = None, **options: Unpack[LockOptions]) -> Lock:
    """Make a lock for a script, without a client of its own. The locks of an event loop share a client, which
    `connect()` makes on first use, and which is closed when `asyncio.run` ends. Options are those of `Client.lock()`."""
    return _default.get().lock(name, owner=owner, **options)


def from_client(clients: object, **options: Unpack[ClientOptions]) -> Client:
    """Make a client for the server of a redis-py client, with its address and credentials. Several clients are a quorum.

    The options are those of connect().
    """
    return Client(from_redis(clients), options)


async def bootstrap(client: Client) -> dict[str, str]:
    """Open a new deployment: its nodes may vote at once, instead of after a quarantine. Returns the outcome by node.

    Only for servers on which no lease can be outstanding. On a deployment that is in use, this changes nothing.
    """
    if client._routes is not None:
        raise ConfigError("a cluster has no restart guard, so there is nothing to open")
    return await guard.bootstrap(client._io_for(b""), client._group)
