"""What metrics and traces add to one acquisition and its release, without a server: python -m bench.observe"""

from __future__ import annotations

import time
from collections.abc import Callable

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NoOpTracerProvider
from prometheus_client import CollectorRegistry

from handfast.events import Event
from handfast.observe import Metrics
from handfast.observe.opentelemetry import OpenTelemetry
from handfast.observe.prometheus import PrometheusMetrics

PAIRS = 20_000
ROUNDS = 5


def measured(listener: Callable[[object, Event], None]) -> float:
    """Microseconds of CPU for the two events of an uncontended lock: the best of some rounds."""
    subject, best = object(), float("inf")
    for start in range(0, ROUNDS * PAIRS, PAIRS):
        acquired = [Event("acquired", "orders:42", token=i) for i in range(start, start + PAIRS)]
        released = [event._replace(kind="released", seconds=1e-4) for event in acquired]
        began = time.process_time()
        for pair in zip(acquired, released, strict=True):
            for event in pair:
                listener(subject, event)
        best = min(best, (time.process_time() - began) / PAIRS * 1e6)
    return best


def main() -> None:
    meters = MeterProvider([InMemoryMetricReader()])
    candidates: dict[str, Metrics] = {
        "Prometheus": PrometheusMetrics(registry=CollectorRegistry()),
        "Prometheus, names by pattern": PrometheusMetrics(names=["cache:*", "orders:*"], registry=CollectorRegistry()),
        "OpenTelemetry, metrics": OpenTelemetry(meter_provider=meters, tracer_provider=NoOpTracerProvider()),
        "OpenTelemetry, metrics, unsampled spans": OpenTelemetry(
            meter_provider=meters, tracer_provider=TracerProvider(ALWAYS_OFF)
        ),
        "OpenTelemetry, metrics and spans": OpenTelemetry(meter_provider=meters, tracer_provider=TracerProvider()),
    }
    for name, metrics in candidates.items():
        print(f"{name:40} {measured(metrics._on_event):6.1f} µs")


if __name__ == "__main__":
    main()
