"""`locked(skip=True)`: a call that finds its function running elsewhere does nothing."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, Contended, NoQuorum
from handfast.testing import Server
from tests.support.eventually import eventually

FACADES = pytest.mark.parametrize("facade", [handfast, handfast.aio], ids=["threads", "asyncio"])


class Report:
    """A function under a lock, of either facade, that counts its runs."""

    def __init__(self, facade: Any, client: Any, name: str = "report", **options: Any) -> None:
        self.runs = 0
        self.inner: Any = lambda: "done"
        locked = client.locked(name, **options)
        if facade is handfast:

            @locked
            def report(customer: int) -> str:
                self.runs += 1
                return str(self.inner())
        else:

            @locked
            async def report(customer: int) -> str:
                self.runs += 1
                return str(self.inner())

        self.call = report


async def result_of(what: Any) -> Any:
    return await what if inspect.isawaitable(what) else what


def run(facade: Any, url: str, scenario: Any) -> None:
    """A scenario with a client of either facade."""

    async def main() -> None:
        client = facade.connect(url)
        try:
            await scenario(client)
        finally:
            await result_of(client.close())

    asyncio.run(main())


@FACADES
def test_skip_returns_none_while_the_lock_is_held(facade: Any, one: Server, client: handfast.Client) -> None:
    async def scenario(mine: Any) -> None:
        report = Report(facade, mine, skip=True)
        assert await result_of(report.call(7)) == "done"
        with client.lock("report"):
            assert await result_of(report.call(7)) is None
        assert await result_of(report.call(7)) == "done"
        assert report.runs == 2

    run(facade, one.url, scenario)


@FACADES
def test_skip_value_is_returned_instead(facade: Any, one: Server, client: handfast.Client) -> None:
    async def scenario(mine: Any) -> None:
        report = Report(facade, mine, "report:{customer}", skip=True, skip_value="already running")
        with client.lock("report:7"):
            assert await result_of(report.call(7)) == "already running"
            assert await result_of(report.call(8)) == "done"

    run(facade, one.url, scenario)


@FACADES
def test_skip_does_not_wait_by_default(facade: Any, one: Server, client: handfast.Client) -> None:
    """Without its own wait= it does not wait, whatever the client's default is; with one it waits, then skips."""

    async def scenario(mine: Any) -> None:
        waited: list[str] = []
        mine.listen(lambda event: waited.append(event.kind) if event.kind.startswith("waiting") else None)
        with client.lock("report"):
            assert await result_of(Report(facade, mine, skip=True).call(7)) is None
            assert waited == []
            assert await result_of(Report(facade, mine, skip=True, wait=0.05).call(7)) is None
            eventually(lambda: waited == ["waiting_began", "waiting_ended"])

    run(facade, one.url, scenario)


@FACADES
def test_skip_does_not_hide_an_outage(facade: Any) -> None:
    async def scenario(mine: Any) -> None:
        with pytest.raises(NoQuorum):
            await result_of(Report(facade, mine, skip=True).call(7))

    run(facade, "unix:///no/such.sock", scenario)


@FACADES
def test_skip_does_not_hide_contention_inside_the_function(facade: Any, one: Server, client: handfast.Client) -> None:
    """Only the function's own lock is meant: any other lock that it does not get is an error."""

    async def scenario(mine: Any) -> None:
        report = Report(facade, mine, skip=True)
        report.inner = lambda: client.lock("stock", wait=0).acquire()
        with client.lock("stock"), pytest.raises(Contended):
            await result_of(report.call(7))
        assert report.runs == 1

    run(facade, one.url, scenario)


@FACADES
@pytest.mark.parametrize("options", [{"skip": 1}, {"skip": "yes"}, {"skip_value": "x"}], ids=str)
def test_wrong_use_of_skip_is_refused_at_decoration(facade: Any, one: Server, options: dict[str, Any]) -> None:
    """A value without skip=True would never be returned, so it is refused."""
    with pytest.raises(ConfigError, match=r"skip must be True or False|skip_value= needs skip=True"):
        facade.connect(one.url).locked("report", **options)
