"""The page's server: what it shows, and which actions it allows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import aiohttp
import pytest

from lab.environment import Plan
from lab.rungs import scenarios_of
from lab.runner import Runner
from lab.server import Page, listen
from tests.support.eventually import eventually_async


class Viewer:
    """A client that asks the page's server what a browser asks."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        parts = urlsplit(url)
        self.root = f"http://{parts.netloc}"
        self.token = parse_qs(parts.query).get("token", [""])[0]
        self.session = session

    async def state(self) -> dict[str, Any]:
        async with self.session.get(f"{self.root}/api/state") as answer:
            assert answer.status == 200
            facts: dict[str, Any] = await answer.json()
            return facts

    async def post(self, what: str, token: str | None = None, **wanted: object) -> tuple[int, dict[str, Any]]:
        headers = {"X-Lab-Token": self.token if token is None else token}
        async with self.session.post(f"{self.root}/api/{what}", json=wanted, headers=headers) as answer:
            return answer.status, await answer.json()

    async def status(self, path: str, **options: Any) -> int:
        async with self.session.request(options.pop("method", "GET"), self.root + path, **options) as answer:
            return answer.status

    async def events(self, until: Callable[[str, dict[str, Any]], bool]) -> list[tuple[str, dict[str, Any]]]:
        """The events of the stream, up to the first for which `until` is true."""
        seen: list[tuple[str, dict[str, Any]]] = []
        async with self.session.get(f"{self.root}/api/events") as answer:
            kind = ""
            async for line in answer.content:
                word, _, rest = line.decode().strip().partition(": ")
                if word == "event":
                    kind = rest
                elif word == "data":
                    seen.append((kind, json.loads(rest)))
                    if until(*seen[-1]):
                        break
        return seen


@asynccontextmanager
async def _viewer(runner: Runner, interactive: bool) -> AsyncIterator[Viewer]:
    runner.interactive, runner.finished = interactive, False
    # A state contains the sources of all rungs: such lines exceed aiohttp's default buffer.
    with listen(0) as listener:
        async with aiohttp.ClientSession(read_bufsize=1 << 22) as session, Page(runner, listener) as page:
            yield Viewer(page.url, session)


@pytest.mark.timeout(120)
def test_read_only_and_interactive_page(plan: Plan) -> None:
    async def main() -> None:
        async with Runner(plan) as runner:
            async with _viewer(runner, interactive=False) as viewer:
                await _shows_all(viewer)
                await _refuses_all_actions(viewer)
                await _streams_a_scenario(runner, viewer)
            async with _viewer(runner, interactive=True) as viewer:
                await _refuses(viewer)
                await _buttons(runner, viewer)

    asyncio.run(main())


async def _shows_all(viewer: Viewer) -> None:
    state = await viewer.state()
    assert state["interactive"] is False
    assert [rung["number"] for rung in state["rungs"]] == list(range(1, 15))
    assert state["settings"]["frontend"] == "built-in"
    assert [worker["state"] for worker in state["workers"]] == ["up"] * 3
    assert await viewer.status("/") == 200
    assert await viewer.status("/", headers={"Host": "evil.example"}) == 421
    assert await viewer.status("/api/state", headers={"Host": "evil.example:80"}) == 421


async def _refuses_all_actions(viewer: Viewer) -> None:
    for action in ("run", "stop", "holder", "node"):
        status, said = await viewer.post(action)
        assert (status, "read-only" in said["error"]) == (403, True)


async def _streams_a_scenario(runner: Runner, viewer: Viewer) -> None:
    connected = asyncio.Event()

    def until(kind: str, _: dict[str, Any]) -> bool:
        connected.set()
        return kind == "score"

    watching = asyncio.create_task(viewer.events(until))
    await connected.wait()
    (score,) = await runner.run_all(scenarios_of("no-lock"))
    seen = await asyncio.wait_for(watching, 20)
    assert seen[0][0] == "state"
    assert seen[-1][1]["oversold"] == score.oversold > 0
    assert all(data["scenario"] == "no-lock/race" for kind, data in seen if kind == "live")
    async with viewer.session.get(f"{runner.environment.workers[0].url}/stock") as window:
        assert (await window.text()).isdigit()  # without a lock not even this one need be 0


async def _refuses(viewer: Viewer) -> None:
    assert (await viewer.post("run", token="wrong", rung="lua"))[0] == 403
    assert (await viewer.post("run", rung="nope"))[0] == 404
    assert (await viewer.post("run", rung="lua", free=True, stock=0))[0] == 400
    assert (await viewer.post("stop"))[0] == 409
    assert (await viewer.post("holder", do="kill"))[0] == 409
    assert (await viewer.post("node", node="n1", do="kill"))[0] == 409
    # A form on a foreign page could send this.
    plain = {"X-Lab-Token": viewer.token, "Content-Type": "text/plain"}
    assert await viewer.status("/api/stop", method="POST", headers=plain, data="{}") == 400


async def _buttons(runner: Runner, viewer: Viewer) -> None:
    assert (await viewer.post("run", rung="fenced", free=True, stock=5000, seconds=60))[0] == 202
    assert (await viewer.post("run", rung="lua"))[0] == 409
    await eventually_async(lambda: runner.run is not None and runner.run.ledger.sales, within=20)
    for button in ("pause", "resume", "kill"):
        assert (await viewer.post("holder", do=button)) == (202, {"ok": True})
    for what, then in (("partition", "partitioned"), ("heal", "up"), ("kill", "down"), ("restart_empty", "up")):
        assert (await viewer.post("node", node="n2", do=what))[0] == 202
        assert {"name": "n2", "state": then} in (await viewer.state())["nodes"]
    run = runner.run
    assert run is not None
    sold = len(run.ledger.sales)
    await eventually_async(lambda: len(run.ledger.sales) > sold + 5, within=20, what="the sale goes on")
    assert sum(1 for _ in run.database.orders()) + sum(run.database.left()) <= 5000
    assert (await viewer.post("node", node="n2", do="paint"))[0] == 400
    await _stops(runner, viewer)
    assert (await viewer.post("run", scenario="mutex/one-process"))[0] == 202
    await eventually_async(lambda: "mutex/one-process" in runner.scores, within=30)
    assert runner.scores["mutex/one-process"].oversold == 0


async def _stops(runner: Runner, viewer: Viewer) -> None:
    """Stop keeps the sale that was watched, with its events and its timeline."""
    seen = (await viewer.state())["live"]
    assert any("SIGKILL" in mark["text"] for mark in seen["marks"])
    assert (await viewer.post("stop"))[0] == 202
    assert (await viewer.post("stop"))[0] == 409
    assert runner.run is None
    kept = (await viewer.state())["unjudged"]["fenced/all-faults"]
    assert (kept["free"], kept["injected"], kept["stopped"]) == (True, True, True)
    assert seen["sold"] <= kept["sold"] <= 5000 - kept["left"]
    assert [mark for mark in seen["marks"] if mark not in kept["marks"]] == []
    assert "the viewer stops the sale" in [mark["text"] for mark in kept["marks"]]
    assert len(kept["holders"]) >= len(seen["holders"])
