"""The dashboard's messages to viewers, and its access control."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

import handfast
from handfast.dashboard import reading
from handfast.dashboard.access import is_loopback
from handfast.dashboard.feed import KEPT, Feed
from handfast.dashboard.reading import Reader, Snapshot
from handfast.dashboard.server import Dashboard
from handfast.operate.locks import LockInfo
from handfast.operate.servers import Deployment
from handfast.testing import Server, Servers, lose
from tests.dashboard.running import running, viewing
from tests.support.eventually import eventually

HOSTILE = ['<script>alert("1")</script>', "a\r\nevent: all\ndata: {}\n\n", "\u202eright to left", "x" * 500]


@pytest.fixture
def page(one: Server) -> Iterator[Dashboard]:
    with running(one.url) as each:
        yield each


# -- what viewers see


def test_viewer_sees_locks_come_and_go(server: Server) -> None:
    with handfast.connect(server.url) as client, running(server.url) as page, viewing(page) as viewer:
        lease = client.lock("orders", ttl=20).acquire()
        line = viewer.until("acquired", "orders")
        assert line["token"] == str(lease.token)
        row = viewer.locks["orders"]
        assert row[3] == str(lease.token)
        assert row[8:] == ["y", "held"]
        assert abs(row[4] - (time.time() + lease.remaining()) * 1000) < 2000
        lease.release()
        viewer.until("released", "orders")
        assert viewer.locks == {}


def test_viewer_that_comes_later_sees_the_same(page: Dashboard, client: handfast.Client) -> None:
    with viewing(page) as first, client.lock("orders", ttl=20):
        first.until("acquired", "orders")
        with viewing(page) as second:
            assert second.locks == first.locks
            assert ("acquired", "orders") in [(line["kind"], line["name"]) for line in second.tape]


def test_waiters_hand_overs_and_waits_are_seen(page: Dashboard, client: handfast.Client, one: Server) -> None:
    with viewing(page) as viewer, handfast.connect(one.url) as other, ThreadPoolExecutor(1) as pool:
        lease = client.lock("orders").acquire()
        viewer.until("acquired", "orders")
        waiting = pool.submit(other.lock("orders", wait=20).acquire)
        viewer.until("contended", "orders")
        assert viewer.locks["orders"][7] == 1
        viewer.tape.clear()
        lease.release()
        line = viewer.until("acquired", "orders")
        theirs = waiting.result()
        assert line["token"] == str(theirs.token)
        assert viewer.last["stats"]["wait"]["n"] == 1
        assert viewer.last["stats"]["hold"]["n"] == 1
        assert viewer.last["point"][1] > 0
        theirs.release()


def test_renewal_is_seen(page: Dashboard, client: handfast.Client) -> None:
    with viewing(page) as viewer, client.lock("orders", ttl=1):
        viewer.until("renewed", "orders")


def test_lease_that_runs_out_is_lost(page: Dashboard, client: handfast.Client) -> None:
    with viewing(page) as viewer:
        lease = client.lock("orders", ttl=2, renew=False).acquire()
        viewer.until("acquired", "orders")
        viewer.until("lost", "orders")
        assert not lease.valid


def test_observed_client_tells_of_its_losses(page: Dashboard, client: handfast.Client) -> None:
    page.observe(client)
    with viewing(page) as viewer:
        lose(client.lock("orders").acquire(), "a test wanted it so")
        assert viewer.until("lost", "orders")["text"] == "a test wanted it so"


def test_node_that_dies_and_returns_is_seen(three: Servers) -> None:
    # The quarantine lasts as long as max_ttl: longer than the pause between two examinations.
    with handfast.connect(three.urls, max_ttl=12) as client:
        handfast.bootstrap(client)
        with running(three.urls) as page, viewing(page) as viewer, client.lock("orders", ttl=1):
            url = three[2].url
            viewer.until("acquired", "orders")
            three[2].kill()
            viewer.until("node down", url)
            assert url in viewer.last["faults"]
            assert viewer.locks["orders"][8][2] == "e"
            three[2].restart()
            viewer.until("node up", url)
            viewer.until("quarantined", url)


def test_vote_that_is_lost_and_restored_is_healed(three: Servers) -> None:
    with handfast.connect(three.urls) as client, running(three.urls) as page, viewing(page) as viewer:
        handfast.bootstrap(client)
        with client.lock("orders", ttl=6):
            viewer.until("acquired", "orders")
            three[1].command("DEL", "handfast:{orders}")
            assert viewer.until("healed", "orders")["text"] == three[1].url


def test_nothing_is_forgotten_while_no_node_answers(client: handfast.Client) -> None:
    with Server() as own, handfast.connect(own.url) as theirs, running(own.url) as page, viewing(page) as viewer:
        lease = theirs.lock("orders", ttl=20).acquire()
        viewer.until("acquired", "orders")
        own.pause()
        viewer.until("node down", own.url)
        assert viewer.last["readable"] is False
        assert list(viewer.locks) == ["orders"]
        own.resume()
        viewer.until("node up", own.url)
        assert viewer.last["readable"] is True
        assert lease.valid


def test_page_of_a_lock_has_its_holders_tokens_and_waiters(page: Dashboard, client: handfast.Client, one: Server) -> None:
    with viewing(page) as viewer, handfast.connect(one.url, label="nightly") as other, ThreadPoolExecutor(1) as pool:
        first = client.lock("orders").acquire()
        viewer.until("acquired", "orders")
        first.release()
        viewer.until("released", "orders")
        viewer.tape.clear()
        second = client.lock("orders").acquire()
        waiting = pool.submit(other.lock("orders", wait=20).acquire)
        viewer.until("acquired", "orders")
        eventually(lambda: client.lock("orders").waiters())
        said = httpx.get(f"{page.url}api/lock", params={"name": "orders"}).json()
        assert [each["token"] for each in said["holders"]] == [str(second.token), str(first.token)]
        assert [each["end"] for each in said["holders"]] == ["", "released"]
        assert said["found"]["last_token"] == str(second.token)
        assert [each["owner"].endswith(":nightly") for each in said["found"]["waiters"]] == [True]
        second.release()
        waiting.result().release()


def test_too_many_questions_are_refused(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handfast.dashboard.feed.MOST_DETAILS", 2)
    answer = threading.Event()
    with running(one.url) as page, ThreadPoolExecutor(2) as pool:
        page._feed._one_by_one.submit(answer.wait)
        asked = [pool.submit(httpx.get, f"{page.url}api/lock", params={"name": f"{i}"}, timeout=30) for i in range(2)]
        try:
            eventually(lambda: len(page._feed._detailed) == 2, 10)
            assert httpx.get(f"{page.url}api/lock", params={"name": "one more"}).status_code == 503
        finally:
            answer.set()
        assert [each.result().status_code for each in asked] == [200, 200]
        assert httpx.get(f"{page.url}api/lock", params={"name": "one more"}).status_code == 200


def test_node_that_fails_for_a_moment_does_not_make_locks_look_free(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node is back before the snapshot is complete."""
    for i in range(3):
        one.command("SET", f"handfast:{{orders:{i}}}", "somebody", "PX", 60_000)
    monkeypatch.setattr(reading, "BATCH", 1)
    monkeypatch.setattr("handfast.operate.servers.RETRY", 0.0)
    with Deployment(one.url) as deployment:
        reader = Reader(deployment, 1.0)
        assert reader.read().readable
        looked = iter([True, False, True])
        real = reading.look

        def look(servers: Deployment, names: list[str]) -> list[LockInfo | None]:
            if not next(looked):
                servers.nodes[0].drop(ConnectionResetError())
                return [None] * len(names)
            return real(servers, names)

        monkeypatch.setattr(reading, "look", look)
        assert not reader.read().readable


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_data(page: Dashboard, client: handfast.Client, name: str) -> None:
    with viewing(page) as viewer, client.lock(name, owner=f"{name[:100]}!", ttl=20):
        viewer.until("acquired", name)
        assert list(viewer.locks) == [name]
    said = httpx.get(f"{page.url}api/lock", params={"name": name})
    assert said.headers["content-type"] == "application/json"
    assert said.json()["name"] == name


