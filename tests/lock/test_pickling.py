"""Errors cross process boundaries; clients, locks and leases do not, and say so."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, Contended, HandfastError, LeaseLost, NoQuorum, NotAcquired, StaleToken
from handfast.testing import Server
from tests.support.sync_and_async import plain

SIMPLE = [HandfastError("something went wrong"), ConfigError("ttl must be positive")]
ERRORS = {
    "NotAcquired": NotAcquired("orders: not acquired", name="orders", nodes={"redis://a": "silent"}),
    "Contended": Contended("orders", holder="host:1::abc", remaining=1.5, nodes={"redis://a": "held by host:1::abc"}),
    "Contended by nobody known": Contended("orders", holder=None, remaining=None),
    "NoQuorum": NoQuorum("orders", granted=1, needed=2, nodes={"redis://a": "granted", "redis://b": "down"}, total=3),
    "LeaseLost": LeaseLost("orders", owner="host:1::abc", token=17, reason="the deadline passed"),
    "StaleToken": StaleToken("invoice 7", token=3, seen=9),
}
ROUTES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda what: pickle.loads(pickle.dumps(what)),
    "oldest protocol": lambda what: pickle.loads(pickle.dumps(what, protocol=0)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def raise_contended() -> None:
    raise Contended("orders", holder="host:1::abc", remaining=1.5)


def parts_of(error: HandfastError) -> tuple[Any, ...]:
    return type(error), str(error), error.args, vars(error)


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("error", SIMPLE, ids=lambda error: type(error).__name__)
def test_error_with_only_a_message_survives_pickling_and_copying(error: HandfastError, route: str) -> None:
    assert parts_of(ROUTES[route](error)) == parts_of(error)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", ERRORS)
def test_error_with_fields_survives_pickling_and_copying(kind: str, route: str) -> None:
    """The type, the text and every field are the same afterwards."""
    assert parts_of(ROUTES[route](ERRORS[kind])) == parts_of(ERRORS[kind])


def test_notes_of_an_error_survive_pickling() -> None:
    error = Contended("orders", holder="host:1::abc", remaining=1.5)
    error.add_note("while billing customer 7")
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while billing customer 7"]


def test_error_of_a_real_refusal_survives_pickling(client: handfast.Client) -> None:
    with client.lock("orders"), pytest.raises(Contended) as caught:
        client.lock("orders", wait=0).acquire()
    assert parts_of(pickle.loads(pickle.dumps(caught.value))) == parts_of(caught.value)


def test_error_reaches_the_caller_of_a_process_pool() -> None:
    """The pool still works afterwards."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(Contended) as caught:
            pool.submit(raise_contended).result(timeout=30)
        assert caught.value.holder == "host:1::abc"
        assert pool.submit(len, "four").result(timeout=30) == 4


def test_error_reaches_the_caller_of_a_multiprocessing_pool() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(len, ("four",)) == 4  # its process has started
        with pytest.raises(Contended) as caught:
            pool.apply_async(raise_contended).get(timeout=30)
        assert caught.value.holder == "host:1::abc"


# -- what stays in its process ----------------------------------------------------------------------------------------


def refuses(what: object, route: str, next_step: str) -> None:
    """It raises a TypeError of one sentence that names the next step."""
    with pytest.raises(TypeError) as caught:
        ROUTES[route](what)
    text = str(caught.value)
    assert "cannot be pickled" in text
    assert next_step in text
    assert ". " not in text


STAYS = pytest.mark.parametrize("route", ["pickle", "copy", "deepcopy"])


@STAYS
def test_client_says_to_connect_in_each_process(client: handfast.Client, route: str) -> None:
    refuses(client, route, "connect() in each process")


@STAYS
def test_lock_says_to_send_its_name(client: handfast.Client, route: str) -> None:
    refuses(client.lock("orders"), route, "send its name")


@STAYS
def test_lease_says_to_send_its_token(client: handfast.Client, route: str) -> None:
    """The process that needs the lock takes it itself; a worker that only writes needs the token."""
    with client.lock("orders") as lease:
        refuses(lease, route, "token")
        assert lease.valid


@STAYS
@plain
async def test_asyncio_objects_say_the_same(one: Server, route: str) -> None:
    async with handfast.aio.connect(one.url) as client:
        lock = client.lock("orders")
        async with lock as lease:
            for what, next_step in ((client, "connect() in each process"), (lock, "send its name"), (lease, "token")):
                refuses(what, route, next_step)
