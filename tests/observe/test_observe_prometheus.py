"""Metrics as Prometheus scrapes them: over HTTP, from clients that wait, lose leases, and see servers die."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import handfast
from handfast.observe import reason_of
from handfast.observe.prometheus import PrometheusMetrics
from handfast.testing import Server, Servers
from tests.observe.scrape import Endpoint, endpoint
from tests.support.eventually import eventually, eventually_async, renewal_of
from tests.support.sync_and_async import both, connected


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def scraped(registry: CollectorRegistry) -> Iterator[Endpoint]:
    with endpoint(registry) as each:
        yield each


def observe(client: Any, registry: CollectorRegistry, **options: Any) -> PrometheusMetrics:
    metrics = PrometheusMetrics(registry=registry, **options)
    metrics.observe(getattr(client, "inner", client))
    return metrics


@both
async def test_acquisitions_and_holds_are_counted(
    mode: str, one: Server, registry: CollectorRegistry, scraped: Endpoint
) -> None:
    async with connected(mode, one.url) as client:
        observe(client, registry)
        lease = await client.lock("orders").acquire()
        assert scraped.value("handfast_held") == 1
        assert await client.lock("orders").try_acquire() is None
        await lease.release()
        assert scraped.value("handfast_held") == 0
    assert scraped.value("handfast_acquisitions_total", outcome="acquired") == 1
    assert scraped.value("handfast_acquisitions_total", outcome="contended") == 1
    assert scraped.value("handfast_hold_seconds_count") == 1
    assert (scraped.value("handfast_hold_seconds_sum") or 0) > 0


@both
async def test_wait_in_vain_is_measured(mode: str, one: Server, registry: CollectorRegistry, scraped: Endpoint) -> None:
    async with connected(mode, one.url) as client:
        observe(client, registry)
        with handfast.connect(one.url) as other, other.lock("orders"), pytest.raises(handfast.Contended):
            await client.lock("orders", wait=0.5).acquire()
    assert scraped.value("handfast_waiting") == 0
    assert scraped.value("handfast_wait_seconds_count", outcome="contended") == 1
    assert (scraped.value("handfast_wait_seconds_sum", outcome="contended") or 0) >= 0.5


def test_waiters_are_counted(client: handfast.Client, registry: CollectorRegistry, scraped: Endpoint) -> None:
    observe(client, registry)
    lease = client.lock("orders").acquire()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(client.lock("orders", wait=10).acquire) for _ in range(2)]
        eventually(lambda: scraped.value("handfast_waiting") == 2)
        lease.release()
        eventually(lambda: any(each.done() for each in waiting))
        for _ in waiting:
            done = next(each for each in waiting if each.done())
            waiting.remove(done)
            done.result().release()
            eventually(lambda: all(each.done() for each in waiting))
    assert scraped.value("handfast_waiting") == 0
    assert scraped.value("handfast_wait_seconds_count", outcome="acquired") == 2


@both
async def test_lost_lease_is_counted_by_its_reason(
    mode: str, one: Server, registry: CollectorRegistry, scraped: Endpoint
) -> None:
    async with connected(mode, one.url) as client:
        observe(client, registry)
        lease = await client.lock("orders", ttl=0.3).acquire()
        await eventually_async(renewal_of(lease))
        one.command("DEL", "handfast:{orders}")
        await eventually_async(lambda: scraped.value("handfast_losses_total", reason="key_gone") == 1)
        assert scraped.value("handfast_held") == 0
        assert (scraped.value("handfast_renewals_total") or 0) >= 1


def test_failed_renewal_is_counted(registry: CollectorRegistry, scraped: Endpoint) -> None:
    with Server() as own, handfast.connect(own.url) as client:
        observe(client, registry)
        lease = client.lock("orders", ttl=0.5).acquire()
        eventually(renewal_of(lease))
        own.pause()
        assert lease.lost.wait(5)
        own.resume()
        assert scraped.value("handfast_renewal_failures_total") == 1
        assert scraped.value("handfast_losses_total", reason="not_renewed") == 1


def test_node_that_is_killed_and_forgets_is_shown(three: Servers, registry: CollectorRegistry, scraped: Endpoint) -> None:
    url = three[2].url

    def take() -> bool:
        client.lock("orders", wait=5, ttl=0.3).acquire().release()
        return True

    with handfast.connect(three.urls, max_ttl=0.5) as client:
        handfast.bootstrap(client)
        observe(client, registry)
        assert [scraped.value("handfast_node_up", node=each.url) for each in three] == [1, 1, 1]
        take()
        three[2].kill()
        eventually(lambda: take() and scraped.value("handfast_node_up", node=url) == 0, 10)
        assert scraped.value("handfast_node_failures_total", node=url) == 1
        three[2].restart()
        eventually(lambda: take() and scraped.value("handfast_node_up", node=url) == 1, 10)
        eventually(lambda: take() and scraped.value("handfast_node_quarantines_total", node=url) == 1, 10)
        eventually(lambda: take() and scraped.value("handfast_node_quarantined", node=url) == 0, 10)
        assert scraped.value("handfast_node_up", node=three[0].url) == 1


@pytest.mark.parametrize("topology", ["watched", "sharded"])
def test_sentinel_and_cluster_are_counted_too(
    topology: str, request: pytest.FixtureRequest, registry: CollectorRegistry, scraped: Endpoint
) -> None:
    with handfast.connect(request.getfixturevalue(topology).url) as client:
        observe(client, registry)
        for i in range(5):
            client.lock(f"orders:{i}").acquire().release()
    assert scraped.value("handfast_acquisitions_total", outcome="acquired") == 5
    assert {value for (name, _), value in scraped.scrape().items() if name == "handfast_node_up"} <= {1.0}


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (None, [{}]),
        (True, [{"name": "order:7"}, {"name": "stock"}]),
        ("order:*", [{"name": "order:*"}, {"name": "other"}]),
        (["order:*", "st?ck"], [{"name": "order:*"}, {"name": "st?ck"}]),
        (lambda name: name[0], [{"name": "o"}, {"name": "s"}]),
    ],
    ids=["none", "each", "pattern", "patterns", "function"],
)
def test_the_user_chooses_the_label_for_names(
    client: handfast.Client, registry: CollectorRegistry, scraped: Endpoint, names: Any, labels: list[dict[str, str]]
) -> None:
    observe(client, registry, names=names)
    for name in ("order:7", "stock"):
        client.lock(name).acquire().release()
    expected = {("handfast_held", frozenset(each.items())): 0.0 for each in labels}
    assert {key: value for key, value in scraped.scrape().items() if key[0] == "handfast_held"} == expected


def test_label_function_that_fails_does_not_hurt_the_lock(
    client: handfast.Client, registry: CollectorRegistry, scraped: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(name: str) -> str:
        if name == "orders":
            raise ZeroDivisionError
        return name

    observe(client, registry, names=broken)
    with client.lock("orders") as lease:
        assert lease.valid
    with client.lock("stock"):
        assert scraped.value("handfast_held", name="stock") == 1
    failures = [record for record in caplog.records if record.exc_info and record.exc_info[0] is ZeroDivisionError]
    assert len(failures) == 2
    assert failures[0].levelno == logging.ERROR


def test_several_clients_share_one_set_of_metrics(one: Server, registry: CollectorRegistry, scraped: Endpoint) -> None:
    metrics = PrometheusMetrics(registry=registry)
    with handfast.connect(one.url) as first, handfast.connect(one.url) as second:
        end = metrics.observe(first)
        metrics.observe(second)
        with first.lock("a"), second.lock("b"):
            assert scraped.value("handfast_held") == 2
            end()
            assert scraped.value("handfast_held") == 1
        assert scraped.value("handfast_held") == 0


def test_lease_from_before_is_not_counted_when_it_ends(
    client: handfast.Client, registry: CollectorRegistry, scraped: Endpoint
) -> None:
    with client.lock("a"):
        observe(client, registry)
    assert scraped.value("handfast_held") is None or scraped.value("handfast_held") == 0


def test_second_set_of_metrics_in_a_registry_is_refused(registry: CollectorRegistry) -> None:
    PrometheusMetrics(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        PrometheusMetrics(registry=registry)


def test_no_caller_waits_for_a_scrape(client: handfast.Client, registry: CollectorRegistry, scraped: Endpoint) -> None:
    """Nor for another caller that is being counted: the event is counted as soon as that has ended."""
    metrics = observe(client, registry)
    with metrics._attended:
        client.lock("orders").acquire().release()
    assert scraped.value("handfast_acquisitions_total", outcome="acquired") is None
    assert scraped.value("handfast_acquisitions_total", outcome="acquired") == 1


def test_counts_are_exact_with_many_threads(
    client: handfast.Client, registry: CollectorRegistry, scraped: Endpoint
) -> None:
    observe(client, registry)
    start = threading.Barrier(8)

    def work(name: str) -> None:
        start.wait()
        for _ in range(50):
            client.lock(name).acquire().release()

    with ThreadPoolExecutor(8) as pool:
        for each in [pool.submit(work, f"lock-{i}") for i in range(8)]:
            each.result()
    assert scraped.value("handfast_acquisitions_total", outcome="acquired") == 400
    assert scraped.value("handfast_hold_seconds_count") == 400
    assert scraped.value("handfast_held") == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # from Python 3.12 on, because there are threads
def test_child_of_a_fork_counts_its_own_locks(client: handfast.Client, registry: CollectorRegistry) -> None:
    """Also if another thread of the parent was counting when it forked. What the parent holds is not the child's."""
    metrics = observe(client, registry)
    going = True

    def hammer() -> None:
        while going:
            client.lock("busy").acquire().release()

    with client.lock("parent"), ThreadPoolExecutor(1) as pool:
        busy = pool.submit(hammer)
        try:
            for _ in range(20):
                pid = os.fork()
                if pid == 0:
                    try:
                        held = registry.get_sample_value("handfast_held")
                        with client.lock("child"):
                            ok = held == 0 and registry.get_sample_value("handfast_held") == 1
                        os._exit(0 if ok else 1)
                    except BaseException:
                        os._exit(2)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        finally:
            going = False
        busy.result(10)
        assert registry.get_sample_value("handfast_held") == 1
    assert not metrics._attended.locked()


