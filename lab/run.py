"""One scenario while it runs: what a fault script can do, and what viewers see."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from handfast.testing import Server
from lab import LabError
from lab.database import Database
from lab.environment import Environment, Pair, in_thread
from lab.frontend import TIMEOUT as FRONTEND_TIMEOUT
from lab.ledger import Ledger, Mark, Score, overlaps_of, score
from lab.load import Tally, ab, crowd
from lab.process import WorkerProcess
from lab.rung import Rung, Scenario
from lab.shop import Settings, window

__all__ = ["Run", "Victim"]

WORK: Final = 0.005
"""Seconds that an order takes between reading the stock and writing it."""
LOCK_WAIT: Final = 0.75
"""Seconds that an order waits for the lock. Less than the balancer's timeout, so that the buyer gets an answer."""
VICTIM_WITHIN: Final = 20.0
UNANSWERED: Final = 0.05
GRACE: Final = 60.0
"""Seconds beyond the length of the sale after which a scenario counts as hung."""
NODE_EVENTS: Final = {
    "kill": "{} is killed (SIGKILL)",
    "start": "{} starts again, empty",
    "restart_empty": "{} restarts empty",
    "partition": "{} is cut off",
    "heal": "{} is connected again",
}
"""The event that viewers see when something happens to a node."""


@dataclass(frozen=True)
class Victim:
    """An order that is held up at a named point, and the worker that serves it."""

    order: str
    worker: str
    answer: asyncio.Task[int | None]

    def __str__(self) -> str:
        return f"{self.order} ({self.worker})"


