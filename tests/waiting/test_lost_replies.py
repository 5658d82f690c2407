"""A grant whose reply is lost with the connection does not block the acquisition that asked for it."""

from __future__ import annotations

from typing import Any

import pytest

from handfast.testing import Proxy, Server
from tests.support.sync_and_async import both, connected
from tests.support.waiters import FOREIGN

pytestmark = pytest.mark.slow

TTL = 20.0
"""Seconds: how long a vote that is left behind would block everybody."""
SOON = 5.0
FORMS: dict[str, tuple[str | list[str], dict[str, Any]]] = {
    "fair": ("a", {}),
    "barging": ("a", {"fair": False}),
    "foreign": ("a", FOREIGN),
    "several names": (["a", "b"], {}),
    "several foreign names": (["a", "b"], FOREIGN),
    "limited tries": ("a", {"tries": 20}),
    "explicit owner": ("a", {"owner": "job"}),
}


@pytest.mark.parametrize("form", FORMS)
@both
async def test_waiter_gets_lock_although_reply_to_its_grant_was_lost(mode: str, form: str, server: Server) -> None:
    name, options = FORMS[form]
    with Proxy(server) as proxy:
        async with connected(mode, proxy.url, ttl=TTL) as client:
            await (await client.lock(name, **options).acquire(wait=SOON)).release()
            assert proxy.reset(after=0) > 0
            lease = await client.lock(name, **options).acquire(wait=SOON)
            assert await lease.release()
