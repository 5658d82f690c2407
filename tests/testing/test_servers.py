"""The launcher of servers, for our tests and for users' tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme

from handfast.embedded.process import StartError
from handfast.embedded.resp import Connection, ReplyError
from handfast.testing import Server, Servers, TlsFiles, available

pytestmark = pytest.mark.skipif(not available(), reason="no server binary on this machine")


def each_binary() -> list[object]:
    return [pytest.param(binary, id=name) for name, binary in available().items()]


@pytest.mark.parametrize("binary", each_binary())
def test_found_servers_match_their_names(binary: Path) -> None:
    name = next(name for name, path in available().items() if path == binary)
    product, version = name.split("-")
    with Server(binary) as server:
        assert server.command("PING") == "PONG"
        assert server.info(f"{product}_version").startswith(f"{version}.")


@pytest.mark.parametrize("unix", [False, True])
def test_server_leaves_nothing_after_block(unix: bool) -> None:
    with Server(unix=unix) as server:
        pid, folder = server.pid, server.folder
        assert server.url.startswith("unix:///" if unix else "redis://127.0.0.1:")
        assert server.command("SET", "a", b"\r\n\x00") == "OK"
        assert server.command("GET", "a") == b"\r\n\x00"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_given_folder_is_kept(tmp_path: Path) -> None:
    with Server(folder=tmp_path):
        pass
    assert (tmp_path / "server.log").exists()


def test_restart_keeps_address_and_loses_data() -> None:
    with Server() as server:
        url, run_id = server.url, server.info("run_id")
        server.command("SET", "a", 1)
        server.restart()
        assert (server.url, server.command("GET", "a")) == (url, None)
        assert server.info("run_id") != run_id


def test_restart_can_keep_data_on_disk() -> None:
    with Server(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        server.command("SET", "a", 1)
        server.restart(empty=False)
        assert server.command("GET", "a") == b"1"
        server.restart(empty=True)
        assert server.command("GET", "a") is None


def test_stopped_server_refuses_connections_and_keeps_its_port() -> None:
    with Server() as server:
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 1)
        if sys.platform == "linux":
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", server.port))
        server.start()
        assert server.command("PING") == "PONG"


def test_paused_server_answers_after_resume() -> None:
    with Server() as server, Connection(("127.0.0.1", server.port), timeout=5) as link:
        for _ in range(2):
            server.pause()
            with pytest.raises(TimeoutError):
                server.command("PING", timeout=0.05)
            server.resume()
            assert link.command("PING") == "PONG"
        server.pause()  # the end of the block must end a paused server too


def test_failed_start_says_why() -> None:
    with pytest.raises(StartError, match="nonsense"), Server(config={"nonsense": "1"}):
        pass


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("binary", [Path("no-such-server"), Path("/no/such/server"), Path("/")], ids=str)
def test_missing_binary_is_named(binary: Path, several: bool) -> None:
    with pytest.raises(StartError, match=f"{binary} cannot be started: ") as raised:
        (Servers(2, binary) if several else Server(binary)).__enter__()
    assert isinstance(raised.value.__cause__, OSError)


def test_error_reply_raises() -> None:
    with Server() as server, pytest.raises(ReplyError, match="wrong number"):
        server.command("GET")


def test_password_is_in_url_and_is_used() -> None:
    with Server(config={"requirepass": "open sesame"}) as server:
        assert ":open%20sesame@" in server.url
        assert server.command("PING") == "PONG"
        with (
            Connection(("127.0.0.1", server.port), timeout=5) as link,
            pytest.raises(ReplyError, match="NOAUTH"),
        ):
            link.command("GET", "a")


def test_ready_replica_is_synchronized() -> None:
    with Server() as master:
        master.command("SET", "a", 1)
        with Server(replica_of=master) as replica:
            assert replica.command("GET", "a") == b"1"
            with pytest.raises(ReplyError, match="READONLY"):
                replica.command("SET", "a", 2)


def test_servers_run_side_by_side() -> None:
    with Servers(5) as servers:
        assert len(set(servers.urls)) == len(servers) == 5
        assert len({server.info("run_id") for server in servers}) == 5
        servers[0].kill()
        assert servers[1].command("PING") == "PONG"


def test_tls_if_server_supports_it(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    files = TlsFiles(tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem")
    certificate.cert_chain_pems[0].write_to_path(str(files.certificate))
    certificate.private_key_pem.write_to_path(str(files.key))
    authority.cert_pem.write_to_path(str(files.authority))
    for binary in available().values():
        try:
            with Server(binary, tls=files) as server:
                assert server.url.startswith("rediss://127.0.0.1:")
                assert server.command("PING") == "PONG"
                return
        except StartError as error:
            if "tls" not in str(error).lower():
                raise
    pytest.skip("no server here has TLS")


@pytest.mark.parametrize("paused", [False, True])
def test_servers_end_with_killed_test_process(paused: bool) -> None:
    code = (
        "import sys; from handfast.testing import Server\n"
        "server = Server().start(); print(server.pid, server.folder, flush=True)\n"
        f"if {paused}: server.pause()\n"
        "print('ready', flush=True); sys.stdin.read()"
    )
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout
        pid, folder = tests.stdout.readline().split()
        assert tests.stdout.readline() == "ready\n"
        tests.kill()
    with Server() as watch:
        watch.wait_for(lambda: not Path(folder).exists() and not running(int(pid)))


def running(pid: int) -> bool:
    """False for a zombie: it stays one if no process reaps orphans."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
