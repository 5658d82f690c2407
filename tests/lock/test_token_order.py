"""Tokens stay in order while only a minority of the nodes forgets: a durable restart is no loss of memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import handfast
from handfast import Lease, NoQuorum
from handfast.testing import Servers, available
from tests.support.programs import attempt, program

MAX_TTL = 0.8
Q = MAX_TTL * 1.02 + 0.1
"""How long a node that restarted does not vote."""
QUICK: dict[str, Any] = {"max_ttl": MAX_TTL, "node_timeout": 0.25}
HOUR_AHEAD = """
import sys, time

real_time, real_time_ns = time.time, time.time_ns
time.time, time.time_ns = lambda: real_time() + 3600, lambda: real_time_ns() + 3600 * 10**9

import handfast

client = handfast.connect(sys.argv[2:], max_ttl=float(sys.argv[1]), node_timeout=0.25)
print(client.lock("a", ttl=0.2, renew=False).acquire(wait=5).token)
"""


@pytest.fixture
def durable() -> Iterator[Servers]:
    """Three nodes that lose no data in a restart."""
    if not available():
        pytest.skip("no server binary on this machine")
    with Servers(3, config={"appendonly": "yes", "appendfsync": "always"}) as nodes:
        yield nodes


def test_tokens_grow_after_durable_restart_flush_and_outage(durable: Servers) -> None:
    """The first token comes from a client whose wall clock is an hour ahead: only counters are above it."""
    restarted, flushed, unreachable = durable
    with handfast.connect(durable.urls, **QUICK) as client:
        handfast.bootstrap(client)
    restarted.kill()
    said = program(HOUR_AHEAD, str(MAX_TTL), *durable.urls)
    said.check_returncode()
    first = int(said.stdout)
    flushed.wait_for(lambda: flushed.command("EXISTS", "handfast:{a}") == 0)
    restarted.start()
    flushed.command("FLUSHALL")
    unreachable.pause()
    with handfast.connect(durable.urls, **QUICK) as client:
        lease = attempt(client.lock("a"), wait=Q + 1.5)
        if isinstance(lease, Lease):
            assert (lease.token or 0) > first, f"token {lease.token} comes after {first}"
            lease.release()
        elif not isinstance(lease, NoQuorum):
            raise RuntimeError("it waits for the third node, or needs it not") from lease
        unreachable.resume()
        lease = client.lock("a").acquire(wait=Q + 5)
        assert (lease.token or 0) > first, f"token {lease.token} comes after {first}"
        lease.release()
