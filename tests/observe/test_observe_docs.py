"""docs/observe.md and docs/grafana.json: the examples run, and every metric that is named is exported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

import handfast
from handfast.observe import METRICS, OUTCOMES, REASONS
from handfast.observe.prometheus import PrometheusMetrics
from handfast.testing import Server, Servers
from tests.observe.scrape import Endpoint, endpoint
from tests.support.eventually import eventually

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "observe.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())
LEGENDS: list[tuple[str, str]] = [
    (target["expr"], target["legendFormat"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]
QUERIES: list[str] = [query for query, _ in LEGENDS]


def exported() -> dict[str, tuple[str, ...]]:
    """The names under which each metric's samples are scraped, with the labels of each."""
    metrics = PrometheusMetrics(registry=CollectorRegistry())
    samples: dict[str, tuple[str, ...]] = {}
    for metric in METRICS:
        (family,) = metrics._metrics[metric].describe()
        labels = metrics.label_names(metric)
        if metric.kind == "counter":
            samples[f"{family.name}_total"] = labels
        elif metric.kind == "histogram":
            samples |= {f"{family.name}_{part}": (*labels, "le") for part in ("bucket", "sum", "count")}
        else:
            samples[family.name] = labels
    return samples


@pytest.mark.parametrize("query", QUERIES)
def test_queries_use_metrics_and_labels_that_are_exported(query: str) -> None:
    named = re.findall(r"handfast_\w+", query)
    assert named
    assert set(named) <= set(exported())
    for labels in re.findall(r"\bby \(([^)]*)\)", query):
        for name in named:
            assert {label.strip() for label in labels.split(",")} <= set(exported()[name])


def test_everything_that_the_dashboard_asks_for_is_in_a_scrape(three: Servers) -> None:
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry=registry)
    with (
        handfast.connect(three.urls, ttl=0.3, max_ttl=0.5) as client,
        handfast.connect(three.urls, ttl=0.3, max_ttl=0.5) as other,
        endpoint(registry) as scraped,
    ):
        handfast.bootstrap(client)
        for each in (client, other):
            metrics.observe(each)
        lease = client.lock("orders").acquire()
        with pytest.raises(handfast.Contended):
            other.lock("orders").acquire(wait=0.2)
        for server in three:
            server.command("DEL", "handfast:{orders}")
        assert lease.lost.wait(10)
        three[2].kill()
        three[2].restart()
        eventually(lambda: client.lock("a", wait=5).acquire().release() and quarantined(scraped), 10)
        labels: dict[str, set[str]] = {}
        for name, pairs in scraped.scrape():
            labels.setdefault(name, set()).update(label for label, _ in pairs)
    for query, legend in LEGENDS:
        wanted = set(re.findall(r"\{\{(\w+)\}\}", legend)) | set(re.findall(r"\bby \((\w+)\)", query))
        assert all(wanted <= labels[name] for name in re.findall(r"handfast_\w+", query)), query


def quarantined(scraped: Endpoint) -> bool:
    return "handfast_node_quarantines_total" in scraped.names() and "handfast_node_failures_total" in scraped.names()


def test_every_metric_has_its_place_on_the_dashboard() -> None:
    shown = set(re.findall(r"handfast_\w+", " ".join(QUERIES)))
    histograms = {name for name in exported() if name.endswith(("_sum", "_count"))}
    assert set(exported()) - histograms == shown


def test_the_page_names_every_metric_outcome_and_reason() -> None:
    named = set(re.findall(r"`(handfast_\w+)`", PAGE))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported()}
    assert named == families
    for label in {*OUTCOMES.values(), "error", *(label for _, label in REASONS), "other"}:
        assert f"`{label}`" in PAGE


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_examples_run(block: str, one: Server, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(block)
    env = {**os.environ, "HANDFAST_URL": one.url, "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, str(script)], env=env, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    expected = re.findall(r"# prints: (.*)$", block, re.MULTILINE)
    assert expected
    for text in expected:
        assert text in done.stdout
