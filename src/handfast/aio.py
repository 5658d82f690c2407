"""handfast for asyncio: the same words as for threads, awaited.

A lease that is lost inside `async with` cancels the body, and LeaseLost is raised at the exit, the way
`asyncio.timeout` does it; a cancel from outside is never swallowed. `on_lost="event"` leaves the body alone.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from types import EllipsisType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from handfast.core import fair, guard, mutex
from handfast.core.commands import Request, Target
from handfast.core.hold import HELD, LOST, Hold
from handfast.core.lineup import line_up
from handfast.core.terms import Terms
from handfast.default import PerLoop
from handfast.drivers.aio import AioDriver
from handfast.drivers.clock import now
from handfast.endpoints import Endpoints, from_redis, locate
from handfast.errors import ConfigError, Contended
from handfast.facade import BaseClient, patience_of
from handfast.given import ClientOptions, LockOptions, Servers
from handfast.lease import Entry, LeaseView, LockView
from handfast.options import Seconds
from handfast.templates import skipping, template_key

if TYPE_CHECKING:
    from handfast.core.census import Holder
    from handfast.drivers.fleet import AioFleet

__all__ = ["Client", "Lease", "Lock", "bootstrap", "connect", "from_client", "lock"]

_get_running_loop = asyncio._get_running_loop
_AT_ONCE = 0
"""The one integer that `wait=0` is: met so often that it is not worth a call."""
P = ParamSpec("P")
R = TypeVar("R")
V = TypeVar("V")


class Lease(LeaseView):
    """A held lock. Release it, or leave the `async with` that made it; one that is dropped is released, not kept."""

    __slots__ = ()

    _client: Client
    _body: _Body | None = None

    async def extend(self, ttl: Seconds | None = None) -> None:
        """Renew now, by `ttl` (which then stays) or as before. LeaseLost if it is over, NoQuorum if too few confirm."""
        seconds = self._hold.ttl if ttl is None else self._hold.settings.policy.checked_ttl(ttl)
        self.check()
        await self._client._extend(self._hold, seconds)
        self._confirm_extended()

    def release(self) -> Coroutine[Any, Any, bool]:
        """Give the lock back; True if it was still ours. Further calls do nothing and say False."""
        client = self._client
        io = client._io
        if self._entry is not None and not self._leave():
            return _said(self._still_ours)
        if client._fleet is not None:
            io = client._fleet.known.get(self._hold.key) or client._fleet.at(self._hold.key or self._hold.keys[0])
        if io is None or client._closed:  # None after a fork: nothing is ours
            return _said(False)
        if self._hold.settings.cohort and client._pass_on(self._hold):
            return _said(True)
        return mutex.release(io, self._hold, client, self)

    @property
    def lost(self) -> asyncio.Event:
        """Set when the lease is lost, within milliseconds of its deadline, also if no server can be reached."""
        event = self._event
        if not isinstance(event, asyncio.Event):
            event = self._event = asyncio.Event()
            self._hold.watch(_on_loop(self._client._loop_of(), event.set))
        if self._hold.state == LOST:
            event.set()
        return event

    async def __aenter__(self) -> Lease:
        if self._hold.settings.policy.on_lost == "cancel":
            self._body = _Body(self._hold, self._client._loop_of())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cancelled = self._body is not None and self._body.leave()
        await self.release()
        if kind is None and self._hold.reason:
            raise self._loss()
        if cancelled and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise self._loss() from error


async def _said(answer: bool) -> bool:
    return answer


class _Body:
    """The task inside an `async with`, to be cancelled when the lease is lost."""

    __slots__ = ("_cancelled", "_cancelling", "_task")

    def __init__(self, hold: Hold, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.current_task()
        if task is None:
            raise ConfigError("'async with' on a lock needs to run in a task")
        self._task: asyncio.Task[Any] | None = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        hold.watch(_on_loop(loop, self._cancel))

    def _cancel(self) -> None:
        if self._task is not None and not self._cancelled:
            self._cancelled = True
            self._task.cancel("the lease was lost")

    def leave(self) -> bool:
        """The body has ended; True if our cancel, and no other, is what ended it."""
        task, self._task = self._task, None
        return self._cancelled and task is not None and task.uncancel() <= self._cancelling


def _on_loop(loop: asyncio.AbstractEventLoop, what: Callable[[], Any]) -> Callable[[], None]:
    """Call it on the loop's thread, from whichever thread."""

    def call() -> None:
        try:
            loop.call_soon_threadsafe(what)
        except RuntimeError:
            pass  # the loop is closed, and with it everybody who could wait for this

    return call


