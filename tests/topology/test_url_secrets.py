"""No error and no line of the log shows a password."""

from __future__ import annotations

import socket

import pytest

import handfast
import handfast.aio
from handfast import ConfigError, NoQuorum
from sim.resp import commands_in
from tests.support.sync_and_async import MODES
from tests.support.tcp_relay import Impostor

SECRET = "open-sesame"


@pytest.mark.parametrize(
    "url",
    [
        f"redis:/localhost?password={SECRET}",
        f"redis:localhost?password={SECRET}",
        f"localhost?password={SECRET}",
        f"embedded://?password={SECRET}",
        f"embedded://private?nodes=3&password={SECRET}",
        f"embedded://:{SECRET}@private",
        f"embedded://:a?{SECRET}@private",
        f"embedded://:[{SECRET}@private",
        f"embedded://?password:{SECRET}",
        f"embedded://?nodes=3;password={SECRET}",
        f"redis:/h;password={SECRET}",
        f"user:{SECRET}",
        f"redis://user:4{SECRET}",
        f"redis://:4{SECRET}",
        f"redis://user:4,{SECRET}",
        f"redis://user:12/{SECRET}",
        f"redis://user:{SECRET} redis://h",
        f"redis://h;password={SECRET}",
        f"redis://h/0;password={SECRET}",
        f"redis://h?password=a&{SECRET}",
        f"redis://h?password=a&{SECRET}=b",
        f"redis://h?password:{SECRET}",
        f"redis://h?password=a&db={SECRET}",
        f"redis://h?db=0;password={SECRET}",
        f"redis://h?client_name=a b;password={SECRET}",
        f"rediss://h?ssl_cert_reqs=none;password={SECRET}",
        f"rediss+cluster://h?ssl_check_hostname=no;password={SECRET}",
        f"redis+cluster://user:a[{SECRET}]b",
        f"redis+cluster://h,[{SECRET}]b",
        f"redis+sentinel://user:{SECRET}/m",
        f"redis+sentinel://user:a,{SECRET}/m",
        f"redis+sentinel://h/m;password={SECRET}",
        f"unix:///run/redis.sock;password={SECRET}",
    ],
)
def test_password_in_url_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        handfast.connect(url)
    assert SECRET not in str(raised.value), "the error shows the password"


@pytest.mark.parametrize("given", [f"redis://:{SECRET}@h", {"password": SECRET}, [f"redis://:{SECRET}@h"]], ids=type)
@pytest.mark.parametrize("mode", MODES)
def test_password_in_wrong_argument_of_from_client_is_not_shown(mode: str, given: object) -> None:
    package = handfast.aio if mode == "asyncio" else handfast
    with pytest.raises(ConfigError, match=r"takes a redis\.Redis") as raised:
        package.from_client(given)
    assert SECRET not in str(raised.value), "the error shows the password"


@pytest.mark.parametrize("login", [f":4{SECRET} word", f":4 {SECRET} word", f":word {SECRET}"])
def test_password_with_space_in_environment_is_not_shown(login: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANDFAST_URL", f"redis://{login}@h")
    with pytest.raises(ConfigError) as raised:
        handfast.connect()
    assert SECRET not in str(raised.value), "the error shows the password"


def _knows_no_command(sock: socket.socket) -> None:
    """As a server that has no HELLO and no AUTH, or a proxy: the reply repeats the arguments."""
    while request := sock.recv(65536):
        for command, *args in commands_in(request):
            shown = b"".join(b"'%b' " % each for each in args)
            sock.sendall(b"-ERR unknown command '%b', with args beginning with: %b\r\n" % (command, shown))


@pytest.mark.parametrize(
    "url", ["redis://:{}@{}", "redis+cluster://:{}@{}", "redis+sentinel://{1}/m?sentinel_password={0}"]
)
def test_password_that_server_repeats_is_not_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with Impostor(_knows_no_command) as server:
        client = handfast.connect(url.format(SECRET, f"127.0.0.1:{server.port}"))
        with client, pytest.raises((NoQuorum, ConfigError), match="unknown command") as raised:
            client.lock("a").acquire(wait=0)
    assert SECRET not in str(raised.value), "the error shows the password"
    assert SECRET not in caplog.text, "the log shows the password"
