"""The texts of errors: what happened, and the next step."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, LeaseLost, NoQuorum
from handfast.testing import Server, Servers
from tests.support.sync_and_async import plain

SOURCE = Path(handfast.__file__).parent


# -- a new quorum -----------------------------------------------------------------------------------------------------


def test_new_quorum_says_how_to_open_it(three: Servers) -> None:
    with handfast.connect(three.urls) as client, pytest.raises(NoQuorum, match=r"handfast\.bootstrap\(client\)"):
        client.lock("orders", wait=0).acquire()


@plain
async def test_new_quorum_says_how_to_open_it_in_asyncio(three: Servers) -> None:
    async with handfast.aio.connect(three.urls) as client:
        with pytest.raises(NoQuorum, match=r"handfast\.aio\.bootstrap\(client\)"):
            await client.lock("orders", wait=0).acquire()


# -- a key that vanished ----------------------------------------------------------------------------------------------


def reason_of_loss(lease: handfast.Lease) -> str:
    assert lease.lost.wait(5)
    with pytest.raises(LeaseLost) as caught:
        lease.check()
    return caught.value.reason


def test_deleted_key_on_one_node_names_the_likely_causes(client: handfast.Client, one: Server) -> None:
    lease = client.lock("orders", ttl=0.3).acquire()
    one.command("DEL", "handfast:{orders}")
    reason = reason_of_loss(lease)
    assert "majority" not in reason
    for cause in ("deleted", "evicted", "restarted"):
        assert cause in reason


def test_key_taken_on_one_node_names_the_new_holder(client: handfast.Client, one: Server) -> None:
    lease = client.lock("orders", ttl=0.3).acquire()
    one.command("SET", "handfast:{orders}", "a stranger")
    reason = reason_of_loss(lease)
    assert "majority" not in reason
    assert "now held by a stranger" in reason


def test_majority_that_lost_the_key_names_the_nodes_that_still_hold_it(three: Servers) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
        lease = client.lock("orders", ttl=0.6).acquire()
        for server in list(three)[:2]:
            server.command("DEL", "handfast:{orders}", "handfast:{orders}:f")
        reason = reason_of_loss(lease)
    for server, said in zip(three, ("its key is gone", "its key is gone", "it still holds the key"), strict=True):
        assert f"{server.url}: {said}" in reason


# -- too few nodes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", [0, 0.3])
@pytest.mark.parametrize("guard", [True, False], ids=["guard", "no guard"])
def test_outage_names_no_holder_that_does_not_exist(wait: float, guard: bool) -> None:
    """Nobody holds the lock, and one node of three is up. It grants its vote, or has not been asked."""
    with Servers(3) as servers, handfast.connect(servers.urls, guard=guard) as client:
        if guard:
            handfast.bootstrap(client)
        client.lock("another").acquire().release()
        for server in list(servers)[:2]:
            server.kill()
        for _ in range(2):
            with pytest.raises(NoQuorum) as caught:
                client.lock("orders", wait=wait).acquire()
            error, said = caught.value, caught.value.nodes[servers[2].url]
            assert said in {"granted", "had not answered yet", "not asked, because too few nodes answer"}
            assert error.granted == (said == "granted")


# -- options ----------------------------------------------------------------------------------------------------------

WAIT = r"did you mean wait="
FACADES = pytest.mark.parametrize("facade", [handfast, handfast.aio], ids=["threads", "asyncio"])
MAKERS: dict[str, Callable[..., Any]] = {
    "lock": lambda client, **options: client.lock("orders", **options),
    "rlock": lambda client, **options: client.rlock("orders", **options),
    "locked": lambda client, **options: client.locked("orders", **options),
}


@FACADES
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("options", [{"timeout": 5}, {"blocking": False}, {"blocking_timeout": 5}], ids=str)
def test_option_names_of_other_libraries_are_translated(
    one: Server, facade: Any, maker: str, options: dict[str, Any]
) -> None:
    """The text names both meanings of `timeout`: the time to wait (threading) and the ttl (redis-py)."""
    with pytest.raises(ConfigError, match=WAIT) as caught:
        MAKERS[maker](facade.connect(one.url), **options)
    if "timeout" in options:
        assert "ttl=" in str(caught.value)


@FACADES
@pytest.mark.parametrize("options", [{"timeout": 5}, {"blocking": False}], ids=str)
def test_option_names_of_other_libraries_are_translated_on_connect(
    one: Server, facade: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=WAIT):
        facade.connect(one.url, **options)


@FACADES
@pytest.mark.parametrize("options", [{"timeout": 5}, {"blocking": False}], ids=str)
def test_option_names_of_other_libraries_are_translated_on_acquire(
    one: Server, facade: Any, options: dict[str, Any]
) -> None:
    """The call raises, for asyncio too, and not only the await."""
    with pytest.raises(ConfigError, match=WAIT):
        facade.connect(one.url).lock("orders").acquire(**options)


@FACADES
@pytest.mark.parametrize("maker", MAKERS)
def test_guard_on_a_lock_says_where_it_belongs(one: Server, facade: Any, maker: str) -> None:
    with pytest.raises(ConfigError, match=r"set it on connect\(\)"):
        MAKERS[maker](facade.connect(one.url), guard=True)


def test_fair_lock_with_an_owner_works_or_says_what_to_leave_out(client: handfast.Client) -> None:
    said = ""
    try:
        client.lock("orders", fair=True, owner="job-42")
    except ConfigError as error:
        said = str(error)
    assert not said or ("leave out" in said and "owner=" in said and "fair=True" in said)


async def result_of(what: Any) -> Any:
    """The result of a call on either facade."""
    return await what if inspect.isawaitable(what) else what


# -- TLS --------------------------------------------------------------------------------------------------------------


@FACADES
def test_tls_to_a_plain_port_says_so(one: Server, facade: Any) -> None:
    """A plain server mostly takes the start of TLS for half a command and stays silent. So the text names both what did
    not happen, the TLS handshake, and what to try, the scheme without TLS."""

    assert_names_tls(facade, one.port)


@FACADES
def test_tls_to_a_port_that_answers_in_plain_text_says_so(facade: Any) -> None:
    """Proxies and web servers do that."""

    def answer() -> None:
        for _ in range(2):  # a client may try twice
            try:
                peer, _ = listener.accept()
            except OSError:
                return  # the test is over
            with peer:
                peer.recv(4096)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as listener:
        pool.submit(answer)
        try:
            assert_names_tls(facade, listener.getsockname()[1])
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def assert_names_tls(facade: Any, port: int) -> None:
    async def acquire() -> None:
        client = facade.connect(f"rediss://127.0.0.1:{port}")
        try:
            await result_of(client.lock("orders", wait=0).acquire())
        finally:
            await result_of(client.close())

    with pytest.raises(NoQuorum) as caught:
        asyncio.run(acquire())
    text = str(caught.value)
    assert "TLS" in text
    assert "redis://" in text.replace(f"rediss://127.0.0.1:{port}", "")


# -- repr -------------------------------------------------------------------------------------------------------------


def test_repr_never_says_held_with_nothing_left(client: handfast.Client) -> None:
    """The remaining time has enough digits never to be shown as 0."""
    seen: set[str] = set()
    for _ in range(10):
        lease = client.lock("orders", ttl=0.06, renew=False, wait=5).acquire()
        while lease.valid:
            seen.add(repr(lease))
        seen.add(repr(lease))
    assert any("held" in text for text in seen)
    wrong = {text for text in seen if re.search(r"held, 0(\.0*)? m?s left", text)}
    assert not wrong