class Lock(LockView):
    """A lock that can be taken, again and again, by any task; each taking is a lease of its own."""

    __slots__ = ()

    _client: Client
    _entered: dict[Any, list[Lease]] | None = None
    """By task: the leases of the `async with` blocks it is in."""

    def acquire(
        self, *, wait: Seconds | EllipsisType | None = ..., ttl: Seconds | None = None
    ) -> Coroutine[Any, Any, Lease]:
        """Take the lock, waiting up to `wait` seconds (None: without end), or raise NotAcquired."""
        # Not `async def`: the core's coroutine is handed out as it is, for one frame less in every acquisition.
        client, settings = self._client, self.settings
        terms = settings.terms if ttl is None else self._terms(ttl)
        patience = settings.wait if wait is ... else 0.0 if wait is _AT_ONCE else patience_of(wait)
        if self._reentrant:
            return client._reenter(self, terms, patience)
        io = client._io
        if client._fleet is not None:
            io = client._fleet.known.get(self.key) or client._fleet.at(self.key or self.keys[0])
        # Looking up the running loop costs more than anything else here: once in a turn will do.
        if io is None or client._closed or not (io.turning or io.loop is _get_running_loop()):
            return client._acquire(self, terms, patience)
        if settings.fair or client._lines.by_keys:
            return client._contend(io, self, terms, patience)
        return mutex.acquire(io, self, terms, patience, client)

    async def try_acquire(self, *, ttl: Seconds | None = None) -> Lease | None:
        """Take the lock if it is free, else None; never waits. An outage still raises: it is not contention."""
        try:
            return await self.acquire(wait=0, ttl=ttl)
        except Contended:
            return None

    async def holder(self) -> Holder | None:
        """Who holds it now, as the servers see it; None if nobody does."""
        from handfast.core import census

        return await census.holder(self._client._driver(self), self)

    async def waiters(self) -> list[str]:
        """Who waits for it, the next one first: those of this client, and of a fair lock one of every other process."""
        from handfast.core import census

        mine = [_task_name(who) for who in self._client._lines.waiting(self)]
        return await census.waiters(self._client._driver(self), self, mine)

    async def __aenter__(self) -> Lease:
        lease = await self.acquire()
        if self._entered is None:
            self._entered = {}
        self._entered.setdefault(asyncio.current_task(), []).append(lease)
        return await lease.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        me: Any = asyncio.current_task()
        assert self._entered is not None
        if me not in self._entered and len(self._entered) == 1:
            # Entered by another task, as the fixtures of some test frameworks do.
            me = next(iter(self._entered))
        lease = self._entered[me].pop()
        if not self._entered[me]:
            del self._entered[me]
        await lease.__aexit__(kind, error, trace)


def _task_name(task: asyncio.Task[Any] | None) -> str:
    return task.get_name() if task is not None else "no task"