MULTIPROCESS = """
import os, signal, sys
import handfast
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from handfast.observe.prometheus import PrometheusMetrics

client = handfast.connect()
metrics = PrometheusMetrics()
metrics.observe(client)
lease = client.lock("parent").acquire()
child = os.fork()
if not child:
    lease = client.lock("child").acquire()
    print("ready", flush=True)
    signal.pause()
sys.stdin.readline()
registry = CollectorRegistry()
MultiProcessCollector(registry)
acquired = registry.get_sample_value("handfast_acquisitions_total", {"outcome": "acquired"})
print(registry.get_sample_value("handfast_held"), acquired, flush=True)
os.kill(child, signal.SIGKILL)
os._exit(0)
"""


def test_processes_that_share_an_endpoint_add_up(one: Server, tmp_path: Any) -> None:
    env = {**os.environ, "HANDFAST_URL": one.url, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", MULTIPROCESS], env=env, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline().split() == ["2.0", "2.0"]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("a majority of the nodes no longer holds it: a: its key is gone: deleted; b: now held by host:1:x", "taken"),
        ("this machine's clock stood still, so it may have ended already", "clock_stood_still"),
        ("something that nobody foresaw", "other"),
    ],
)
def test_reasons_are_reduced_to_a_word(text: str, label: str) -> None:
    assert reason_of(text) == label


