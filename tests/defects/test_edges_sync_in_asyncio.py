"""The blocking client where an event loop runs: it must not let a second task in, nor stop the loop without a word."""

from __future__ import annotations

import asyncio
import warnings

import pytest

import handfast
from handfast import ConfigError, HandfastError


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="issue: a sync rlock lets every task of its thread in")
def test_sync_rlock_lets_one_task_in_at_most(client: handfast.Client) -> None:
    inside: list[handfast.Lease] = []

    async def enter() -> None:
        try:
            inside.append(client.rlock("orders", wait=0).acquire())
        except HandfastError:
            return  # any refusal will do here

    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for _ in range(2):
                await asyncio.create_task(enter())

    asyncio.run(main())
    assert len(inside) <= 1


@pytest.mark.xfail(
    strict=True, raises=pytest.fail.Exception, reason="issue: a sync rlock in an event loop is not refused"
)
def test_sync_rlock_in_an_event_loop_is_refused(client: handfast.Client) -> None:
    """Its owner would be the thread, which all tasks share, so it is an error that names the asyncio client."""

    async def main() -> None:
        with pytest.raises(ConfigError, match=r"handfast\.aio"):
            client.rlock("orders").acquire()

    asyncio.run(main())


@pytest.mark.xfail(
    strict=True, raises=pytest.fail.Exception, reason="issue: a blocking acquire in an event loop gives no warning"
)
def test_blocking_acquire_in_an_event_loop_warns(client: handfast.Client) -> None:
    """A warning and not an error: a notebook runs its cells in a loop, and nothing else waits there."""

    async def main() -> None:
        with pytest.warns(RuntimeWarning, match=r"handfast\.aio"):
            client.lock("orders").acquire().release()

    asyncio.run(main())


def test_blocking_acquire_in_a_worker_thread_of_a_loop_does_not_warn(client: handfast.Client) -> None:
    async def main() -> None:
        await asyncio.to_thread(lambda: client.rlock("orders").acquire().release())

    asyncio.run(main())
