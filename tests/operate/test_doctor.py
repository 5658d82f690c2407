"""The doctor's findings, each with a server that has the trouble."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import handfast
from handfast.operate.doctor import Check, examine, worst
from handfast.operate.servers import Deployment
from handfast.testing import Cluster, Replicated, SentinelGroup, Server, Servers, clock


def findings(urls: str | Sequence[str], **options: Any) -> dict[tuple[str, str], Check]:
    """By node and check."""
    with Deployment(urls, timeout=1.0) as deployment:
        checks = list(examine(deployment, **options))
    assert all(check.advice for check in checks if check.level != "ok"), checks
    assert len({(check.node, check.name) for check in checks}) == len(checks)
    return {(check.node, check.name): check for check in checks}


def level(found: dict[tuple[str, str], Check], name: str) -> str:
    """The worst level of a check, on whichever node."""
    checks = [check for (_, each), check in found.items() if each == name]
    assert checks, f"nothing about {name}"
    return worst(checks)


def test_healthy_server_has_nothing_but_ok(any_server: Server) -> None:
    any_server.command("CONFIG", "SET", "appendonly", "yes")
    any_server.command("CONFIG", "SET", "appendfsync", "always")
    try:
        found = findings(any_server.url)
        assert {key: check for key, check in found.items() if check.level != "ok"} == {}
        assert {name for _, name in found} == {
            "reachable", "latency", "version", "role", "eviction", "memory", "clock", "permissions", "wake-ups",
            "tracking", "persistence", "replicas", "guard",
        }  # fmt: skip
    finally:
        any_server.command("CONFIG", "SET", "appendonly", "no")


def test_probe_leaves_nothing_behind(one: Server) -> None:
    findings(one.url)
    assert one.command("DBSIZE") == 0


def test_without_probe_nothing_is_written(one: Server) -> None:
    one.command("CONFIG", "RESETSTAT")
    found = findings(one.url, probe=False)
    text = one.command("INFO", "commandstats")
    assert isinstance(text, bytes)
    called = {line.partition(":")[0].removeprefix("cmdstat_") for line in text.decode().splitlines() if ":" in line}
    assert called & {"set", "del", "eval", "evalsha", "hset", "zadd", "xadd", "delifeq", "publish"} == set()
    assert level(found, "reachable") == "ok"


def test_dead_server() -> None:
    found = findings("redis://127.0.0.1:1")
    assert list(found) == [("redis://127.0.0.1:1", "reachable")]
    assert level(found, "reachable") == "bad"


def test_paused_server(one: Server) -> None:
    one.pause()
    try:
        assert level(findings(one.url), "reachable") == "bad"
    finally:
        one.resume()


@pytest.mark.parametrize("password", ["", ":wrong@"])
def test_password(password: str) -> None:
    with Server(config={"requirepass": "right"}) as server:
        (check,) = findings(server.url.replace(":right@", password)).values()
        assert (check.name, check.level) == ("reachable", "bad")
        assert "password" in check.advice
        assert "right" not in check.found + check.advice
        assert level(findings(server.url), "reachable") == "ok"


def test_replica_is_no_master(handfast_replicated: Replicated) -> None:
    replica = handfast_replicated.replicas[0]
    found = findings(replica.url)
    assert level(found, "role") == "bad"
    assert level(found, "permissions") == "bad"
    assert "READONLY" in found[replica.url, "permissions"].found
    assert level(findings(handfast_replicated.master.url), "replicas") == "warn"


def test_eviction_and_memory() -> None:
    with Server(config={"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}) as server:
        assert level(findings(server.url), "eviction") == "bad"
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        found = findings(server.url)
        assert (level(found, "eviction"), level(found, "memory")) == ("ok", "ok")
        server.command("CONFIG", "SET", "maxmemory", "100kb")
        found = findings(server.url)
        assert (level(found, "eviction"), level(found, "memory")) == ("ok", "warn")
        assert "OOM" in found[server.url, "permissions"].found


def test_persistence_and_its_consequence(one: Server) -> None:
    assert level(findings(one.url), "persistence") == "warn"
    one.command("CONFIG", "SET", "save", "3600 1")
    assert "last snapshot" in findings(one.url)[one.url, "persistence"].found
    one.command("CONFIG", "SET", "save", "")


def test_missing_replicas() -> None:
    with Server(config={"min-replicas-to-write": "1"}) as server:
        assert level(findings(server.url), "replicas") == "bad"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("+@all -subscribe ~* &*", "wake-ups", "warn"),
        ("+@all ~* resetchannels", "wake-ups", "warn"),
        ("+@all -publish ~* &*", "permissions", "warn"),
        ("+@all -scan ~* &*", "permissions", "warn"),
        ("+@all -xadd ~* &*", "permissions", "warn"),
        ("+@all -zadd ~* &*", "permissions", "bad"),
        ("+@all -ping ~* &*", "permissions", "bad"),
        ("+@all -script ~* &*", "permissions", "bad"),
        ("+@all ~other:* &*", "permissions", "bad"),
        ("+@all -info ~* &*", "version", "warn"),
        ("+@all -client ~* &*", "tracking", "ok"),
    ],
)
def test_rights_of_the_user(one: Server, rules: str, name: str, expected: str) -> None:
    one.command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules.split())
    try:
        found = findings(one.url.replace("://", "://limited:secret@"))
        assert level(found, name) == expected
        assert level(found, "reachable") == "ok"
    finally:
        one.command("ACL", "DELUSER", "limited")


def test_rights_that_the_readme_asks_for_are_enough(one: Server) -> None:
    text = Path(__file__).parents[2].joinpath("README.md").read_text()
    (listed,) = re.findall(r"you can name the commands: (.*?);", text, re.DOTALL)
    rights = [f"+{word}" for word in re.findall(r"`([a-z|]+)`", listed)]
    assert "+evalsha" in rights
    assert "+publish" in rights
    one.command("ACL", "SETUSER", "readme", "reset", "on", ">secret", "~handfast:*", "&handfast:*", *rights)
    try:
        found = findings(one.url.replace("://", "://readme:secret@"))
        check = found[one.url, "permissions"]
        # They are enough for locks, and not for the commands of operators.
        assert (check.level, check.found) == ("warn", "this user may not run SCAN, XADD: no break, no ls, top and watch")
        assert level(found, "wake-ups") == "ok"
    finally:
        one.command("ACL", "DELUSER", "readme")


def test_resp2_only() -> None:
    with Server(config={"rename-command": "HELLO NOHELLO"}) as server:
        found = findings(server.url)
        assert level(found, "wake-ups") == "warn"
        assert "RESP2 only" in found[server.url, "version"].found


def test_server_of_a_cluster_needs_another_url(handfast_cluster: Cluster) -> None:
    assert level(findings(handfast_cluster.masters[0].url), "cluster") == "bad"
    found = findings(handfast_cluster.url)
    assert level(found, "cluster") == "ok"
    assert {node for node, _ in found} == {f"127.0.0.1:{master.port}" for master in handfast_cluster.masters}


def test_sentinels(handfast_sentinel: SentinelGroup) -> None:
    assert level(findings(handfast_sentinel.url), "sentinels") == "ok"
    wrong = handfast_sentinel.url.replace("redis+sentinel://", "redis+sentinel://127.0.0.1:1,")
    assert level(findings(wrong), "sentinels") == "warn"


def test_quorum(three: Servers) -> None:
    new = findings(three.urls)
    assert (level(new, "votes"), level(new, "guard")) == ("bad", "warn")
    assert "bootstrap" in new["", "votes"].advice
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
    found = findings(three.urls)
    assert {name for (node, name), check in found.items() if check.level != "ok"} == set()
    three[0].kill()
    found = findings(three.urls)
    assert (level(found, "quorum"), found["", "votes"].level) == ("warn", "ok")
    three[1].kill()
    assert level(findings(three.urls), "quorum") == "bad"


def test_quarantine_of_a_restarted_node(three: Servers) -> None:
    with handfast.connect(three.urls) as client:
        handfast.bootstrap(client)
        three[0].restart()
        with client.lock("a"):
            pass
    with handfast.connect(three.urls) as client, client.lock("a"):
        check = findings(three.urls)[three[0].url, "guard"]
    assert check.level == "warn"
    assert "quarantine" in check.found or "no vote" in check.found


def test_one_server_by_two_names(one: Server) -> None:
    found = findings([one.url, one.url.replace("127.0.0.1", "localhost"), "redis://127.0.0.1:1"])
    assert level(found, "distinct") == "bad"


def test_even_number_of_nodes() -> None:
    with Servers(2) as servers:
        assert level(findings(servers.urls), "quorum") == "warn"


@pytest.mark.skipif(bool(clock.missing()), reason=clock.missing())
def test_clock_offset(one: Server) -> None:
    with clock.Clock(ahead=3600) as ahead, Server(env=ahead.environment) as server:
        found = findings([server.url, one.url, "redis://127.0.0.1:1"])
    assert (found[server.url, "clock"].level, found[one.url, "clock"].level) == ("warn", "ok")
    assert found["", "clocks"].level == "warn"


def test_no_finding_names_a_password() -> None:
    with Server(config={"requirepass": "hunter2"}) as server:
        found = findings([server.url, "redis://:hunter2@127.0.0.1:1", "redis://:hunter2@nowhere.invalid"])
        assert "hunter2" not in repr(found)
