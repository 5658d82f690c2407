"""Runs scenarios one after another, keeps their scores, and describes its state to viewers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import sqlalchemy as sa

from lab import LabError, faults
from lab.environment import NODES, Environment, Plan
from lab.ledger import Score
from lab.run import Run
from lab.rung import TTL, Rung, Scenario
from lab.rungs import RUNGS

__all__ = ["Runner"]

FREE_STOCK: Final = 2000
FREE_SECONDS: Final = 30.0


class Runner:
    """`async with Runner(plan) as runner: await runner.run_all(scenarios)`"""

    def __init__(self, plan: Plan, interactive: bool = False) -> None:
        self.plan = plan
        self.interactive = interactive
        self.scores: dict[str, Score] = {}
        self.unjudged: dict[str, Score] = {}
        """The latest run of a scenario, if it was not the scenario as it is written: a free sale, for example."""
        self.history: list[Score] = []
        self.queue: list[tuple[type[Rung], Scenario]] = []
        self.run: Run | None = None
        self.finished = False
        self.error: str | None = None
        """Why the latest scenario failed to run to its end."""
        self.version = 0
        """Grows with every change, except those of the running scenario itself."""
        self._sale = 0
        self._environment: Environment | None = None

    async def __aenter__(self) -> Runner:
        self._environment = Environment(self.plan, self._on_event, self.changed)
        try:
            await self._environment.start()
        except BaseException:
            self._environment.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.environment.close()

    @property
    def environment(self) -> Environment:
        assert self._environment is not None
        return self._environment

    # -- scenarios

    async def run_all(
        self, scenarios: Sequence[tuple[type[Rung], Scenario]], begun: Callable[[Run], None] | None = None
    ) -> list[Score]:
        """Run the scenarios in this order. `begun` is called with each run before it starts."""
        self.queue = list(scenarios)
        scores = []
        while self.queue:
            rung, scenario = self.queue.pop(0)
            run = self._new_run(rung, scenario, self.plan.stock, self.plan.seconds)
            if begun is not None:
                begun(run)
            scores.append(await self._perform(run))
        return scores

    async def run_free(
        self, rung: type[Rung], scenario: Scenario, stock: int = FREE_STOCK, seconds: float = FREE_SECONDS
    ) -> Score:
        """Run a longer sale without the scenario's own fault: viewers inject the faults."""
        scenario = replace(scenario, fault=faults.nothing, ttl=TTL)
        return await self._perform(self._new_run(rung, scenario, stock, seconds, free=True))

    def _new_run(self, rung: type[Rung], scenario: Scenario, stock: int, seconds: float, free: bool = False) -> Run:
        self._sale += 1
        if self.interactive:
            scenario = replace(scenario, cut=NODES)
        self.run = Run(self.environment, self._sale, rung, scenario, stock, seconds, free)
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
        self.unjudged.pop(score.scenario, None)
        (self.scores if score.judged else self.unjudged)[score.scenario] = score
        self.history.append(score)
        self.changed()
        return score

    def stop(self) -> bool:
        """Stop the running sale and keep what was seen of it; the scenarios in the queue do not run.

        False if no sale has begun.
        """
        self.queue = []
        return self.run is not None and self.run.stop()

    # -- for viewers

    def _on_event(self, worker: str, event: dict[str, Any]) -> None:
        if self.run is not None:
            self.run.on_event(worker, event)

    def changed(self) -> None:
        self.version += 1

    def settings(self) -> dict[str, Any]:
        plan = asdict(self.plan)
        database = sa.make_url(self.plan.database).get_backend_name() if self.plan.database else "sqlite"
        load = "ab" if plan.pop("ab") else "built-in"
        return {**plan, "database": database, "load": load}

    def state(self) -> dict[str, Any]:
        nodes = self.environment.nodes.states() if self.environment.nodes else {}
        return {
            "interactive": self.interactive,
            "finished": self.finished,
            "error": self.error,
            "settings": self.settings(),
            "rungs": [_described(number, rung) for number, rung in enumerate(RUNGS, 1)],
            "scores": {name: asdict(score) for name, score in self.scores.items()},
            "unjudged": {name: asdict(score) for name, score in self.unjudged.items()},
            "live": self.run.live() if self.run else None,
            "queue": [f"{rung.name}/{scenario.name}" for rung, scenario in self.queue],
            "workers": [
                {"name": worker.name, "pid": worker.pid, "state": worker.state, "holding": self._holding(worker.name)}
                for worker in self.environment.workers
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
        "handfast": rung.handfast,
        "scenarios": [
            {
                "name": f"{rung.name}/{scenario.name}",
                "title": scenario.title,
                "fault": scenario.fault_text,
                "expect": scenario.expect,
                "must_be_safe": scenario.must_be_safe,
            }
            for scenario in rung.scenarios
        ],
    }
