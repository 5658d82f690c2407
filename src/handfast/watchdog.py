"""One renewal scheduler per process, in a thread of its own.

Its own thread, because a blocked event loop or a busy main thread must not lose a lock. The thread runs an asyncio loop,
so that the renewals of one client never wait for the hung server of another; it has its own connections to every
client's nodes. Holds are kept by the time at which they must be looked at next (roster.py): to be renewed, to be tried
again, or to be declared lost.

A hold is filed under its deadline while its renewal is under way, so LOST comes on time though all servers hang.
"""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures.thread  # with the executor: asyncio would import it at the first host name, see wire/dial.py
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from handfast.core import commands, guard, renewal
from handfast.core.effects import Fault, payload_for
from handfast.core.group import Group
from handfast.core.handshake import Steps
from handfast.core.hold import HELD, LOST, NURSERY_TTL, Hold
from handfast.core.quorum import Ballot
from handfast.drivers import clock
from handfast.drivers.aio import AioDriver
from handfast.errors import HandfastError
from handfast.roster import FOREVER, Roster
from handfast.wire.dial import Address

if TYPE_CHECKING:
    from handfast.drivers.fleet import AioFleet

__all__ = ["Watchdog", "attach"]

logger = logging.getLogger("handfast")

BATCH: Final = 500
"""Holds per write: large enough to fill packets, small enough not to hold up a deadline."""
NURSERY_SHARE: Final = 1 / 12
"""Of the shortest ttl in the nursery: the time between two looks into it. A third of a ttl is four times as long."""
MEND_SOONEST: Final = 0.5
MEND_LATEST: Final = 2.0
"""Seconds between two looks at nodes that may not vote; a node may forget again while others are waited for."""
CONNECT_PATIENCE: Final = 12.0
"""Seconds; nobody waits for the watchdog to connect, and deadlines are kept meanwhile."""
CLOSE_PATIENCE: Final = 0.5
"""Seconds that a closing client or process waits for servers to take its releases."""
RELEASE_SOONEST: Final = 0.02
RELEASE_LATEST: Final = 1.0
"""Seconds between two tries to release something at a node that cannot be asked: doubled from the one to the other."""


