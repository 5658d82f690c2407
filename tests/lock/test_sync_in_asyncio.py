"""The blocking client in an event loop: it must not admit a second task, nor stop the loop without a warning."""

from __future__ import annotations

import asyncio
import warnings

import pytest

import handfast
from handfast import ConfigError, HandfastError
from tests.support.sync_and_async import plain


def test_sync_rlock_admits_one_task_at_most(client: handfast.Client) -> None:
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


@plain
async def test_sync_rlock_in_an_event_loop_is_refused(client: handfast.Client) -> None:
    """Its owner would be the thread, which all tasks share, so it is an error that names the asyncio client."""
    with pytest.raises(ConfigError, match=r"handfast\.aio"):
        client.rlock("orders").acquire()


@plain
async def test_blocking_acquire_in_an_event_loop_warns(client: handfast.Client) -> None:
    """A warning and not an error: a notebook runs its cells in a loop, and nothing else waits there."""
    with pytest.warns(RuntimeWarning, match=r"handfast\.aio"):
        client.lock("orders").acquire().release()


def test_warning_comes_once_for_each_place_in_the_program(client: handfast.Client) -> None:
    """It names the line of the program, also through `with`, try_acquire() and a decorated function."""

    @client.locked("report")
    def report() -> None:
        pass

    async def main() -> None:
        for _ in range(3):
            client.lock("orders").acquire().release()
            with client.lock("orders"):
                pass
            lease = client.lock("orders").try_acquire()
            report()
            assert lease is not None
            lease.release()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        asyncio.run(main())
    assert {warning.filename for warning in caught} == {__file__}
    assert len(caught) == len({warning.lineno for warning in caught}) == 4


@plain
async def test_blocking_acquire_in_a_worker_thread_of_a_loop_does_not_warn(client: handfast.Client) -> None:
    await asyncio.to_thread(lambda: client.rlock("orders").acquire().release())