class Client(BaseClient[Lock]):
    """Makes locks on one node or a quorum, for the tasks of one event loop."""

    _lease_type = Lease
    _lock_type = Lock
    _lines_lock = staticmethod(threading.Lock)  # nobody else takes it, but it is quicker than none at all
    _name_of = staticmethod(_task_name)

    def __init__(self, where: Endpoints, options: ClientOptions) -> None:
        super().__init__(where, options)
        self._io: AioDriver | None = None
        self._fleet: AioFleet | None = None
        """Instead, for a client of clusters."""
        self._closing: asyncio.Task[None] | None = None
        self._owned: weakref.WeakKeyDictionary[Any, dict[Any, Entry]] = weakref.WeakKeyDictionary()

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
        """Decorate a function to run under a lock; `{parameter}` in the name stands for the call's argument.

        With `skip=True` a call that finds the lock held does not run the function: it returns None, or `skip_value`. It
        does not wait for the lock unless `wait=` is given here.
        """
        instead, options = skipping(skip, skip_value, options)
        self.lock("checked", owner=owner, **options)

        def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, Any]]:
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(f"{function.__qualname__} is not an async function: locked() takes one here")
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

    async def close(self) -> None:
        """Release what is still held and renewed, and end all connections; also if whoever calls it is cancelled."""
        if self._shut():
            self._closing = asyncio.create_task(self._end(), name="handfast-close")
        if self._closing is not None and not self._closing.done():
            await asyncio.shield(self._closing)

    async def _end(self) -> None:
        if self._dog is not None:
            await asyncio.wrap_future(self._dog.detach(self._group))
        for lanes in (self._io, self._fleet):
            if lanes is not None:
                await lanes.close()
        await asyncio.to_thread(self._where.close)

    async def __aenter__(self) -> Client:
        self._loop_of()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- running operations ----------------------------------------------------------------------------------------

    def _lanes(self) -> AioDriver | AioFleet:
        lanes = self._io or self._fleet
        loop = asyncio.get_running_loop()
        if self._closed:
            raise ConfigError("this client is closed")
        if lanes is None:
            if self._routes is None:
                lanes = self._io = AioDriver(self._group, self._addresses, self._shake, loop)
            else:
                from handfast.drivers.fleet import AioFleet

                lanes = self._fleet = AioFleet(self._group, self._addresses, self._shake, loop)
        elif lanes.loop is not loop:
            raise ConfigError("this client belongs to another event loop: connect() anew in each")
        return lanes

    def _driver(self, target: Target) -> AioDriver:
        lanes = self._lanes()
        return lanes if isinstance(lanes, AioDriver) else lanes.at(target.key or target.keys[0])

    def _loop_of(self) -> asyncio.AbstractEventLoop:
        return self._lanes().loop

    async def _acquire(self, request: Request, terms: Terms, wait: float | None) -> Lease:
        """The first one, or one that is asked for where no loop runs yet."""
        lease: Lease = await self._contend(self._driver(request), request, terms, wait)
        return lease

    def _contend(self, io: AioDriver, request: Request, terms: Terms, wait: float | None) -> Coroutine[Any, Any, Any]:
        """One of a fair lock, or one for which others may be waiting."""
        if request.settings.fair:
            if wait == 0:
                return fair.try_acquire(io, request, terms, self)
        elif wait == 0 or not self._lines.waited_for(request):
            return mutex.acquire(io, request, terms, wait, self)
        return line_up(io, self._lines, request, terms, wait, None, self)

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float) -> Coroutine[Any, Any, Any]:
        """See core.hold.Keeper."""
        return line_up(self._driver(request), self._lines, request, terms, wait, since, self)

    async def _reenter(self, request: Request, terms: Terms, wait: float | None) -> Lease:
        mine = self._owned.setdefault(asyncio.current_task(), {})
        entry = mine.get(request.keys)
        if entry is not None and (hold := entry.enter(now())) is not None:
            return Lease(self, hold, entry)
        fresh = await self._acquire(request, terms, wait)
        fresh._entry = Entry(mine, request.keys, fresh._hold)
        return fresh

    async def _extend(self, hold: Hold, ttl: float) -> None:
        dog = self._watchdog()
        dog.promised(hold, ttl)
        try:
            await mutex.extend(self._driver(hold), hold, ttl)
        finally:
            if hold.state == HELD:
                dog.refile(hold)

    def _forked(self) -> None:
        super()._forked()
        # The connections and the loop are the parent's: forgotten here, not closed.
        self._io = self._fleet = None
        self._owned = weakref.WeakKeyDictionary()


def connect(servers: Servers = None, **options: Unpack[ClientOptions]) -> Client:
    """A client for one server (a URL), a quorum of independent ones (a list), or $HANDFAST_URL. Sends nothing yet."""
    return Client(locate(servers), options)


_default = PerLoop(connect)


def lock(name: str | Sequence[str], *, owner: str | None = None, **options: Unpack[LockOptions]) -> Lock:
    """A lock for a script, without a client of its own: that of the running event loop is made on first use, by
    `connect()`, and closed when `asyncio.run` ends. Options are those of `Client.lock()`."""
    return _default.get().lock(name, owner=owner, **options)


def from_client(clients: object, **options: Unpack[ClientOptions]) -> Client:
    """A client for the server of a redis-py client (several: a quorum), with its address and credentials."""
    return Client(from_redis(clients), options)


async def bootstrap(client: Client) -> dict[str, str]:
    """Open a new deployment: its nodes may vote at once, instead of after a quarantine. What happened, by node.

    Only for servers on which no lease can be outstanding. On a deployment that is in use it changes nothing.
    """
    lanes = client._lanes()
    if not isinstance(lanes, AioDriver):
        raise ConfigError("a cluster has no restart guard, so there is nothing to open")
    return await guard.bootstrap(lanes, client._group)
