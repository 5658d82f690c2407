"""Runs acts, one after the other, keeps the scores, and tells those who watch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import sqlalchemy as sa

from lab import LabError, faults
from lab.ledger import Score
from lab.run import Run
from lab.rung import TTL, Act, Rung
from lab.rungs import LADDER
from lab.stage import NODES, Plan, Stage

__all__ = ["Conductor"]

FREE_STOCK: Final = 2000
FREE_SECONDS: Final = 30.0


class Conductor:
    """`async with Conductor(plan) as conductor: await conductor.play(acts)`"""

    def __init__(self, plan: Plan, interactive: bool = False) -> None:
        self.plan = plan
        self.interactive = interactive
        self.scores: dict[str, Score] = {}
        self.free: dict[str, Score] = {}
        """Of runs that were not the act as it is written, where they are newer than its score."""
        self.history: list[Score] = []
        self.queue: list[tuple[type[Rung], Act]] = []
        self.run: Run | None = None
        self.finished = False
        self.error: str | None = None
        """Why the latest act could not be played to its end."""
        self.version = 0
        """Grows whenever something other than the running act has changed."""
        self._sale = 0
        self._stage: Stage | None = None

    async def __aenter__(self) -> Conductor:
        self._stage = Stage(self.plan, self._hear, self.changed)
        try:
            await self._stage.start()
        except BaseException:
            self._stage.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stage.close()

    @property
    def stage(self) -> Stage:
        assert self._stage is not None
        return self._stage

    # -- acts

    async def play(
        self, acts: Sequence[tuple[type[Rung], Act]], begun: Callable[[Run], None] | None = None
    ) -> list[Score]:
        """All of them, in this order."""
        self.queue = list(acts)
        scores = []
        while self.queue:
            rung, act = self.queue.pop(0)
            run = self._new_run(rung, act, self.plan.stock, self.plan.seconds)
            if begun is not None:
                begun(run)
            scores.append(await self._perform(run))
        return scores

    async def play_free(
        self, rung: type[Rung], act: Act, stock: int = FREE_STOCK, seconds: float = FREE_SECONDS
    ) -> Score:
        """A longer sale without the act's own fault: those who watch do the faults."""
        act = replace(act, fault=faults.nothing, ttl=TTL)
        return await self._perform(self._new_run(rung, act, stock, seconds, free=True))

    def _new_run(self, rung: type[Rung], act: Act, stock: int, seconds: float, free: bool = False) -> Run:
        self._sale += 1
        if self.interactive:
            act = replace(act, cut=NODES)
        self.run = Run(self.stage, self._sale, rung, act, stock, seconds, free)
        self.changed()
        return self.run

    async def _perform(self, run: Run) -> Score:
        self.error = None
        try:
            score = await run.perform()
        except LabError as error:
            self.error = str(error)
            self.queue = []
            raise
        finally:
            self.run = None
            self.changed()
        self.free.pop(score.act, None)
        (self.scores if score.judged else self.free)[score.act] = score
        self.history.append(score)
        self.changed()
        return score

    # -- watching

    def _hear(self, worker: str, event: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.hear(worker, event)

    def changed(self) -> None:
        self.version += 1

    def settings(self) -> dict[str, Any]:
        plan = asdict(self.plan)
        database = sa.make_url(self.plan.database).get_backend_name() if self.plan.database else "sqlite"
        load = "ab" if plan.pop("ab") else "built-in"
        return {**plan, "database": database, "load": load}

    def state(self) -> dict[str, Any]:
        nodes = self.stage.nodes.states() if self.stage.nodes else {}
        return {
            "interactive": self.interactive,
            "finished": self.finished,
            "error": self.error,
            "settings": self.settings(),
            "rungs": [_described(number, rung) for number, rung in enumerate(LADDER, 1)],
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "free": {name: asdict(score) for name, score in self.free.items()},
            "live": self.run.live() if self.run else None,
            "queue": [f"{rung.name}/{act.name}" for rung, act in self.queue],
            "workers": [
                {"name": worker.name, "pid": worker.pid, "state": worker.state, "holding": self._holding(worker.name)}
                for worker in self.stage.workers
            ],
            "nodes": [{"name": name, "state": state} for name, state in nodes.items()],
        }

    def _holding(self, worker: str) -> str | None:
        holders = self.run.ledger.open.values() if self.run else ()
        return next((holder.order for holder in holders if holder.worker == worker), None)


def _described(number: int, rung: type[Rung]) -> dict[str, Any]:
    return {
        "name": rung.name,
        "number": number,
        "title": rung.title,
        "story": rung.story(),
        "source": rung.source(),
        "servers": rung.servers,
        "acts": [
            {
                "name": f"{rung.name}/{act.name}",
                "title": act.title,
                "fault": act.fault_text,
                "expect": act.expect,
                "must_be_safe": act.must_be_safe,
            }
            for act in rung.acts
        ],
    }
