"""Somebody who uses locks: takes one, works under it on two resources, gives it back; again and again.

One resource checks tokens, the other does not. The user looks at its lease before it writes to the latter, as the
documentation says; sometimes it is slow between the look and the write, which is what tokens are for.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from handfast.core.hold import Hold
from handfast.errors import ConfigError, HandfastError, NotAcquired
from handfast.testing.sim.client import Client
from handfast.testing.sim.faults import Plan
from handfast.testing.sim.world import Task

__all__ = ["User"]

LONGEST: Final = 3
"""Times the usual: nobody works for so long that others could be thought to be kept waiting for ever."""


class User:
    """One of the tasks of a client."""

    def __init__(self, client: Client, plan: Plan, number: int) -> None:
        self.client = client
        self.plan = plan
        self.name = f"{client.name}.{number}"
        self.world = client.world
        self.last: float | None = None
        """From when on it wants the lock once more, and then no more; set when the faults are over."""
        self.done = False
        self._task: Task | None = None
        self._pause()

    def _pause(self) -> None:
        rng = self.world.rng
        self.client.actor.at(self.world.now + rng.expovariate(1 / self.plan.think), self._round)

    def _round(self) -> None:
        if self.done:
            return
        rng, plan = self.world.rng, self.plan
        name = rng.choice(plan.names)
        final = self.last is not None
        wait = plan.patience if final else rng.choice((0.0, 0.0, 0.3, 2.0, None))
        self.done = final
        work = self._once(name, wait, final)
        self._task = task = Task(self.client.actor, work, f"{self.name} on {name}", self._ended)
        self.client.tasks.append(task)
        if "cancel" in plan.faults and not final and rng.random() < 0.3:
            # Mostly soon: most awaits are over within a round trip.
            self.client.actor.at(self.world.now + 2 * rng.random() ** 6, self._cancel, task)

    def _cancel(self, task: Task) -> None:
        if not task.over:
            self.world.note("cancels", task.name)
            task.cancel()
            if self.world.rng.random() < 0.2:
                self.client.actor.at(self.world.now + 0.002 * self.world.rng.random(), task.cancel)

    def _ended(self, task: Task) -> None:
        self.client.tasks.remove(task)
        if task.error is not None and not isinstance(task.error, asyncio.CancelledError):
            raise task.error
        if not self.done:
            self._pause()

    async def _once(self, name: str, wait: float | None, final: bool) -> None:
        client, observer = self.client, self.client.observer
        self.world.note("wants", self.name, name, wait)
        began = observer.began(name)
        asked = self.world.now
        try:
            hold = await client.acquire(client.request(name), wait)
        except (NotAcquired, ConfigError) as error:
            self.world.note("fails", self.name, name, str(error))
            if final and self.plan.owed.lively:
                observer.complain(11, f"{self.name} waited {self.world.now - asked:.1f} s after all faults: {error}")
            return
        observer.returned(client, hold, began)
        try:
            if not final:
                await self._work(hold)
        finally:
            released = await client.release(hold)
            self.world.note("released", self.name, name, hold.token, released)

    async def _work(self, hold: Hold) -> None:
        client, rng, plan = self.client, self.world.rng, self.plan
        io, observer = client.io, client.observer
        read = observer.read(hold)
        await io.sleep(io.now() + min(rng.expovariate(1 / plan.work), LONGEST * plan.work))
        if "extend" in plan.faults and rng.random() < 0.3 and observer.valid(client, hold):
            await self._extend(hold)
        if read is None:
            return
        valid = observer.valid(client, hold)
        slow = "slow writer" in plan.faults and rng.random() < 0.3
        if slow:
            await io.sleep(io.now() + 2 * plan.ttl * rng.random())
        observer.write(hold, read[0] + 1)
        if valid:
            observer.write_plain(client, hold, read[1] + 1, at_once="slow writer" not in plan.faults)

    async def _extend(self, hold: Hold) -> Any:
        ttl = self.plan.max_ttl * (0.1 + 0.9 * self.world.rng.random())
        try:
            await self.client.extend(hold, ttl)
        except HandfastError as error:
            self.world.note("cannot extend", self.name, str(error))
