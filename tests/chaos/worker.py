"""A process that uses locks: `python -m tests.chaos.worker '<spec>'`. It reads commands from its standard input.

Each line in is a JSON list, a command and its arguments; each line out is the answer. A worker either does single steps
(acquire, read, check, write, release), so that a scenario can strike between any two of them, or works on its own: its
users, threads or tasks, take a lock, read both registers, think, check the lease once more, write both registers,
release, again and again. All of them log what they do. A worker ends with its standard input.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import random
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import handfast
from handfast.testing.history import Holding, Recorder, now
from tests.chaos.locks import Contender, Grant, HandfastGrant, Refused, open_contender
from tests.chaos.registers import Registers


@dataclass
class Spec:
    """The settings of a worker."""

    kind: str
    urls: list[str]
    ttl: float
    options: dict[str, Any]
    folder: str
    registers: int
    """The port of their server."""
    names: list[str]
    users: int = 2
    think: float = 0.01
    """The most seconds between reading and writing; mostly less."""
    wait: float = 5.0
    cancel: bool = False
    """Tasks are cancelled at random."""


class User:
    """One contender and what it holds."""

    def __init__(self, spec: Spec, contender: Contender, recorder: Recorder) -> None:
        self.spec = spec
        self.contender = contender
        self.recorder = recorder
        self.registers = Registers(spec.registers)
        self.grant: Grant | None = None
        self.holding: Holding | None = None
        self.base: dict[str, int | None] = {}

    async def acquire(self, name: str, wait: float) -> Grant:
        began = now()
        try:
            grant = await self.contender.acquire(name, wait)
        except Exception as error:
            self.recorder.failed(name, f"{type(error).__name__}: {error}"[:300], began=began)
            raise
        self.holding = self.recorder.took(name, grant.owner, grant.token, began=began, until=grant.until())
        self.grant = grant
        return grant

    def read(self) -> None:
        assert self.holding is not None
        name, token = self.holding.name, self.holding.token
        self.base = {"plain": self.registers.read(f"{name}:plain")}
        if token is not None:
            self.base["fenced"] = self.registers.read(f"{name}:fenced", token)

    def write(self) -> dict[str, bool]:
        """Write one more than was read. Returns which registers accepted it."""
        assert self.holding is not None
        assert self.grant is not None
        accepted = {}
        for which, base in self.base.items():
            if base is None:
                accepted[which] = False  # the read was refused already
                continue
            register, token = f"{self.holding.name}:{which}", self.holding.token if which == "fenced" else None
            order = self.registers.write(register, base + 1, token)
            self.recorder.wrote(
                register,
                base,
                base + 1,
                token=token,
                order=order,
                late=now() >= self.grant.until(),
                owner=self.grant.owner,
            )
            accepted[which] = order is not None
        return accepted

    async def release(self) -> None:
        assert self.holding is not None
        grant, self.grant = self.grant, None
        assert grant is not None
        self.recorder.ended(self.holding, min(now(), grant.until()))
        await grant.release()

    async def turn(self, chance: random.Random) -> None:
        """Once through the critical section."""
        grant = await self.acquire(chance.choice(self.spec.names), self.spec.wait)
        try:
            self.read()
            await asyncio.sleep(self.spec.think * chance.random() ** 3)
            if await grant.check(self.spec.ttl / 5):
                self.write()
        finally:
            await self.release()


@dataclass
class Shift:
    """The users of a worker, until they have to stop."""

    spec: Spec
    recorder: Recorder
    over: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        spec = self.spec
        if spec.kind == "threads":
            # As in a program: all threads share one client.
            shared = self._open()
            each = [self._work(shared) for _ in range(spec.users)]
        elif spec.kind == "asyncio":
            each = [self._tasks()]
        else:
            each = [self._user() for _ in range(spec.users)]
        self.threads = [threading.Thread(target=asyncio.run, args=(what,), daemon=True) for what in each]
        for thread in self.threads:
            thread.start()

    def end(self, within: float) -> dict[str, Any]:
        self.over.set()
        end = now() + within
        for thread in self.threads:
            thread.join(max(0.0, end - now()))
        hang = sum(thread.is_alive() for thread in self.threads)
        return {"counts": self.counts, "errors": self.errors, "hang": hang}

    def _open(self) -> Contender:
        return open_contender(self.spec.kind, self.spec.urls, self.spec.ttl, self.spec.options)

    async def _tasks(self) -> None:
        contender = self._open()
        await asyncio.gather(*[self._work(contender) for _ in range(self.spec.users)])
        await contender.close()

    async def _user(self) -> None:
        contender = self._open()
        await self._work(contender)
        try:
            await contender.close()
        except Exception as error:
            self._failed(error)

    async def _work(self, contender: Contender) -> None:
        user, chance = User(self.spec, contender, self.recorder), random.Random()
        while not self.over.is_set():
            task = asyncio.ensure_future(user.turn(chance))
            if self.spec.cancel:
                moment = chance.choice([0.0, chance.uniform(0, 0.002), chance.uniform(0, 0.05)])
                asyncio.get_running_loop().call_later(moment, task.cancel)
            try:
                await task
                self.counts["turns"] += 1
            except Refused:
                self.counts["refused"] += 1
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.counts["cancelled"] += 1
            except Exception as error:
                self._failed(error)
                await asyncio.sleep(0.05)
        user.registers.close()

    def _failed(self, error: Exception) -> None:
        self.counts["errors"] += 1
        if len(self.errors) < 5:
            self.errors.append("".join(traceback.format_exception(error))[-1500:])


class Worker:
    """The commands. Each returns its answer."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.recorder = Recorder(spec.folder)
        self.shift = Shift(spec, self.recorder)
        self._user: User | None = None

    @property
    def user(self) -> User:
        if self._user is None:
            spec = self.spec
            self._user = User(spec, open_contender(spec.kind, spec.urls, spec.ttl, spec.options), self.recorder)
        return self._user

    async def work(self) -> None:
        self.shift.start()

    async def stop(self, within: float) -> dict[str, Any]:
        return await asyncio.to_thread(self.shift.end, within)

    async def acquire(self, wait: float, name: str = "") -> dict[str, Any]:
        grant = await self.user.acquire(name or self.spec.names[0], wait)
        return {"owner": grant.owner, "token": grant.token, "until": min(grant.until(), 1e12)}

    async def read(self) -> dict[str, int | None]:
        self.user.read()
        return self.user.base

    async def check(self) -> bool:
        assert self.user.grant is not None
        return await self.user.grant.check(0.0)

    async def renew(self) -> None:
        assert self.user.grant is not None
        await self.user.grant.renew()

    async def until(self) -> float:
        assert self.user.grant is not None
        return min(self.user.grant.until(), 1e12)

    async def write(self) -> dict[str, bool]:
        return self.user.write()

    async def release(self) -> None:
        await self.user.release()

    async def votes(self) -> int:
        grant = self.user.grant
        assert isinstance(grant, HandfastGrant)
        return len(grant.lease.votes)

    async def block(self, seconds: float) -> None:
        """Block the event loop, or this thread; other threads run on."""
        time.sleep(seconds)  # noqa: ASYNC251  that is the fault

    async def grip(self, seconds: float) -> None:
        """Hold the GIL: no thread runs."""
        ctypes.PyDLL(None).usleep(round(seconds * 1e6))

    async def fork(self) -> dict[str, Any]:
        assert isinstance(self.user.grant, HandfastGrant)
        return _child_of(self.user.grant.lease)


def _child_of(lease: Any) -> dict[str, Any]:
    """The parent's lease in a child: whether it is valid there, and what a release does."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            said: object = "not tried"
            valid = lease.valid
            if isinstance(lease, handfast.Lease):  # the asyncio lease needs an event loop, and a child has none
                said = lease.release()
            os.write(writer, json.dumps({"valid": valid, "released": said}).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader) as pipe:
        told: dict[str, Any] = json.loads(pipe.read())
    return told


async def main(spec: Spec) -> None:
    worker = Worker(spec)
    while line := await asyncio.to_thread(sys.stdin.readline):
        word, *arguments = json.loads(line)
        try:
            said = {"said": await getattr(worker, word)(*arguments)}
        except Exception as error:
            said = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Spec(**json.loads(sys.argv[1]))))
