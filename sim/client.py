"""A simulated process: the asyncio client and the watchdog of production, with another driver below them.

Its users are tasks of one actor. They share one SimIO, as asyncio's tasks do, or borrow connections from a pool, as
threads do. The watchdog is a second actor with its own SimIO. SIGSTOP stops both actors; a blocked event loop stops
only the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from handfast import _lifetime, aio, watchdog
from handfast._registration import Registration
from handfast.core.config import LockConfig
from handfast.core.hold import Hold
from handfast.core.local_queue import Acquisition
from handfast.core.nodes import NodeGroup
from handfast.core.schedule import FOREVER, Schedule
from handfast.discovery.endpoints import Endpoints
from handfast.net.address import Address
from handfast.option_types import ClientOptions
from handfast.options import Policy
from handfast.protocol.commands import Identity
from sim.connection_pool import ConnectionPool
from sim.io import SimIO
from sim.net import Net
from sim.node import Node
from sim.world import Actor, Clock, Task, Timer, World

if TYPE_CHECKING:
    from sim.observer import Observer

__all__ = ["Client", "Watchdog"]


class Lease(aio.Lease):
    """A lease whose finalizer does nothing: see `Client.drop`. Users keep the hold."""

    __slots__ = ()

    def __del__(self) -> None:
        pass


class Client(aio.Client):
    """A process with one handfast client in it."""

    _lease_type = Lease
    _io: Any
    _dog: Any

    def __init__(
        self,
        world: World,
        net: Net,
        nodes: Sequence[Node],
        observer: Observer,
        where: int,
        options: ClientOptions,
        clock: Clock,
        *,
        life: int = 0,
        threads: bool = False,
    ) -> None:
        self.world = world
        self.name = f"c{where}" if not life else f"c{where}.{life}"
        self.life = life
        """Counts the processes of this machine."""
        self.where = where
        self.clock = clock
        self.observer = observer
        self._now = clock.now
        super().__init__(Endpoints([Address(f"n{node.index}", host=f"n{node.index}") for node in nodes]), options)
        _lifetime.clients.discard(self)  # the client ends with its world, not with this process
        self._collected.detach()
        self.group = self._group
        self.queues = self._queues
        self.queues.warn = self._warn
        self.actor = Actor(world, self.name)
        self.tasks: list[Task] = []
        """Of users."""

        def io(actor: Actor) -> SimIO:
            return SimIO(actor, clock, where, self.group, net, nodes, self._shake, partial(observer.on_write, self))

        self.io = self._io = io(self.actor)
        self.pool = ConnectionPool(lambda: io(self.actor)) if threads else None
        """Only a client with threads has one."""
        self._overtaking: dict[Hold, None] = {}
        """Holds whose release uses other connections than their acquisition."""
        self.dog = self._dog = Watchdog(self, io(Actor(world, f"{self.name} watchdog")))
        self.group.on_standstill = partial(self.dog.clock_stood_still, self.group)
        self.hands_over: Callable[[Client], None] = lambda client: None
        """Called when a holder has handed over to a sibling that has not noticed it yet."""

    def _warn(self, text: str) -> None:
        self.world.note("warns", self.name, text)

    def stop(self) -> None:
        self.actor.stop()
        self.dog.actor.stop()

    def go_on(self) -> None:
        self.actor.go_on()
        self.dog.actor.go_on()

    def stand_still(self, seconds: float) -> None:
        """The machine is paused, and its clock with it."""
        self.stop()
        self.clock.step(-self.clock.rate * seconds)  # when it goes on, the clock shows what it shows now
        self.world.at(self.world.now + seconds, self.go_on)

    def ran_for(self, seconds: float) -> bool:
        """The process was not stopped during the last `seconds`."""
        return not self.actor.stopped and self.world.now - self.actor.went_on > seconds

    def crash(self, *, silently: bool = False) -> None:
        """kill -9: the kernel closes the connections. `silently`: a power cut, which leaves them half-open."""
        for io in (self.io, self.dog.io, *(self.pool.all if self.pool is not None else ())):
            io.actor.die()
            for link in io.links:
                if link.tcp is not None and not silently:
                    link.tcp.give_up()

    # -- what users do ---------------------------------------------------------------------------------------------

    async def acquire(self, lock: aio.Lock, wait: float | None, ttl: float | None = None) -> Hold:
        return (await self._acquire(lock, lock._timing(ttl), wait))._hold

    async def release(self, hold: Hold) -> bool:
        if hold in self.dog.renewing:
            self.world.happened["30"] += 1
        lease = self._lease_type(self, hold)
        if self.pool is None:
            return await lease.release()
        # As in sync.Client: on the connections that carried the acquisition, if no other thread uses them.
        with self.pool.lend(hold.carrier) as io:
            if io is not hold.carrier:
                self._overtaking[hold] = None
            return await lease.release()

    def drop(self, hold: Hold) -> None:
        """The user drops the lease without releasing it."""
        aio.Lease.__del__(self._lease_type(self, hold))

    async def extend(self, hold: Hold, ttl: float) -> None:
        self.observer.renews(self, hold)
        try:
            with self.pool.lend() if self.pool is not None else nullcontext():
                await self._extend(hold, ttl)
        finally:
            self.observer.renewed(self, hold)

    # -- production's hooks, and calls to the observer ---------------------------------------------------------------

    def _io_for(self, key: bytes) -> Any:
        if self.pool is None:
            return self.io
        return self.pool.borrowed.get(self.world.task, self.pool)

    def _prepared(self, settings: Policy) -> LockConfig:
        return LockConfig(self._group, settings, f"{self.name}:1::".encode())

    def _grant(self, hold: Hold, acquisition: Acquisition) -> aio.Lease:
        self.observer.granted(self, hold)
        return super()._grant(hold, acquisition)

    def _take_back(self, acquisition: Acquisition, error: BaseException) -> None:
        super()._take_back(acquisition, error)
        self.observer.failed(acquisition)

    def _released(self, hold: Hold) -> None:
        if self._overtaking.pop(hold, self) is None and hold.unanswered:
            hold.release_unconfirmed = hold.may_arrive_late = True
        super()._released(hold)

    def _schedule(self, hold: Hold) -> None:
        if b"#" in hold.who.id:
            self.observer.granted_part(self, hold)
        if hold.handovers:
            self.world.note("hands over", self.name, hold.name, hold.token)
            self.observer.granted(self, hold)
        super()._schedule(hold)

    def _hand_over(self, hold: Hold) -> bool:
        handed_over = super()._hand_over(hold)
        if handed_over:
            self.hands_over(self)
        return handed_over


class Registered(Registration):
    """A client in the watchdog, with simulated connections."""

    io: Any

    def __init__(self, client: Client, io: SimIO) -> None:
        super().__init__(client.group, client._addresses, client._shake)
        self.io = io

    def io_for(self, key: bytes = b"") -> Any:
        return self.io

    def batches(self, holds: list[Hold]) -> Any:
        return [(self.io, holds)]


class Watchdog(watchdog.Watchdog):
    """Production's watchdog without its thread and event loop: the world calls it."""

    def __init__(self, client: Client, io: SimIO) -> None:
        self.client = client
        self.io = io
        self.actor = io.actor
        self.renewing: dict[Hold, None] = {}
        """Holds whose renewal is under way."""
        self.releasing: dict[Identity, None] = {}
        """Acquisitions whose release is under way. The watchdog releases node by node, and some of them twice."""
        lock: Any = nullcontext()
        self._lock = lock
        self.schedule = Schedule(lock, self._wake, client.clock.now)
        self._registrations = {client.group: Registered(client, io)}
        self._ended = False
        self._to_finish = deque()
        self._tasks = set()
        self._timer: Timer | None = None

    def _wake(self) -> None:
        self._look_at(self.actor.world.now)

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.actor.at(when, self._look)

    def _look(self) -> None:
        """One turn of `_watch`."""
        self._timer = None
        self._release_abandoned()
        for config, holds in self.schedule.take_due().items():
            self._start(self._process_due(config.group, holds))
        wakes_at = self.schedule.next_wake()
        if wakes_at < FOREVER:
            self._look_at(self.client.clock.when(wakes_at))

    def call_soon(self, what: Callable[..., Any], *args: Any) -> None:
        self.actor.soon(what, *args)

    def nudge(self, group: NodeGroup) -> None:
        self._repair_soon(group)

    def _start(self, work: Coroutine[Any, Any, Any]) -> Any:
        return Task(self.actor, work, f"{self.actor.name}: {getattr(work, '__name__', '')}", self._done)

    def _done(self, task: Any) -> None:
        if task.error is not None:
            raise task.error

    @staticmethod
    async def _together(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
        for each in work:
            await each

    async def _release(self, hold: Hold) -> None:
        self.releasing[hold.who] = None
        try:
            await super()._release(hold)
        finally:
            self.releasing.pop(hold.who, None)

    async def _renew(self, io: Any, group: NodeGroup, holds: list[Hold]) -> None:
        deadlines = [hold.deadline for hold in holds]
        for hold in holds:
            self.client.observer.renews(self.client, hold)
        self.renewing.update(dict.fromkeys(holds))
        await super()._renew(io, group, holds)
        now = self.io.now()
        for hold, deadline in zip(holds, deadlines, strict=True):
            self.renewing.pop(hold, None)
            self.client.world.happened["31"] += now >= deadline
            self.client.observer.renewed(self.client, hold)