class Charge:
    """A client's place in the watchdog: its nodes, and the watchdog's own connections to them."""

    def __init__(self, group: Group, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> None:
        self.group = group
        self.addresses = addresses
        self.shake = shake
        self.driver: AioDriver | AioFleet | None = None
        self.mending: asyncio.Task[Any] | None = None
        self.releases: set[asyncio.Task[Any]] = set()
        """Of what was left to the watchdog to release."""


class Watchdog:
    """The scheduler of this process; made when the first client needs it, ended when the last one is closed."""

    def __init__(self, first: Charge) -> None:
        self._roster = Roster()
        self.nursery: set[Hold] = set()
        """New holds, not filed yet. Only single steps that are atomic touch it, so it needs no lock."""
        self.nursing = FOREVER
        """The shortest ttl that the looks into the nursery are planned for; FOREVER if none is planned."""
        self._look_at = FOREVER
        self._charges: dict[Group, Charge] = {first.group: first}
        self._ended = False
        self._left: deque[Hold] = deque()
        """Holds whose lease nobody has any more, or whose release was interrupted: to be released from here."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.new_event_loop()
        self._bell = asyncio.Event()
        # In two steps: Thread.start() waits for the thread, and an interrupt there leaves a broken lock behind.
        _thread.start_new_thread(self._start_thread, ())

    # -- from any thread -------------------------------------------------------------------------------------------

    def add(self, hold: Hold) -> None:
        """Watch over a new hold. One with a short ttl is filed at once; the others rest in the nursery first,
        where most are released before anybody has to look at them."""
        if hold.ttl < NURSERY_TTL:
            self._file(hold, renewal.due(hold, hold.renew_from))
            return
        self.nursery.add(hold)
        if hold.ttl < self.nursing:
            self.nurse(hold.ttl)

    def nurse(self, ttl: float) -> None:
        """There is somebody in the nursery who must be looked at sooner than planned. To be called after the move in: the
        plan may be given up until then."""
        self.nursing = ttl
        self._ring()

    def promised(self, hold: Hold, ttl: float) -> None:
        """An extension by `ttl` is about to be sent: where that brings the deadline forward, it is kept from now on,
        whether anybody answers or not."""
        at = clock.now() + hold.settings.policy.validity(ttl)
        if at < hold.deadline:
            self._file(hold, min(at, renewal.due(hold, clock.now())))

    def refile(self, hold: Hold) -> None:
        """After its deadline was changed by somebody else."""
        self._file(hold, renewal.due(hold, clock.now()))

    def remove(self, hold: Hold) -> None:
        """It was released, or will be by the caller."""
        self.nursery.discard(hold)
        if hold.slot:
            self._roster.remove(hold)

    def finish(self, hold: Hold) -> None:
        """Release from here what its owner cannot release. Takes no lock: finalizers may call it at any point."""
        self._left.append(hold)
        self._ring()

    def nudge(self, group: Group) -> None:
        """See to nodes that may not vote yet."""
        self._call(self._mend_soon, group)

    def _file(self, hold: Hold, at: float) -> None:
        if self._roster.file(hold, at):
            self._ring()

    def _ring(self) -> None:
        self._call(self._bell.set)

    def _call(self, what: Callable[..., Any], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:
            pass  # the loop has ended: the last client was closed, so nothing is left to do

    def adopt(self, charge: Charge) -> bool:
        """Watch over one more client; False if this watchdog has ended."""
        with self._roster.lock:
            if not self._ended:
                self._charges[charge.group] = charge
            return not self._ended

    def detach(self, group: Group) -> concurrent.futures.Future[None]:
        """A client closes: its leases are released, its connections ended. Not to be stopped half-way: whoever waits for
        it may go, and it goes on."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()
        done.set_running_or_notify_cancel()  # so it cannot be cancelled
        with self._roster.lock:
            charge = self._charges.get(group)
        if charge is None:
            done.set_result(None)
        else:  # for which the loop goes on
            self._call(lambda: self._start(self._detach(charge)).add_done_callback(lambda _: done.set_result(None)))
        return done

    def renewed(self, group: Group) -> list[Hold]:
        """A client's holds that are renewed, for ever or for long."""
        return [hold for hold in self.held(group) if hold.renew_until != 0.0]

    def held(self, group: Group) -> list[Hold]:
        """A client's holds that are being watched."""
        with self._roster.lock:
            holds = {*self.nursery, *self._roster.everybody()}
        return [h for h in holds if h.state == HELD and h.group is group]

    # -- in the watchdog's thread ----------------------------------------------------------------------------------

    def _start_thread(self) -> None:
        try:
            threading.Thread(target=self._run, name="handfast-watchdog", daemon=True).start()
        except RuntimeError:
            # Python 3.12 starts no thread once the main thread has ended. This one runs, and leases must be released.
            self._run()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._watch())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()

    async def _watch(self) -> None:
        while True:
            self._bell.clear()
            self._release_left()
            if clock.now() >= self._look_at:
                self._look_at = FOREVER
                self._file_nursery()
            for settings, holds in self._roster.due(clock.now()).items():
                self._start(self._tend(settings.group, holds))
            with self._roster.lock:
                if not self._charges and not self._tasks:
                    self._ended = True
                    return
                wakes_at = self._roster.next()
                if self.nursing < FOREVER:
                    self._look_at = min(self._look_at, clock.now() + self.nursing * NURSERY_SHARE)
                    wakes_at = min(wakes_at, self._look_at)
                self._roster.wakes_at = wakes_at
            timer = None
            if wakes_at < FOREVER:
                timer = self._loop.call_later(max(0.0, wakes_at - clock.now()), self._bell.set)
            await self._bell.wait()
            if timer is not None:
                timer.cancel()

    def _file_nursery(self) -> None:
        """File what is still held; an empty nursery is not looked at again until somebody moves in."""
        holds = list(self.nursery)
        if not holds:
            plan, self.nursing = self.nursing, FOREVER
            # Somebody may have moved in since, relying on the plan. Never given up after this look.
            holds = list(self.nursery)
            if holds:
                self.nursing = plan
        for hold in holds:
            self.nursery.discard(hold)
            if hold.state == HELD:
                self._file(hold, renewal.due(hold, hold.renew_from))

    def _release_left(self) -> None:
        while self._left:
            hold = self._left.popleft()
            task, charge = self._start(self._release(hold)), self._charges.get(hold.group)
            if charge is not None:
                charge.releases.add(task)
                task.add_done_callback(charge.releases.discard)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("the watchdog failed at a task", exc_info=task.exception())
        if not self._charges:
            self._bell.set()

    async def _tend(self, group: Group, holds: list[Hold]) -> None:
        now = clock.now()
        batch: list[Hold] = []
        for hold in holds:
            if hold.state != HELD:
                self._roster.tended(hold)
                continue
            self._file(hold, hold.deadline)
            if renewal.expire(hold, now):
                self._lost(hold)
            elif hold.renew_until is None or now < hold.renew_until:
                batch.append(hold)
        charge = self._charges.get(group)
        if batch and charge is not None:
            await asyncio.gather(*[self._renew_in(driver, group, part) for driver, part in self._parts(charge, batch)])
            if group.guard and group.voters() < group.n:
                self._mend_soon(group)

    def _parts(self, charge: Charge, batch: list[Hold]) -> list[tuple[AioDriver, list[Hold]]]:
        """What can leave in one write: holds on the same nodes."""
        lanes = self._lanes(charge)
        if isinstance(lanes, AioDriver):
            return [(lanes, batch[i : i + BATCH]) for i in range(0, len(batch), BATCH)]
        by_lane: dict[AioDriver, list[Hold]] = {}
        alone: list[tuple[AioDriver, list[Hold]]] = []
        for hold in batch:
            lane = lanes.at(hold.key or hold.keys[0])
            # One that failed may have to be asked for elsewhere, which only one by one can.
            if hold.retrying:
                alone.append((lane, [hold]))
            else:
                by_lane.setdefault(lane, []).append(hold)
        return alone + [
            (lane, holds[i : i + BATCH]) for lane, holds in by_lane.items() for i in range(0, len(holds), BATCH)
        ]

    async def _renew_in(self, driver: AioDriver, group: Group, holds: list[Hold]) -> None:
        await self._connected(driver, group)
        await self._renew(driver, group, holds)

    async def _renew(self, driver: AioDriver, group: Group, holds: list[Hold]) -> None:
        # Past the deadline nothing is sent: connecting may have taken long.
        now = clock.now()
        holds = [hold for hold in holds if hold.state == HELD and now < hold.deadline]
        if not holds:
            return
        await renewal.renew(driver, group, holds, heal=True)
        now = clock.now()
        for hold in holds:
            if hold.state == LOST:
                self._lost(hold)
            elif hold.state == HELD:
                self._file(hold, renewal.due(hold, now))

    def _lost(self, hold: Hold) -> None:
        self.remove(hold)
        logger.warning("%s: lease lost (%s)", hold.name, hold.reason)

    def _lanes(self, charge: Charge) -> AioDriver | AioFleet:
        lanes = charge.driver
        if lanes is None:
            kind: type[AioDriver | AioFleet] = AioDriver
            if any(address.cluster is not None for address in charge.addresses):
                from handfast.drivers.fleet import AioFleet as kind
            lanes = charge.driver = kind(charge.group, charge.addresses, charge.shake, self._loop)
        return lanes

    async def _driver(self, charge: Charge, key: bytes = b"") -> AioDriver:
        lanes = self._lanes(charge)
        return await self._connected(lanes if isinstance(lanes, AioDriver) else lanes.at(key), charge.group)

    async def _connected(self, driver: AioDriver, group: Group) -> AioDriver:
        if not driver.settled:
            await driver.settle(group.need, CONNECT_PATIENCE)
        return driver

    async def _release(self, hold: Hold) -> None:
        """Release what was dropped, or whose release was cut short somewhere. Harmless where it was not.

        A node that cannot be asked is asked again, until its key has ended by itself.
        """
        hold.leave()
        group = hold.group
        charge = self._charges.get(group)
        if hold.state == LOST or charge is None:
            return
        self.remove(hold)
        given_up, pause = clock.now() + hold.ttl, RELEASE_SOONEST
        unasked = set(range(group.n))
        while self._charges.get(group) is charge:
            driver = await self._driver(charge, hold.key or hold.keys[0])
            words = commands.release(hold, hold.owner, hold.floor, hold.claim)
            ballot = Ballot(group.n, len(unasked), len(unasked))
            payloads = [payload_for(words, node) if node in unasked else None for node in range(group.n)]
            await driver.exchange(payloads, ballot, hold.settings.terms.patience)
            unasked = {node for node in unasked if ballot.answers[node] is None or type(ballot.answers[node]) is Fault}
            if not unasked or clock.now() + pause >= given_up or driver.closed:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, RELEASE_LATEST)
        hold.end()

    def _mend_soon(self, group: Group) -> None:
        charge = self._charges.get(group)
        if charge is not None and charge.mending is None:
            charge.mending = self._start(self._mend(charge))

    async def _mend(self, charge: Charge) -> None:
        """Until every node votes that can be reached."""
        group = charge.group
        try:
            while group.voters() < group.n:
                driver = await self._driver(charge)
                await guard.repair(driver, group)
                now = clock.now()
                waits = [node.opens_at - now for node in group.nodes if not node.marker and node.incarnation]
                await asyncio.sleep(min(MEND_LATEST, max(MEND_SOONEST, min(waits, default=0.0))))
        except HandfastError as error:
            logger.error("the restart guard cannot go on: %s", error)
        finally:
            charge.mending = None

    async def _detach(self, charge: Charge) -> None:
        group = charge.group
        self._release_left()
        left = self.renewed(group)
        if left or charge.releases:
            try:
                async with asyncio.timeout(CLOSE_PATIENCE):
                    # Whatever becomes of one of them, the rest of the closing must come.
                    await asyncio.gather(*map(self._release, left), *charge.releases, return_exceptions=True)
            except TimeoutError:
                pass  # the servers do not answer; the ttl ends the leases
        for hold in left:
            hold.leave()
            hold.end()
        for hold in self.held(group):
            self.remove(hold)
        with self._roster.lock:
            self._charges.pop(group, None)  # from here on nothing is begun for it
        if charge.mending is not None:
            charge.mending.cancel()
        if charge.driver is not None:
            await charge.driver.close()

    async def _finish_all(self, group: Group) -> None:
        """Release what a client still holds, and finish what was left for the watchdog to release."""
        self._release_left()
        await asyncio.gather(*map(self._release, self.renewed(group)))
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def last_words(self, group: Group) -> None:
        """The process ends: what was being renewed for its sake ends with it."""
        if not self._ended:
            ended = asyncio.run_coroutine_threadsafe(self._finish_all(group), self._loop)
            try:
                ended.result(timeout=CLOSE_PATIENCE)
            except TimeoutError:
                pass  # the servers do not answer; the ttl ends the leases


_guard = threading.Lock()
_current: Watchdog | None = None


def attach(group: Group, addresses: Sequence[Address], shake: Callable[[int], Steps]) -> Watchdog:
    """The process' watchdog, watching over this client from now on."""
    global _current
    charge = Charge(group, addresses, shake)
    with _guard:
        if _current is None or not _current.adopt(charge):
            _current = Watchdog(charge)
        return _current


def _forget_all() -> None:
    """In a child after a fork: the leases are the parent's, so here they are lost, silently and for good."""
    global _current, _guard
    dog, _current, _guard = _current, None, threading.Lock()
    if dog is not None:
        for hold in {*dog.nursery, *dog._roster.everybody()}:
            # Nobody is told: a watcher's lock may have been taken by a thread that does not exist here.
            hold.watchers = ()
            hold.lose("held by the parent process: a fork inherits no lease")


os.register_at_fork(after_in_child=_forget_all)
