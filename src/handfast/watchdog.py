"""The watchdog: one thread per process that renews the leases of all clients.

It is a thread, because a blocked event loop or a busy main thread must not lose a lock. The thread runs an asyncio loop,
so that the renewals of one client never wait for a hung server of another. It has its own connections to every client's
nodes (_registration.py). core/schedule.py decides when a hold is due.

The thread also repeats interrupted releases, releases dropped leases, and re-admits nodes whose quarantine is over while
a client holds a lock.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from handfast._executor import ExitSafeExecutor
from handfast._registration import Registration
from handfast.core import eviction, guard, release, renew
from handfast.core.handshake import Steps
from handfast.core.hold import HELD, LOST, Hold
from handfast.core.nodes import NodeGroup
from handfast.core.schedule import FOREVER, Schedule
from handfast.errors import HandfastError
from handfast.net import clock
from handfast.net.address import Address
from handfast.net.aio import AsyncIO

__all__ = ["Watchdog", "attach"]

logger = logging.getLogger("handfast")

LONGEST_SLEEP: Final = 0.5
"""The longest sleep in seconds while there are holds. The loop's timers stop while the machine is suspended, but the
clock of the leases does not. So a lease that ended during a suspend is noticed within this time after it."""
REPAIR_SOONEST: Final = 0.5
REPAIR_LATEST: Final = 2.0
"""Seconds between two repairs of nodes that may not vote, at least and at most. A node may lose its data again at any
time, so the watchdog does not simply wait for the end of a quarantine."""
CONNECT_TIMEOUT: Final = 12.0
"""Seconds. It is long, because no caller waits for the watchdog to connect, and deadlines are kept meanwhile."""
CLOSE_TIMEOUT: Final = 0.5
"""Seconds that a closing client or process waits for servers to accept its releases."""
CLOSED: Final = "the client was closed"
"""The reason of the loss for holders whose client is closed."""
LATE_ARRIVAL: Final = 0.05
"""Seconds after which a node has certainly carried out a claim whose connection was closed meanwhile."""
RELEASE_SOONEST: Final = 0.02
RELEASE_LATEST: Final = 1.0
"""Seconds between two tries of a release on an unreachable node: first RELEASE_SOONEST, doubled up to this."""


class Watchdog:
    """The watchdog of this process. It is made when the first client needs it, and ends when the last one is closed."""

    def __init__(self, first: Registration) -> None:
        self._lock = threading.RLock()
        """Reentrant, because a finalizer may run while it is held and drop a lease."""
        self.schedule = Schedule(self._lock, self._wake, clock.now)
        self._registrations: dict[NodeGroup, Registration] = {first.group: first}
        self._ended = False
        self._closing: set[concurrent.futures.Future[None]] = set()
        """The futures of clients that are being removed."""
        self._to_finish: deque[Hold] = deque()
        """Holds to release: their lease was dropped, or their release was interrupted."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._executor = ExitSafeExecutor(thread_name_prefix="handfast-watchdog")
        self._loop.set_default_executor(self._executor)
        self._wakeup = asyncio.Event()
        # Thread.start() waits for the thread, and an interrupt there leaves a broken lock. So start it in two steps.
        _thread.start_new_thread(self._start_thread, ())

    # -- from any thread

    def finish(self, hold: Hold) -> None:
        """Release a hold whose caller cannot. This takes no lock, because finalizers may call it at any point."""
        self._to_finish.append(hold)
        self._wake()

    def clock_stood_still(self, group: NodeGroup) -> None:
        """Mark the holds of one client lost, because this machine's clock has stood still."""
        lost = self.schedule.clock_stood_still(group)
        logger.warning("this machine's clock stood still: %d leases are lost", len(lost))

    def nudge(self, group: NodeGroup) -> None:
        """Repair nodes that may not vote yet."""
        self.call_soon(self._repair_soon, group)

    def _wake(self) -> None:
        self.call_soon(self._wakeup.set)

    def call_soon(self, what: Callable[..., Any], *args: Any) -> None:
        """Call something in the watchdog's thread. This takes no lock."""
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:
            pass  # the loop has ended because the last client was closed; nothing is left to do

    def register(self, registration: Registration) -> bool:
        """Add a client. False if this watchdog has ended."""
        with self._lock:
            if not self._ended:
                self._registrations[registration.group] = registration
            return not self._ended

    def unregister(self, group: NodeGroup) -> concurrent.futures.Future[None]:
        """Remove a client that closes: revoke its holds, release its leases, close its connections. If the caller stops
        waiting for the future, this goes on."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # now the future cannot be cancelled
        with self._lock:
            registration = None if self._ended else self._registrations.get(group)
            if registration is not None:
                self._closing.add(done)  # if the thread ends before, it resolves the future
        if registration is None:
            done.set_result(None)
        else:

            def start() -> None:
                self._start(self._unregister(registration)).add_done_callback(lambda _: self._unregistered(done))

            self.call_soon(start)
        return done

    def _unregistered(self, done: concurrent.futures.Future[None]) -> None:
        with self._lock:
            self._closing.discard(done)
        done.set_result(None)

    def renewed(self, group: NodeGroup) -> list[Hold]:
        """The holds of a client that are renewed, with or without an end."""
        return [hold for hold in self.held(group) if hold.renew_until != 0.0]

    def held(self, group: NodeGroup) -> list[Hold]:
        """The holds of a client that are in the schedule."""
        return [hold for hold in self.schedule.everything() if hold.state == HELD and hold.group is group]

    # -- in the watchdog's thread

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="handfast-watchdog", daemon=True).start()
        except RuntimeError:
            # Python 3.12 starts no thread after the end of the main thread. This thread runs already, and must still
            # release the leases.
            self._run()

    def _run(self) -> None:
        try:
            watch = self._loop.create_task(self._watch())
            while not watch.done():
                self._run_loop(watch)
            if not self._ended:
                self._loop.run_until_complete(self._drop_all())
            self._executor.shutdown()
        finally:
            with self._lock:
                self._ended = True  # so that the next client starts another watchdog
                closing, self._closing = self._closing, set()
            for done in closing:
                done.set_result(None)
            self._loop.close()

    def _run_loop(self, watch: asyncio.Task[None]) -> None:
        """Run the loop until the watch ends. SystemExit or KeyboardInterrupt in any task stops the loop before that."""
        try:
            self._loop.run_until_complete(watch)
        except BaseException:
            after = "its clients' leases are not renewed any more" if watch.done() else "it goes on"
            logger.exception("the watchdog failed; %s", after)

    async def _drop_all(self) -> None:
        """Stop all work and close all connections, after the watch has failed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        connections = [each.io for each in self._registrations.values() if each.io is not None]
        await asyncio.gather(*[io.close() for io in connections], return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._wakeup.clear()
            self._release_abandoned()
            for config, holds in self.schedule.take_due().items():
                self._start(self._process_due(config.group, holds))
            with self._lock:
                if not self._registrations and not self._tasks:
                    self._ended = True
                    return
            wakes_at = self.schedule.next_wake()
            timer = None
            if wakes_at < FOREVER:
                timer = self._loop.call_later(min(max(0.0, wakes_at - clock.now()), LONGEST_SLEEP), self._wakeup.set)
            await self._wakeup.wait()
            if timer is not None:
                timer.cancel()

    def _release_abandoned(self) -> None:
        while self._to_finish:
            hold = self._to_finish.popleft()
            if hold.abandoned and hold.group.observer is not None:
                hold.abandoned = False  # reported once, though its release may be repeated
                hold.group.observer.abandoned(hold)
            task, registration = self._start(self._release(hold)), self._registrations.get(hold.group)
            if registration is not None:
                registration.releases.add(task)
                task.add_done_callback(registration.releases.discard)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the watchdog failed", exc_info=task.exception())
        if not self._registrations:
            self._wakeup.set()

    async def _process_due(self, group: NodeGroup, holds: list[Hold]) -> None:
        to_renew = self.schedule.sort_out(holds)
        registration = self._registrations.get(group)
        if to_renew and registration is not None:
            batches = registration.batches(to_renew)
            await self._together([self._renew(io, group, batch) for io, batch in batches])
            if group.guard and group.voters() < group.n:
                self._repair_soon(group)

    @staticmethod
    async def _together(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
        await asyncio.gather(*work)

    async def _renew(self, io: AsyncIO, group: NodeGroup, holds: list[Hold]) -> None:
        await self._connected(io, group)
        # Connecting may have taken long, and nothing must be sent after a deadline.
        now = io.now()
        holds = [hold for hold in holds if hold.held_at(now)]
        if holds:
            await renew.renew(io, group, holds, heal=True)
            self.schedule.renewed(holds)
            if group.observer is not None:
                group.observer.renewal_ended(holds, io.now() - now)
            self._look_at_eviction(io, group, min(hold.ttl for hold in holds))

    def _look_at_eviction(self, io: AsyncIO, group: NodeGroup, every: float) -> None:
        """Ask the servers now and then whether they may evict keys: an operator may have changed their policy."""
        registration, now = self._registrations.get(group), io.now()
        if registration is not None and now >= registration.looked_at.get(io, 0.0) + every:
            registration.looked_at[io] = now
            self._start(eviction.look(io, group, logger.warning))

    async def _connected(self, io: AsyncIO, group: NodeGroup) -> AsyncIO:
        if not io.ready:
            await io.connect(group.need, CONNECT_TIMEOUT)
        return io

    async def _release(self, hold: Hold) -> None:
        """Release a dropped lease, or repeat an interrupted release. This is harmless if it was released already.

        An unreachable node is tried again until its key has expired.
        """
        hold.begin_release()
        group = hold.group
        registration = self._registrations.get(group)
        if hold.state == LOST or registration is None:
            return
        self.schedule.remove(hold)
        given_up, pause = self.schedule.now() + hold.ttl, RELEASE_SOONEST
        unasked = set(range(group.n))
        while self._registrations.get(group) is registration:
            io = await self._connected(registration.io_for(hold.key), group)
            unasked = await release.repeat(io, hold, unasked)
            if hold.may_arrive_late:
                # A server may read the connection that carried the claim after this one. So the nodes that answered are
                # asked once more, though others have not answered yet.
                hold.may_arrive_late, unasked = False, set(range(group.n))
                await io.sleep(io.now() + LATE_ARRIVAL)
                continue
            if not unasked or io.now() + pause >= given_up or io.closed:
                break
            await io.sleep(io.now() + pause)
            pause = min(2 * pause, RELEASE_LATEST)
        hold.finish_release()

    def _repair_soon(self, group: NodeGroup) -> None:
        registration = self._registrations.get(group)
        if registration is not None and registration.repairing is None:
            registration.repairing = self._start(self._repair(registration))

    async def _repair(self, registration: Registration) -> None:
        """Repair until every reachable node votes."""
        group = registration.group
        try:
            while group.voters() < group.n:
                io = await self._connected(registration.io_for(), group)
                await guard.repair(io, group)
                now = io.now()
                waits = [node.opens_at - now for node in group.nodes if not node.marker and node.incarnation]
                await io.sleep(now + min(REPAIR_LATEST, max(REPAIR_SOONEST, min(waits, default=0.0))))
        except HandfastError as error:
            logger.error("the restart guard cannot repair nodes: %s", error)
        finally:
            registration.repairing = None

    async def _unregister(self, registration: Registration) -> None:
        group = registration.group
        self._release_abandoned()
        renewed = self.renewed(group)
        # Revoke first: a body that still runs must learn of the loss before another client can take the lock.
        for hold in self.held(group):
            self.schedule.remove(hold)
            hold.revoke(CLOSED)
        if renewed or registration.releases:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    # return_exceptions: if one release fails, the rest must still be closed.
                    await asyncio.gather(*map(self._release, renewed), *registration.releases, return_exceptions=True)
            except TimeoutError:
                pass  # the servers do not answer; the ttl ends the leases
        with self._lock:
            self._registrations.pop(group, None)  # from here on, no work starts for this client
        if registration.repairing is not None:
            registration.repairing.cancel()
        if registration.io is not None:
            await registration.io.close()

    async def _finish_all(self, group: NodeGroup) -> None:
        """Finish the releases that were left to the watchdog, and afterwards release the client's remaining holds.

        The order matters: claims of waiters that are gone must be removed before a release hands a lock over.
        """
        self._release_abandoned()
        registration = self._registrations.get(group)
        if registration is not None:
            await asyncio.gather(*registration.releases, return_exceptions=True)
        await asyncio.gather(*map(self._release, self.renewed(group)))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def release_all_at_exit(self, group: NodeGroup) -> None:
        """Release all renewed holds of a client at the end of the process."""
        if not self._ended:
            ended = asyncio.run_coroutine_threadsafe(self._finish_all(group), self._loop)
            try:
                ended.result(timeout=CLOSE_TIMEOUT)
            except TimeoutError:
                pass  # the servers do not answer; the ttl ends the leases


_guard = threading.Lock()
_current: Watchdog | None = None


def attach(group: NodeGroup, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> Watchdog:
    """Add a client to the watchdog of this process, and return the watchdog."""
    global _current
    registration = Registration(group, addresses, shake)
    with _guard:
        if _current is None or not _current.register(registration):
            _current = Watchdog(registration)
        group.on_standstill = functools.partial(_current.clock_stood_still, group)
        for address in addresses:
            if address.resolver is not None:
                address.resolver.when_moved(functools.partial(_current.schedule.renew_now, group))
        return _current


def _forget_all() -> None:
    """Mark all leases lost in a child after a fork, silently: they belong to the parent."""
    global _current, _guard
    dog, _current, _guard = _current, None, threading.Lock()
    if dog is not None:
        # A thread that does not exist in the child may hold the old lock.
        dog.schedule.lock = threading.RLock()
        for hold in dog.schedule.everything():
            # Call no listener: such a thread may also hold a lock that the listener needs.
            hold.forget("held by the parent process: a fork inherits no lease")


os.register_at_fork(after_in_child=_forget_all)