class Run:
    def __init__(
        self,
        environment: Environment,
        sale: int,
        rung: type[Rung],
        scenario: Scenario,
        stock: int,
        seconds: float,
        free: bool = False,
    ) -> None:
        self.environment, self.scenario, self.rung = environment, scenario, rung
        self.name = f"{rung.name}/{scenario.name}"
        self.sale, self.stock, self.seconds = sale, stock, seconds
        self.free = free
        self.injected = self.stopped = False
        self.score: Score | None = None
        """Set when the scenario has ended."""
        self.database = Database(environment.engine, environment.prefix, sale)
        self.ledger = Ledger([stock], time.monotonic())
        self.tally = Tally()
        self.evidence: list[str] = []
        self._victims: list[Victim] = []
        self._sent: dict[str, str] = {}
        """The worker of every order that was sent to be held up, also if it has not arrived yet."""
        self._names = (f"o{number}" for number in itertools.count(1))
        self._approached: set[str] = set()
        """Workers to which an order has been sent that is not held up yet."""
        self._injecting = asyncio.Lock()
        self._script: asyncio.Task[None] | None = None
        self._crowd: asyncio.Task[None] | None = None
        self._happened = asyncio.Event()
        self._session: aiohttp.ClientSession | None = None

    @property
    def t(self) -> float:
        return time.monotonic() - self.ledger.began

    # -- from start to score

    async def perform(self) -> Score:
        """Run the scenario to its end, or until `stop`."""
        rung = self.rung()
        await in_thread(rung.prepare, self.database, self.stock)
        settings = Settings(self.sale, rung.name, self.scenario.ttl, LOCK_WAIT, WORK, "", "", "", [])
        await self.environment.open(settings, rung.servers, self.scenario.cut)
        left = await in_thread(self.database.left)
        await self.ask("MSET", *itertools.chain(*zip(window(len(left)), map(str, left), strict=True)), server=self._redis)
        self.ledger = Ledger(left, time.monotonic())
        timeout = aiohttp.ClientTimeout(total=self.seconds + GRACE)
        try:
            async with asyncio.timeout(self.seconds + GRACE), aiohttp.ClientSession(timeout=timeout) as self._session:
                await self._follow_script()
                await self._wind_up()
        except TimeoutError:
            raise LabError(f"{self.name}: no end after {self.t:.0f} s; something hangs") from None
        finally:
            self._abandon()
        database = await in_thread(lambda: (sum(self.database.left()), self.database.orders()))
        seen = self.ledger, self.tally, database, self.t, self.evidence
        self.score = score(self.name, self.scenario, *seen, self.free, self.injected, self.stopped)
        return self.score

    async def _follow_script(self) -> None:
        """The fault and the crowd, to their end; or until a viewer stops the sale, which cancels only these two."""
        self._script = asyncio.create_task(self._fault_and_crowd())
        try:
            await self._script
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.stopped or (task is not None and task.cancelling()):
                raise
            if self._crowd is not None:
                self._crowd.cancel()
                await asyncio.wait([self._crowd])

    async def _fault_and_crowd(self) -> None:
        await self.scenario.fault(self)
        await self.crowd_finished()

    def stop(self) -> bool:
        """End the sale now and score what was seen so far. False if the sale has not begun: there is nothing to score."""
        if self._script is None:
            return False
        if not (self.stopped or self._script.done()):
            self.stopped = True
            self.mark("the viewer stops the sale")
            self._script.cancel()
        return True

    @property
    def _redis(self) -> Server:
        """The server that the shop uses at the beginning of the sale."""
        return self.environment.pair.master if self.environment.pair else self.environment.one

    def _abandon(self) -> None:
        """Leave no worker paused and no order held up, however the scenario ended."""
        if self._crowd is not None:
            self._crowd.cancel()
        for worker in self.environment.workers:
            if worker.state == "paused":
                self.environment.kill(worker)
        self._release_all()
        for victim in self._victims:
            victim.answer.cancel()

    def _release_all(self) -> None:
        for order, worker in self._sent.items():
            self.environment.worker(worker).send(do="go", order=order)

    async def _wind_up(self) -> None:
        """Let every order finish: paused workers resume, orders that are held up continue."""
        for victim in self._victims:
            if self.paused(victim):
                self.resume(victim)
        self._release_all()
        await self.environment.rest(self.sale)
        for victim in self._victims:
            status = await victim.answer
            if status == 200:
                self.tally.confirmed.add(victim.order)

    def on_event(self, worker: str, event: dict[str, Any]) -> None:
        if event.get("sale", self.sale) == self.sale:  # an earlier sale may still send events
            self.ledger.record(worker, event)
            self._happened.set()

    # -- for fault scripts: the crowd

    def start_crowd(self) -> None:
        plan = self.environment.plan
        place = self.environment.workers[0] if self.scenario.one_worker else self.environment.frontend
        url = f"{place.url}/buy/{self.sale}"
        self.tally.began = self.t
        self.mark(f"{plan.buyers} buyers start to order")
        if plan.ab:
            load = ab(url, self.stock * 4, plan.buyers, self.seconds, self.tally)
        else:
            load = crowd(url, plan.buyers, self.seconds, self.tally, timeout=2 * FRONTEND_TIMEOUT)
        self._crowd = asyncio.create_task(load)
        self._crowd.add_done_callback(self._crowd_ended)

    def _crowd_ended(self, _: object) -> None:
        self.tally.ended = self.t
        self._happened.set()

    async def crowd_finished(self) -> None:
        if self._crowd is not None:
            await asyncio.wait([self._crowd])  # `await self._crowd` would cancel it along with the caller
            self._crowd.result()

    async def sold(self, share: float) -> None:
        """Wait until this share of the stock is sold, or the crowd has finished."""
        before = len(self.ledger.sales)
        wanted = max(before + 1, self.stock * share)
        await self._until(lambda: len(self.ledger.sales) >= wanted or self._crowd is None or self._crowd.done())

    async def crowd_gets_in(self, within: float) -> str | None:
        """The first order of the crowd that gets the lock, or None if no order does within so many seconds."""
        known = {victim.order for victim in self._victims}

        def others() -> list[str]:
            everyone = [*self.ledger.open.values(), *self.ledger.finished]
            return [f"{each.order} ({each.worker})" for each in everyone if each.order not in known]

        try:
            async with asyncio.timeout(within):
                await self._until(lambda: bool(others()))
        except TimeoutError:
            return None
        return others()[0]

    async def _until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._happened.clear()
            await self._happened.wait()

    # -- for fault scripts: single orders

    async def order(self, at: str) -> Victim:
        """Send an order to a worker that serves no other victim, and hold it up at this point."""
        victim = await self.try_order(at, VICTIM_WITHIN)
        if victim is None:
            raise LabError(f"{self.name}: no order reached {at!r} within {VICTIM_WITHIN:g} s")
        return victim

    async def try_order(self, at: str, within: float) -> Victim | None:
        """Like `order`, but None if the shop answers "busy" for so many seconds."""
        worker, name = self._spare_worker(), next(self._names)
        self._approached.add(worker.name)
        try:
            return await self._tried(worker, name, at, self.t + within)
        finally:
            self._approached.discard(worker.name)

    async def _tried(self, worker: WorkerProcess, name: str, at: str, deadline: float) -> Victim | None:
        while self.t < deadline:
            if self._session is None or self._session.closed:
                raise LabError(f"{self.name}: the sale is over")
            self._sent[name] = worker.name
            arrived = self.environment.expect("at", worker.name, order=name, sale=self.sale)
            answer = asyncio.create_task(self._send(f"{worker.url}/buy/{self.sale}", name, at))
            either: list[asyncio.Future[Any]] = [arrived, answer]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if arrived.done():
                victim = Victim(name, worker.name, answer)
                self._victims.append(victim)
                self.mark(f"{victim} has the lock and is held up: {at}")
                return victim
            arrived.cancel()
            if answer.result() is None:
                await asyncio.sleep(UNANSWERED)  # the worker is dying, or the sale is ending
            elif answer.result() == 410:
                raise LabError(f"{self.name}: sold out before an order reached {at!r}")
        return None

    def _spare_worker(self) -> WorkerProcess:
        """A worker that is ready and serves no order that is held up."""
        busy = self._approached | {victim.worker for victim in self._victims if not victim.answer.done()}
        spare = [worker for worker in self.environment.workers if worker.ready and worker.name not in busy]
        if not spare:
            raise LabError(f"{self.name}: all workers are busy or dead")
        return spare[len(self._victims) % len(spare)]

    async def _send(self, url: str, order: str, hold: str) -> int | None:
        assert self._session is not None
        try:
            async with self._session.post(url, params={"order": order, "hold": hold}) as answer:
                await answer.read()
                return answer.status
        except aiohttp.ClientError:
            return None

    async def answered(self, victim: Victim) -> None:
        """Wait until the buyer has an answer, and note the outcome of the order."""
        await asyncio.wait([victim.answer])  # `await victim.answer` would cancel it along with the caller
        if victim.answer.result() is None:
            self.note(f"{victim} got no answer")
            return
        await self._until(lambda: victim.order in self.ledger.outcomes)
        self.note(f"{victim} {self.ledger.outcomes[victim.order]}")

    def go(self, victim: Victim) -> None:
        self.environment.worker(victim.worker).send(do="go", order=victim.order)
        self.mark(f"{victim} continues")

    def pause(self, victim: Victim) -> None:
        worker = self.environment.worker(victim.worker)
        worker.pause()
        worker.send(do="go", order=victim.order)  # the worker reads this after it resumes
        self.mark(f"{victim.worker} is paused (SIGSTOP)")
        self.environment.changed()

    def resume(self, victim: Victim) -> None:
        self.environment.worker(victim.worker).resume()
        self.mark(f"{victim.worker} resumes (SIGCONT)")
        self.environment.changed()

    def kill(self, victim: Victim) -> None:
        worker = self.environment.worker(victim.worker)
        self.environment.kill(worker)
        self.ledger.killed(worker.name, self.t)
        self.mark(f"{victim.worker} is killed (SIGKILL)")

    async def inject(self, what: str) -> None:
        """A viewer's fault: kill or pause the worker that holds the lock, between read and write; or resume it."""
        if self.stopped:
            raise LabError("the sale is ending")
        if what == "resume":
            asleep = {victim.worker: victim for victim in self._victims if self.paused(victim)}
            if not asleep:
                raise LabError("no worker is paused")
            self.injected = True
            for victim in asleep.values():
                self.resume(victim)
        elif what in ("kill", "pause"):
            self.injected = True
            async with self._injecting:
                victim = await self.order(at="writing")
                (self.kill if what == "kill" else self.pause)(victim)
        else:
            raise ValueError(f"a holder can be killed, paused or resumed, not {what!r}")

    def paused(self, victim: Victim) -> bool:
        return self.environment.worker(victim.worker).state == "paused"

    # -- for fault scripts: servers and notes

    @property
    def pair(self) -> Pair:
        assert self.environment.pair is not None
        return self.environment.pair

    async def node(self, name: str, what: str) -> None:
        assert self.environment.nodes is not None
        await in_thread(self.environment.nodes.do, name, what)
        self.mark(NODE_EVENTS[what].format(name))
        self.environment.changed()

    async def do(self, text: str, what: Callable[..., object], *args: Any) -> None:
        await in_thread(what, *args)
        self.mark(text)

    async def ask(self, *command: str, server: Server | None = None) -> object:
        return await in_thread((server or self.environment.one).command, *command)

    def mark(self, text: str) -> None:
        self.ledger.marks.append(Mark(round(self.t, 4), text))

    def note(self, text: str) -> None:
        """An event that is also evidence: it appears among the facts of the score."""
        self.mark(text)
        self.evidence.append(text)

    # -- for viewers

    @property
    def progress(self) -> float:
        if self._crowd is None:
            return 0.0
        return min(1.0, max(len(self.ledger.sales) / self.stock, (self.t - self.tally.began) / self.seconds))

    def live(self) -> dict[str, Any]:
        ledger, now = self.ledger, self.t
        holders = ledger.holders(now)
        selling = now - ledger.sales[0] if ledger.sales else 0.0
        return {
            "scenario": self.name,
            "free": self.free,
            "injected": self.injected,
            "stopped": self.stopped,
            "t": round(now, 3),
            "progress": round(self.progress, 3),
            "stock": self.stock,
            "sold": len(ledger.sales),
            "left": ledger.left,
            "oversold": ledger.oversold,
            "rate": round(len(ledger.sales) / selling, 1) if selling > 0.1 else 0.0,
            "overlaps": overlaps_of(holders),
            "holders": [holder.shown() for holder in holders],
            "stock_line": [(round(at, 4), left) for at, left in ledger.stock_line],
            "marks": [{"t": mark.t, "text": mark.text} for mark in ledger.marks],
        }
