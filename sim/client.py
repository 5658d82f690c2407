"""A simulated process: what facade.py and watchdog.py are to a real one, around the same core.

Its users are tasks of one actor and share one SimIO, as asyncio's do; the watchdog is an actor of its own with a SimIO of
its own. SIGSTOP stops both, a blocked event loop only the first.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from handfast.core import commands, fair, guard, mutex, renewal
from handfast.core.commands import Request
from handfast.core.group import Group
from handfast.core.handshake import Login, Steps, handshake
from handfast.core.hold import HELD, LOST, Hold
from handfast.core.line import Lines
from handfast.core.lineup import line_up
from handfast.core.quorum import Ballot
from handfast.core.terms import Settings, Terms
from handfast.errors import HandfastError
from handfast.lease import Entry
from handfast.options import Policy
from handfast.roster import SLOTS_PER_SECOND
from handfast.watchdog import CONNECT_PATIENCE, MEND_LATEST, MEND_SOONEST
from sim.io import SimIO
from sim.net import Net
from sim.node import Node
from sim.world import Actor, Clock, Task, World

if TYPE_CHECKING:
    from sim.observer import Observer

__all__ = ["Client", "Watchdog"]

LOGIN = Login("", "", 0, "")


class Client:
    """A process with one handfast client in it. Also the core's Keeper and Usher."""

    def __init__(
        self,
        world: World,
        net: Net,
        nodes: Sequence[Node],
        observer: Observer,
        where: int,
        policy: Policy,
        clock: Clock,
        *,
        guard: bool,
        life: int = 0,
    ) -> None:
        self.world = world
        self.name = f"c{where}" if not life else f"c{where}.{life}"
        self.life = life
        """Which process of this machine it is."""
        self.where = where
        self.clock = clock
        self.observer = observer
        self.group = Group([f"n{node.index}" for node in nodes], policy, guard=guard)
        self.settings = Settings(self.group, policy, self.name.encode() + b"::")
        self.actor = Actor(world, self.name)
        self.lines = Lines(nullcontext(), self._warn, lambda place, seconds, outcome: None)
        self.tasks: list[Task] = []
        """Of users."""
        self._presented: dict[Any, Entry] = {}

        def io(actor: Actor) -> SimIO:
            return SimIO(actor, clock, where, self.group, net, nodes, self._shake, partial(observer.told, self))

        self.io = io(self.actor)
        self.dog = Watchdog(self, io(Actor(world, f"{self.name} watchdog")))

    def _shake(self, index: int) -> Steps:
        return handshake(self.group, self.group.nodes[index], LOGIN, self.clock.now, self._warn)

    def _warn(self, text: str) -> None:
        self.world.note("warns", self.name, text)

    def stop(self) -> None:
        self.actor.stop()
        self.dog.actor.stop()

    def go_on(self) -> None:
        self.actor.go_on()
        self.dog.actor.go_on()

    def crash(self, *, silently: bool = False) -> None:
        """kill -9: the kernel closes its connections. If the whole machine loses its power, nobody does."""
        for io in (self.io, self.dog.io):
            io.actor.die()
            for link in io.links:
                if link.tcp is not None and not silently:
                    link.tcp.give_up()

    # -- as aio.Client and aio.Lease do it -------------------------------------------------------------------------

    def request(self, names: str | tuple[str, ...], owner: bytes | None = None) -> Request:
        return Request(self.settings, names, owner)

    async def acquire(self, request: Request, wait: float | None, ttl: float | None = None) -> Hold:
        terms, hold = self.settings.terms if ttl is None else self.settings.terms_for(ttl), None
        if wait == 0 and self.settings.fair:
            hold = await fair.try_acquire(self.io, request, terms, self)
        elif wait == 0 or not (self.settings.fair or self.lines.waited_for(request)):
            hold = await mutex.acquire(self.io, request, terms, wait, self)
        else:
            hold = await self._line_up(request, terms, wait, self.io.now())
        assert isinstance(hold, Hold)
        return hold

    async def release(self, hold: Hold) -> bool:
        if hold in self.dog.renewing:
            self.world.happened["30"] += 1
        if hold.presented and not self._leave(hold):
            return True
        if self.settings.cohort and self._pass_on(hold):
            return True
        return await mutex.release(self.io, hold, self)

    def _leave(self, hold: Hold) -> bool:
        """One hold less under its owner; True if it was the last, and the key goes with it."""
        last = self._presented[hold.owner, hold.keys].leave()
        if not last and hold.leave():
            hold.end()
            self._ending(hold)
        return last

    async def extend(self, hold: Hold, ttl: float) -> None:
        soon, deadline = self.clock.now() + hold.settings.policy.validity(ttl), hold.deadline
        if soon < hold.deadline:
            self.dog.file(hold, min(soon, renewal.due(hold, self.clock.now())))
        try:
            await mutex.extend(self.io, hold, ttl)
        finally:
            self.observer.renewed(self, hold, deadline)
            if hold.state == HELD:
                self.dog.file(hold, renewal.due(hold, self.clock.now()))

    def _pass_on(self, hold: Hold) -> bool:
        passed = self.lines.pass_on(hold, self.clock.now())
        if passed is None:
            return False
        self._ending(hold)
        self.world.note("passes on", self.name, hold.name, hold.token)
        self.observer.granted(self, passed)
        self._watch(passed)
        return True

    def _watch(self, hold: Hold) -> None:
        if not hold.passes:
            self.lines.took(hold)
        self.dog.add(hold)
        if not self.group.all_vote:
            self.dog.mend_soon()

    # -- see core.hold.Keeper --------------------------------------------------------------------------------------

    def _granted(self, hold: Hold) -> Hold:
        if hold.presented:
            key = (hold.owner, hold.keys)
            entry = self._presented.get(key)
            if entry is None:
                Entry(self._presented, key, None).token = hold.token
            else:
                entry.count += 1
                hold.token = entry.token
        self.observer.granted(self, hold)
        self._watch(hold)
        return hold

    def _ending(self, hold: Hold) -> None:
        self.dog.remove(hold)

    def _unfinished(self, hold: Hold) -> None:
        self.dog.start(self.dog.release(hold), "release")

    def _letting_go(self, hold: Hold, now: float) -> None:
        self.lines.letting_go(hold, now)

    def _let_go(self, hold: Hold, others: bool) -> None:
        self.lines.let_go(hold, others)

    def _line_up(self, request: Request, terms: Terms, wait: float | None, since: float) -> Coroutine[Any, Any, Any]:
        return line_up(self.io, self.lines, request, terms, wait, since, self)