def test_slow_viewer_gets_everything_again(one: Server) -> None:
    """More is published than is kept while it reads its first message."""
    feed = Feed(one.url, "handfast:", 1.0)

    async def main() -> list[tuple[bytes, int]]:
        feed.attach(asyncio.get_running_loop())
        stream = feed.stream()
        heard = [await anext(stream)]
        for i in range(KEPT + 5):
            feed._publish(Snapshot(100.0 + i))
        heard.append(await anext(stream))
        feed._publish(Snapshot(300.0))
        heard.append(await anext(stream))
        return [(each.split()[1], json.loads(each.partition(b"data: ")[2])["seq"]) for each in heard]

    try:
        assert asyncio.run(main()) == [(b"all", 0), (b"all", KEPT + 5), (b"news", KEPT + 6)]
    finally:
        feed.stop()


@pytest.mark.parametrize("topology", ["watched", "sharded"])
def test_sentinel_and_cluster_are_watched_too(topology: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(topology).url
    names = [f"orders:{i}" for i in range(5)]  # in a cluster, on several nodes
    with handfast.connect(url) as client, running(url) as page, viewing(page) as viewer:
        leases = [client.lock(name, ttl=20).acquire() for name in names]
        for name in names:
            viewer.until("acquired", name)
        assert sorted(viewer.locks) == names
        assert {row[8] for row in viewer.locks.values()} == {"y"}
        said = httpx.get(f"{page.url}api/lock", params={"name": names[0]}).json()
        assert said["found"]["last_token"] == str(leases[0].token)
        for lease in leases:
            lease.release()
        viewer.until("released", names[0])


# -- the reader


def test_all_viewers_share_one_reader(page: Dashboard, one: Server, client: handfast.Client) -> None:
    def connections() -> int:
        return len(str(one.command("CLIENT", "LIST")).splitlines())

    with viewing(page) as first:
        first.next()
        httpx.get(f"{page.url}api/lock", params={"name": "orders"})
        before = connections()
        with viewing(page) as second, viewing(page) as third:
            second.next()
            third.next()
            assert third.last["viewers"] == 3
            assert connections() == before


def test_dashboard_writes_nothing(one: Server) -> None:
    """The server's own flags of each command show it."""
    one.command("SET", "handfast:{orders}", "somebody", "PX", 60_000)
    one.command("ZADD", "handfast:{orders}:q", 1, "a waiter")
    one.command("CONFIG", "RESETSTAT")
    with running(one.url) as page, viewing(page) as viewer:
        while not (viewer.locks and viewer.last["checks"]):
            viewer.next()
        httpx.get(f"{page.url}api/lock", params={"name": "orders"})
    stats = one.command("INFO", "commandstats")
    assert isinstance(stats, bytes)
    used = {line.split(b":")[0].removeprefix(b"cmdstat_").decode() for line in stats.splitlines() if b"cmdstat_" in line}
    assert {"scan", "get", "zrange", "xrevrange"} <= used
    for name in used:
        ((_, _, flags, *_),) = one.command("COMMAND", "INFO", name.partition("|")[0])  # type: ignore[union-attr,misc]
        assert "write" not in flags, name


def test_reader_rests_longer_than_it_reads(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many locks there are, most of the time the reader uses no server."""

    def slow(deployment: Deployment, names: list[str]) -> list[None]:
        end = time.monotonic() + 0.05
        eventually(lambda: time.monotonic() > end)
        return [None] * len(names)

    one.command("SET", "handfast:{orders}", "somebody")
    monkeypatch.setattr(reading, "look", slow)
    with Deployment(one.url) as deployment:
        reader = Reader(deployment, 0.01)
        reader.read()
        assert reader.next_at - time.monotonic() > 0.9 * reading.REST * 0.05


def test_names_beyond_the_limit_are_counted(one: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST", 3)
    for i in range(5):
        one.command("SET", f"handfast:{{orders:{i}}}", "somebody")
    with Deployment(one.url) as deployment:
        snapshot = Reader(deployment, 1.0).read()
    assert (len(snapshot.locks), snapshot.unlisted) == (3, 2)


def test_many_locks_are_all_shown(one: Server) -> None:
    with one.connect() as link:
        for i in range(3000):
            link.command("SET", f"handfast:{{orders:{i}}}", "somebody", "PX", 60_000)
    with running(one.url) as page, viewing(page) as viewer:
        while len(viewer.rows) < 3000:
            viewer.next()
        assert len(viewer.locks) == 3000


# -- access


def test_loopback_needs_no_token(page: Dashboard) -> None:
    answer = httpx.get(page.url)
    assert answer.status_code == 200
    assert "token" not in page.url


PATHS = ["", "api/events", "api/lock?name=a", "static/app.js", "nothing"]


@pytest.mark.parametrize("path", PATHS)
def test_other_address_demands_the_token_everywhere(one: Server, path: str) -> None:
    with running(one.url, host="0.0.0.0") as page:
        url = page.url.partition("?")[0].replace("0.0.0.0", "127.0.0.1")
        token = page.url.partition("?token=")[2]
        assert len(token) >= 32
        assert httpx.get(url + path).status_code == 401
        for wrong in ("", token[:-1], token + "x", "é"):
            bearer = f"Bearer {wrong}".strip().encode()
            assert httpx.get(url + path, headers={"Authorization": bearer}).status_code == 401
            assert httpx.get(url + path, params={"token": wrong}).status_code == 401
        with httpx.stream("GET", url + path, headers={"Authorization": f"Bearer {token}"}) as answer:
            assert answer.status_code in (200, 404)


def test_token_in_the_address_becomes_a_cookie(one: Server) -> None:
    with running(one.url, host="0.0.0.0", token="my own token") as page:
        url = page.url.partition("?")[0].replace("0.0.0.0", "127.0.0.1")
        with httpx.Client() as browser:
            answer = browser.get(url, params={"token": "my own token"})
            assert (answer.status_code, answer.headers["location"]) == (303, "/")
            cookie = answer.headers["set-cookie"].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert "my own token" not in cookie
            assert browser.get(url).status_code == 200
            with browser.stream("GET", f"{url}api/events") as stream:
                assert stream.status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost", 200),
        ("[::1]", 200),
        ("attacker.example", 421),
        ("127.0.0.1.attacker.example", 421),
        ("8.8.8.8", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_unknown_host_name_is_refused(page: Dashboard, host: str, status: int) -> None:
    """DNS rebinding: the browser takes the dashboard for the attacker's own page."""
    for path in ("", "api/events", "static/app.js"):
        with httpx.stream("GET", page.url + path, headers={"Host": f"{host}:{page._port}"}) as answer:
            assert answer.status_code == status


def test_names_can_be_allowed(one: Server) -> None:
    with running(one.url, hosts=["locks.example"]) as page:
        assert httpx.get(page.url, headers={"Host": "locks.example"}).status_code == 200
        assert httpx.get(page.url, headers={"Host": "other.example"}).status_code == 421


@pytest.mark.parametrize("path", PATHS)
def test_every_answer_has_the_headers(page: Dashboard, path: str) -> None:
    with httpx.stream("GET", page.url + path) as answer:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["", "api/events", "api/lock", "static/app.js"])
def test_nothing_can_be_changed(page: Dashboard, method: str, path: str) -> None:
    assert httpx.request(method, page.url + path).status_code == 405


def test_files_outside_the_page_are_not_served(page: Dashboard) -> None:
    with socket.create_connection(("127.0.0.1", page._port)) as link:
        link.sendall(b"GET /static/../server.py HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert b" 404 " in link.recv(100)


def test_which_addresses_are_loopback() -> None:
    assert [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "127.9.9.9")] == [True] * 4
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com")] == [False] * 4


# -- its end


def test_nothing_is_left_when_it_ends(one: Server) -> None:
    before = threading.active_count()
    with running(one.url) as page, viewing(page):
        pass
    eventually(lambda: threading.active_count() <= before, 5)


def test_port_that_is_taken_is_an_error(one: Server) -> None:
    with running(one.url) as page, pytest.raises(OSError, match="in use"):
        Dashboard(one.url, port=page._port)


def test_the_package_imports_none_of_it(one: Server) -> None:
    program = (
        "import sys, handfast, handfast.aio\n"
        "with handfast.connect() as client, client.lock('a'): pass\n"
        "ours = ('starlette', 'uvicorn', 'sse_', 'handfast.dashboard', 'handfast.operate')\n"
        "print([name for name in sys.modules if name.startswith(ours)])"
    )
    env = {**os.environ, "HANDFAST_URL": one.url}
    assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True) == "[]\n"
