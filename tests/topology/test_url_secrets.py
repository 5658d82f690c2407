"""No error and no line of the log shows a password."""

from __future__ import annotations

import socket

import pytest

import handfast
from handfast import ConfigError, NoQuorum
from sim.resp import commands_in
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
    ],
)
def test_password_in_url_is_not_shown(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        handfast.connect(url)
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
