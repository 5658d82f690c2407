"""The launcher that our tests and our users' tests stand on."""

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
def test_every_server_found_is_what_its_name_says(binary: Path) -> None:
    name = next(name for name, path in available().items() if path == binary)
    product, version = name.split("-")
    with Server(binary) as server:
        assert server.command("PING") == "PONG"
        assert server.info(f"{product}_version").startswith(f"{version}.")


@pytest.mark.parametrize("unix", [False, True])
def test_a_server_is_gone_without_a_trace_after_the_block(unix: bool) -> None:
    with Server(unix=unix) as server:
        pid, folder = server.pid, server.folder
        assert server.url.startswith("unix:///" if unix else "redis://127.0.0.1:")
        assert server.command("SET", "a", b"\r\n\x00") == "OK"
        assert server.command("GET", "a") == b"\r\n\x00"
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not folder.exists()


def test_a_given_folder_is_kept(tmp_path: Path) -> None:
    with Server(folder=tmp_path):
        pass
    assert (tmp_path / "server.log").exists()


def test_restart_keeps_the_address_and_forgets_the_data() -> None:
    with Server() as server:
        url, run_id = server.url, server.info("run_id")
        server.command("SET", "a", 1)
        server.restart()
        assert (server.url, server.command("GET", "a")) == (url, None)
        assert server.info("run_id") != run_id


def test_restart_keeps_what_was_on_disk_if_asked() -> None:
    with Server(config={"appendonly": "yes", "appendfsync": "always"}) as server:
        server.command("SET", "a", 1)
        server.restart(empty=False)
        assert server.command("GET", "a") == b"1"
        server.restart(empty=True)
        assert server.command("GET", "a") is None


def test_a_stopped_server_is_refused_and_its_port_is_nobody_elses() -> None:
    with Server() as server:
        server.stop()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", server.port), 1)
        if sys.platform == "linux":
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", server.port))
        server.start()
        assert server.command("PING") == "PONG"


def test_a_paused_server_answers_nothing_until_it_is_resumed() -> None:
    with Server() as server, Connection(("127.0.0.1", server.port), timeout=5) as link:
        for _ in range(2):
            server.pause()
            with pytest.raises(TimeoutError):
                server.command("PING", timeout=0.05)
            server.resume()
            assert link.command("PING") == "PONG"
        server.pause()  # and the block ends it all the same


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(StartError, match="nonsense"), Server(config={"nonsense": "1"}):
        pass


def test_an_error_reply_raises() -> None:
    with Server() as server, pytest.raises(ReplyError, match="wrong number"):
        server.command("GET")


def test_a_password_is_in_the_url_and_is_used() -> None:
    with Server(config={"requirepass": "open sesame"}) as server:
        assert ":open%20sesame@" in server.url
        assert server.command("PING") == "PONG"
        with (
            Connection(("127.0.0.1", server.port), timeout=5) as link,
            pytest.raises(ReplyError, match="NOAUTH"),
        ):
            link.command("GET", "a")


def test_a_replica_is_in_step_when_it_is_ready() -> None:
    with Server() as master:
        master.command("SET", "a", 1)
        with Server(replica_of=master) as replica:
            assert replica.command("GET", "a") == b"1"
            with pytest.raises(ReplyError, match="READONLY"):
                replica.command("SET", "a", 2)


def test_servers_start_side_by_side_and_are_different_ones() -> None:
    with Servers(5) as servers:
        assert len(set(servers.urls)) == len(servers) == 5
        assert len({server.info("run_id") for server in servers}) == 5
        servers[0].kill()
        assert servers[1].command("PING") == "PONG"


def test_tls_where_a_server_was_built_with_it(tmp_path: Path) -> None:
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
def test_servers_die_with_a_test_process_that_is_killed(paused: bool) -> None:
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
    """A zombie is not: where nobody reaps orphans, it would stay one."""
    try:
        os.kill(pid, 0)
        return sys.platform != "linux" or ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False