def test_every_reason_that_the_library_gives_has_a_word(
    one: Server, registry: CollectorRegistry, scraped: Endpoint
) -> None:
    """Made to happen for real: the texts are for people, and may change."""
    with handfast.connect(one.url, ttl=0.3) as client:
        observe(client, registry)
        leases = {
            "max_hold": client.lock("a", max_hold=0.1).acquire(),
            "ttl_ended": client.lock("b", renew=False).acquire(),
            "taken": client.lock("c").acquire(),
            "released_late": client.lock("d", ttl=20).acquire(),
            "closed": client.lock("e", ttl=20).acquire(),
        }
        one.command("SET", "handfast:{c}", "somebody")
        one.command("DEL", "handfast:{d}")
        assert not leases["released_late"].release()
        for reason in ("max_hold", "ttl_ended", "taken"):
            assert leases[reason].lost.wait(5)
        client.close()
    for reason in leases:
        assert scraped.value("handfast_losses_total", reason=reason) == 1, reason


@pytest.mark.parametrize(
    ("module", "needs", "extra"), [("prometheus", "prometheus_client", "prometheus"), ("opentelemetry",) * 2 + ("otel",)]
)
def test_without_the_extra_the_import_says_what_to_install(module: str, needs: str, extra: str) -> None:
    program = f"import sys; sys.modules[{needs!r}] = None; import handfast.observe.{module}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert f"pip install 'handfast[{extra}]'" in ended.stderr.splitlines()[-1]


def test_the_package_imports_neither(one: Server) -> None:
    program = (
        "import sys, handfast, handfast.aio\nwith handfast.connect() as client, client.lock('a'): pass\n"
        "print([name for name in sys.modules if name.startswith(('handfast.observe', 'prometheus', 'opentelemetry'))])"
    )
    env = {**os.environ, "HANDFAST_URL": one.url}
    assert subprocess.check_output([sys.executable, "-c", program], env=env, text=True) == "[]\n"
