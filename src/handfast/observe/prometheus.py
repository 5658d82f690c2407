"""Metrics for Prometheus: `pip install "handfast[prometheus]"`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram
    from prometheus_client import Metric as Family
    from prometheus_client.registry import Collector
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'handfast[prometheus]'", name=error.name) from None

from handfast.observe import BUCKETS, HELD, METRICS, NODE_QUARANTINED, NODE_UP, WAITING, Metric, Metrics, Names

__all__ = ["PrometheusMetrics"]

SUM_OF_PROCESSES: Final[dict[Metric, Any]] = {
    HELD: "livesum",
    WAITING: "livesum",
    NODE_UP: "livemin",
    NODE_QUARANTINED: "livemax",
}
"""How to combine the levels of processes that share one endpoint (PROMETHEUS_MULTIPROC_DIR)."""


class PrometheusMetrics(Metrics, Collector):
    """The metrics of any number of clients, blocking or asyncio, in a registry.

        metrics = PrometheusMetrics()
        metrics.observe(client)

    names: Which label a lock's name becomes; see `handfast.observe.Names`. By default none.
    registry: Where they are registered; by default in that of prometheus_client, which its exporters serve.
    """

    def __init__(self, *, names: Names = None, registry: CollectorRegistry = REGISTRY) -> None:
        super().__init__(names)
        # The metrics are not registered one by one: at a fork, no scrape may hold the lock of one. See collect().
        self._metrics = {metric: self._made(metric) for metric in METRICS}
        self._children: dict[tuple[Metric, tuple[str, ...]], Any] = {}
        registry.register(self)

    def _made(self, metric: Metric) -> Counter | Gauge | Histogram:
        name = "handfast_" + metric.name.replace(".", "_") + ("_seconds" if metric.unit == "s" else "")
        labels = self.label_names(metric)
        if metric.kind == "counter":
            return Counter(name, metric.about, labels, registry=None)
        if metric.kind == "histogram":
            return Histogram(name, metric.about, labels, registry=None, buckets=BUCKETS)
        return Gauge(name, metric.about, labels, registry=None, multiprocess_mode=SUM_OF_PROCESSES[metric])

    def collect(self) -> Iterable[Family]:
        """Called by the registry for each scrape."""
        with self._attended:
            families = [family for metric in self._metrics.values() for family in metric.collect()]
        self._empty_queue()
        return families

    def describe(self) -> Iterable[Family]:
        """Makes the registry refuse a second object at once."""
        return [family for metric in self._metrics.values() for family in metric.describe()]

    def add(self, metric: Metric, labels: tuple[str, ...]) -> None:
        self._child(metric, labels).inc()

    def record(self, metric: Metric, seconds: float, labels: tuple[str, ...]) -> None:
        self._child(metric, labels).observe(seconds)

    def level(self, metric: Metric, value: int, labels: tuple[str, ...]) -> None:
        self._child(metric, labels).set(value)

    def _child(self, metric: Metric, labels: tuple[str, ...]) -> Any:
        child = self._children.get((metric, labels))
        if child is None:
            made = self._metrics[metric]
            child = self._children[metric, labels] = made.labels(*labels) if labels else made
        return child