class Watchdog:
    """Renewals, as watchdog.py drives them: slots, a filing under the deadline while a renewal is under way."""

    def __init__(self, client: Client, io: SimIO) -> None:
        self.client = client
        self.io = io
        self.actor = io.actor
        self.mending: Task | None = None
        self.renewing: dict[Hold, None] = {}
        """Those of which a renewal is under way."""
        self._slots: dict[int, dict[Hold, None]] = {}

    def add(self, hold: Hold) -> None:
        settings = hold.settings.policy
        if not settings.renew:
            hold.renew_until = 0.0
        elif settings.max_hold is not None:
            hold.renew_until = hold.renew_from + settings.max_hold
        self.file(hold, renewal.due(hold, hold.renew_from))

    def file(self, hold: Hold, at: float) -> None:
        self.remove(hold)
        slot = hold.slot = int(at * SLOTS_PER_SECOND) + 1
        holds = self._slots.get(slot)
        if holds is None:
            holds = self._slots[slot] = {}
            self.actor.at(self.client.clock.when(slot / SLOTS_PER_SECOND), self._due, slot)
        holds[hold] = None

    def remove(self, hold: Hold) -> None:
        self._slots.get(hold.slot, {}).pop(hold, None)

    def start(self, work: Coroutine[Any, Any, Any], what: str) -> Task:
        return Task(self.actor, work, f"{self.actor.name}: {what}", self._done)

    def _done(self, task: Task) -> None:
        if task is self.mending:
            self.mending = None
        if task.error is not None:
            raise task.error

    def _due(self, slot: int) -> None:
        holds = self._slots.pop(slot, None)
        now = self.client.clock.now()
        batch: list[Hold] = []
        for hold in holds or ():
            if hold.state != HELD:
                continue
            self.file(hold, hold.deadline)
            if renewal.expire(hold, now):
                self._lost(hold)
            elif hold.renew_until is None or now < hold.renew_until:
                batch.append(hold)
        if batch:
            self.start(self._renew(batch), "renew")

    async def _settled(self) -> SimIO:
        if not self.io.settled:
            await self.io.settle(self.client.group.need, CONNECT_PATIENCE)
        return self.io

    async def _renew(self, holds: list[Hold]) -> None:
        io, group = await self._settled(), self.client.group
        now = io.now()
        holds = [hold for hold in holds if hold.state == HELD and now < hold.deadline]
        if not holds:
            return
        deadlines = [hold.deadline for hold in holds]
        self.renewing.update(dict.fromkeys(holds))
        await renewal.renew(io, group, holds, heal=True)
        now = io.now()
        for hold, deadline in zip(holds, deadlines, strict=True):
            self.renewing.pop(hold, None)
            self.client.world.happened["31"] += now >= deadline
            self.client.observer.renewed(self.client, hold, deadline)
        for hold in holds:
            if hold.state == LOST:
                self._lost(hold)
            elif hold.state == HELD:
                self.file(hold, renewal.due(hold, now))
        if group.guard and group.voters() < group.n:
            self.mend_soon()

    def _lost(self, hold: Hold) -> None:
        self.remove(hold)
        self.client.world.note("lost", self.client.name, hold.name, hold.token, hold.reason)

    async def release(self, hold: Hold) -> None:
        """What was dropped, or whose release was cut short."""
        hold.leave()
        if hold.state == LOST:
            return
        self.remove(hold)
        io, group = await self._settled(), hold.group
        payloads = commands.release(hold, hold.owner, hold.floor, hold.claim)
        await io.exchange(payloads, Ballot(group.n, group.need), hold.settings.terms.patience)
        hold.end()

    def mend_soon(self) -> None:
        if self.mending is None:
            self.mending = self.start(self._mend(), "mend")

    async def _mend(self) -> None:
        group = self.client.group
        try:
            while group.voters() < group.n:
                io = await self._settled()
                await guard.repair(io, group)
                now = io.now()
                waits = [node.opens_at - now for node in group.nodes if not node.marker and node.incarnation]
                await io.sleep(now + min(MEND_LATEST, max(MEND_SOONEST, min(waits, default=0.0))))
        except HandfastError as error:
            self.client.world.note("cannot mend", self.client.name, str(error))
