"""A user of locks: it acquires one, works on two resources under it, and releases it; again and again.

One resource checks tokens, the other does not. The user checks its lease before it writes to the latter, as the
documentation says. Sometimes it is slow between the check and the write; only tokens help in this case.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from handfast._lease import Reentries, Reentry
from handfast.core.hold import Hold
from handfast.core.schedule import SLOTS_PER_SECOND
from handfast.errors import ConfigError, HandfastError, NotAcquired
from sim.client import Client
from sim.world import Task

if TYPE_CHECKING:
    from sim.scenario import Scenario

__all__ = ["User"]

LONGEST: Final = 3
"""The longest work as a multiple of the usual, so that no waiter has to wait for too long."""
STOP_CHANCE: Final = 0.06
"""The probability that a user is stopped at a critical point, if that fault is on."""
USUAL_WAITS: Final = 3
"""The number of waits from the first request to the release without contention."""
SLOW: Final = frozenset({"slow writer", "stop where it hurts"})
"""With these faults there may be time between the check of a lease and the write."""


class User:
    """One of the tasks of a client."""

    def __init__(self, scene: Scenario, client: Client, number: int) -> None:
        self.scene = scene
        self.client = client
        self.number = number
        self.plan = scene.plan
        self.name = f"{client.name}.{number}"
        self.owner: str | None = None
        """The same in a later life of this client, which may still hold what the earlier life acquired."""
        if self.plan.owners and number == 0:
            self.owner = "job" if self.plan.one_owner else f"user c{client.where}"
        self.world = client.world
        self.last: float | None = None
        """The time from which it wants the lock once more for the last time; set when the faults are over."""
        self.done = False
        self.phase = ""
        """The number of the fault (1, 2 or 3) that stopping it now would be."""
        self.keep_until = 0.0
        self._task: Task | None = None
        self._pause()

    @property
    def rests(self) -> bool:
        """The user has had its last turn."""
        return self.done and self._task is not None and self._task.over

    def _pause(self) -> None:
        rng = self.world.rng
        self.client.actor.at(self.world.now + rng.expovariate(1 / self.plan.think), self._round)

    def _round(self) -> None:
        if self.done:
            return
        rng, plan = self.world.rng, self.plan
        names: str | tuple[str, ...] = rng.choice(plan.names)
        if plan.together and rng.random() < 0.4:
            names = tuple(sorted(rng.sample(plan.names, 2)))
        final = self.last is not None
        wait = plan.longest_wait if final else rng.choice((0.0, 0.0, 0.3, 2.0, None))
        self.done = final
        work = self._once(names, wait, final)
        self._task = task = Task(self.client.actor, work, f"{self.name} on {names}", self._ended)
        self.client.tasks.append(task)
        if "cancel" in plan.faults and not final and rng.random() < 0.3:
            self._cancel_some_time(task)

    def _cancel_some_time(self, task: Task) -> None:
        rng = self.world.rng
        if rng.random() < 0.5:  # at one of its awaits
            at = 1 + int(rng.expovariate(1 / USUAL_WAITS))
            if rng.random() < 0.5:
                task.cancel_while = at
            else:
                task.cancel_after = at
        else:  # mostly early: most awaits end within a round trip
            self.client.actor.at(self.world.now + 2 * rng.random() ** 6, self._cancel, task)

    def _cancel(self, task: Task) -> None:
        if not task.over:
            self.world.note("cancels", task.name)
            task.cancel()
            if self.world.rng.random() < 0.2:
                self.client.actor.at(self.world.now + 0.002 * self.world.rng.random(), task.cancel)

    def _ended(self, task: Task) -> None:
        self.phase = ""
        self.client.tasks.remove(task)
        if task.error is not None and not isinstance(task.error, asyncio.CancelledError):
            raise task.error
        if not self.done:
            self._pause()

    def _reaches(self, phase: str, soon: float = 0.0) -> bool:
        """A critical point: the process may be stopped here. True if it will be."""
        self.phase, rng = phase, self.world.rng
        if "stop where it hurts" not in self.plan.faults or self.scene.calm or rng.random() > STOP_CHANCE:
            return False
        end = self.world.now + soon + self.plan.ttl * (1.05 + rng.random())
        if soon:
            self.world.at(self.world.now + soon * rng.random(), self.scene.stop, self.client, end)
        else:
            self.scene.stop(self.client, end)
        return True

    async def _once(self, names: str | tuple[str, ...], wait: float | None, final: bool) -> None:
        client, observer = self.client, self.client.observer
        self.world.note("wants", self.name, names, wait)
        lock = client.lock(names, owner=self.owner)
        began = observer.began(lock.names)
        asked = self.world.now
        self._reaches("1", soon=0.002)
        try:
            hold = await client.acquire(lock, wait)
        except (NotAcquired, ConfigError) as error:
            self.world.note("fails", self.name, names, str(error))
            self._failed(error, final, asked)
            return
        observer.returned(client, hold, began, asked)
        try:
            if not final:
                self._reaches("2")
                await self._work(hold)
        finally:
            self.phase = ""
            if "dropped lease" in self.plan.faults and not final and self.world.rng.random() < 0.3:
                self.world.note("drops", self.name, names, hold.token)
                client.drop(hold)
            else:
                released = await client.release(hold)
                self.world.note("released", self.name, names, hold.token, released)

    def _failed(self, error: HandfastError, final: bool, asked: float) -> None:
        stranger = self.client in self.scene.strangers
        if stranger and isinstance(error, ConfigError):
            self.world.happened["41"] += 1
        elif final and self.plan.expected_guarantees.lively and self.plan.tries is None and not stranger:
            self.client.observer.complain(
                11, f"{self.name} waited {self.world.now - asked:.1f} s after all faults: {error}"
            )

    async def _work(self, hold: Hold) -> None:
        client, rng, plan = self.client, self.world.rng, self.plan
        io, observer = client.io, client.observer
        shared = self.owner is not None and plan.one_owner  # such holders do not exclude each other
        read = None if shared else observer.read(hold)
        await io.sleep(io.now() + min(rng.expovariate(1 / plan.work), LONGEST * plan.work))
        if plan.reentrant or self.owner is not None:
            await self._again(hold)
        while self.world.now < self.keep_until and observer.valid(client, hold):
            await io.sleep(io.now() + plan.ttl / 2)
        if "extend" in plan.faults and rng.random() < 0.3 and observer.valid(client, hold):
            await self._extend(hold)
        if read is None:
            return
        valid = observer.valid(client, hold)
        if "slow writer" in plan.faults and rng.random() < 0.3:
            await io.sleep(io.now() + 2 * plan.ttl * rng.random())
        if self._reaches("3"):
            await io.sleep(io.now())
        observer.write(hold, read[0] + 1)
        if valid:
            observer.write_plain(hold, read[1] + 1, at_once=not SLOW & set(plan.faults))
        if "release while renewing" in plan.faults and rng.random() < 0.5 and observer.valid(client, hold):
            await io.sleep(hold.slot / SLOTS_PER_SECOND + 0.0008 * rng.random())

    async def _again(self, hold: Hold) -> None:
        """Takes the held lock again: by the same task, as a reentrant lock does, or with the same explicit owner."""
        client, observer = self.client, self.client.observer
        if self.owner is None:
            inner = Reentry(Reentries(), hold.keys, hold).enter(client.clock.now())
            if (inner is not None) != observer.valid(client, hold):
                observer.complain(6, f"{hold.name}: a lease that is over was re-entered, or a valid one was not")
            return
        floors, asked = observer.began(hold.names), self.world.now
        try:
            inner = await client.acquire(client.lock(hold.names, owner=self.owner), 0.0, self.plan.ttl / 2)
        except (NotAcquired, ConfigError):
            return
        observer.returned(client, inner, floors, asked)
        try:
            await client.io.sleep(client.io.now() + 0.5 * self.plan.ttl * self.world.rng.random())
        finally:
            await client.release(inner)

    async def _extend(self, hold: Hold) -> Any:
        ttl = self.plan.max_ttl * (0.1 + 0.9 * self.world.rng.random())
        if self.world.rng.random() < 0.3:  # at the last moment
            await self.client.io.sleep(hold.deadline - 0.0015 * self.world.rng.random())
            if not self.client.observer.valid(self.client, hold):
                return
        try:
            await self.client.extend(hold, ttl)
        except HandfastError as error:
            self.world.note("cannot extend", self.name, str(error))
