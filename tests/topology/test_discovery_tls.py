"""Discovery asks sentinels and cluster nodes under TLS like servers: their certificates are verified."""

from __future__ import annotations

import re
import ssl
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import redis
import redis.asyncio
import trustme
from redis.sentinel import Sentinel as RedisSentinel

import handfast
from handfast.discovery.sentinel import SentinelMaster
from handfast.discovery.urls import checking
from handfast.embedded.process import StartError
from handfast.testing import Server, TlsFiles, available
from handfast.testing.cluster_node import SLOTS, ClusterNode
from handfast.testing.sentinel import Sentinel
from tests.support.programs import ROOT, running
from tests.support.tcp_relay import Impostor
from tests.support.tls_servers import make_files

PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


# -- a host with another host's certificate ----------------------------------------------------------------------------


class Stranger(Impostor):
    """It has a certificate of the right authority, for another name, and keeps the bytes that it receives."""

    def __init__(self, files: TlsFiles) -> None:
        self.told = bytearray()
        self.met = 0
        """How many connections came so far that the client said something, or refused the certificate."""
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(files.certificate, files.key)
        super().__init__(self._listen)

    def _listen(self, sock: socket) -> None:
        try:
            with self._context.wrap_socket(sock, server_side=True) as secured:
                while data := secured.recv(65536):
                    self.told += data
                    self.met += 1
                    secured.sendall(b"-ERR not today\r\n" * max(1, data.count(b"*")))
        except ssl.SSLError as error:
            if "ALERT" in (error.reason or ""):
                self.met += 1


URLS = {
    "cluster": f"rediss+cluster://:{PASSWORD}@127.0.0.1:{{port}}?",
    "sentinel": f"rediss+sentinel://127.0.0.1:{{port}}/mymaster?sentinel_password={PASSWORD}&",
}


LOCKING = """
import sys

import redis.asyncio

import handfast

with handfast.connect(sys.argv[1]) as client:
    for wait in sys.stdin:
        try:
            with client.lock("a", wait=float(wait)) as lease:
                lease.extend()
                print("held")
        except handfast.HandfastError as error:
            print(error)
        sys.stdout.flush()
"""
"""In a process of its own: redis-py may leave TLS connections half closed, and Python warns of them."""


@pytest.mark.parametrize("url", URLS.values(), ids=URLS)
def test_no_password_is_sent_to_host_with_certificate_of_another(url: str, authority: trustme.CA, tmp_path: Path) -> None:
    files = make_files(authority, tmp_path, "elsewhere.example")
    with Stranger(files) as stranger:
        place = url.format(port=stranger.port) + f"ssl_ca_certs={files.authority}"
        with running(LOCKING, place) as client:
            while stranger.met < 4:
                if client.ask("0.2") == "held":
                    raise RuntimeError("no server could grant anything")
        assert PASSWORD.encode() not in stranger.told, "the password was sent"


@pytest.mark.parametrize(
    ("options", "compared"),
    [
        ({}, True),
        ({"ssl_cert_reqs": "optional"}, True),
        ({"ssl_cert_reqs": "none"}, False),
        ({"ssl_cert_reqs": ssl.CERT_NONE}, False),
        ({"ssl_check_hostname": False}, False),
    ],
)
def test_redis_py_gets_the_host_name_option(options: dict[str, Any], compared: bool) -> None:
    assert checking(options)["ssl_check_hostname"] is compared


def test_oldest_redis_py_compares_host_names_by_default() -> None:
    """Clients before 6.0 do not compare them by default, and from_client() cannot tell that from a wish."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (oldest,) = filter(None, (re.fullmatch(r"redis>=(\d+).*", each) for each in project["dependencies"]))
    assert int(oldest[1]) >= 6


CLIENTS: dict[str, Callable[..., Any]] = {
    "threads": partial(redis.Redis, ssl=True),
    "asyncio": partial(redis.asyncio.Redis, ssl=True),
    "sentinel": lambda **options: RedisSentinel(
        [("h", 1)], ssl=True, **options, sentinel_kwargs={"ssl": True, **options}
    ).master_for("m"),
}


@pytest.mark.parametrize(
    ("options", "compared"), [({}, True), ({"ssl_cert_reqs": "none"}, False), ({"ssl_check_hostname": False}, False)]
)
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_from_client_compares_host_names_as_its_client_does(
    client: Callable[..., Any], options: dict[str, Any], compared: bool
) -> None:
    with handfast.from_client(client(**options)) as ours:
        (address,) = ours._addresses
        assert address.tls is not None
        assert address.tls().check_hostname is compared
        if isinstance(address.resolver, SentinelMaster):
            sentinel = address.resolver._sentinel
            assert sentinel.tls is not None
            assert sentinel.tls().check_hostname is compared


# -- real servers with their own certificates ---------------------------------------------------------------------------


class SecuredSentinel(Sentinel):
    """A sentinel that answers under TLS alone, and asks the servers under TLS."""

    def __init__(self, binary: Path, files: TlsFiles, master: Server) -> None:
        super().__init__(binary, "")
        self._tls = files
        self.watches = [["sentinel", "monitor", "mymaster", "127.0.0.1", str(master.port), "1"]]

    def _settings(self) -> list[list[str]]:
        secured = [[name, value] for name, value in self._listening().items()]
        plain = [line for line in super()._settings() if line[0] != "port"]
        return [["port", "0"], *secured, ["tls-replication", "yes"], *plain]


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """A certificate for 127.0.0.1."""
    return make_files(authority, tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="module")
def binary(files: TlsFiles) -> Path:
    """The first server here that was built with TLS."""
    for each in available().values():
        try:
            with Server(each, tls=files):
                return each
        except StartError as error:
            if "tls" not in str(error).lower():
                raise
    pytest.skip("no server here has TLS")


@pytest.fixture
def secured_url(request: pytest.FixtureRequest, binary: Path, files: TlsFiles) -> Iterator[str]:
    """Of a cluster, or of a master under Sentinel, that is secured by TLS throughout."""
    login, options = {"requirepass": PASSWORD}, f"?ssl_ca_certs={files.authority}"
    if request.param == "cluster":
        with ClusterNode(binary, config={**login, "cluster-enabled": "yes", "tls-cluster": "yes"}, tls=files) as node:
            node.add_slots(range(SLOTS))
            node.wait_for(lambda: node.state() == "ok")
            yield f"rediss+cluster://:{PASSWORD}@127.0.0.1:{node.port}{options}"
    else:
        with Server(binary, config=login, tls=files) as master, SecuredSentinel(binary, files, master) as sentinel:
            yield f"rediss+sentinel://:{PASSWORD}@127.0.0.1:{sentinel.port}/mymaster{options}"


@pytest.mark.parametrize("secured_url", ["cluster", "sentinel"], indirect=True)
def test_servers_are_found_under_tls(secured_url: str) -> None:
    with running(LOCKING, secured_url) as client:
        assert client.ask("10") == "held"
