"""Metrics and spans for OpenTelemetry: `pip install "handfast[otel]"`.

A span `handfast.wait` shows how long a thread or task waited for a lock, and a span `handfast.hold` how long it held it.
Both are children of the span in which the lock was acquired.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import Span, Status, StatusCode, TracerProvider
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(f"{error}: pip install 'handfast[otel]'", name=error.name) from None

from handfast import __version__
from handfast.events import Event
from handfast.observe import BUCKETS, METRICS, Metric, Metrics, Names, reason_of

__all__ = ["OpenTelemetry"]

SCOPE: Final = "handfast"


class OpenTelemetry(Metrics):
    """The metrics and spans of any number of clients, blocking or asyncio.

        telemetry = OpenTelemetry()
        telemetry.observe(client)

    names: Which attribute of a metric a lock's name becomes; see `handfast.observe.Names`. By default none. Spans always
        have the whole name.
    meter_provider, tracer_provider: By default the global ones. A provider without exporters costs little: to have
        metrics only, pass `opentelemetry.trace.NoOpTracerProvider()`.
    """

    def __init__(
        self,
        *,
        names: Names = None,
        meter_provider: MeterProvider | None = None,
        tracer_provider: TracerProvider | None = None,
    ) -> None:
        super().__init__(names)
        self._tracer = trace.get_tracer(SCOPE, __version__, tracer_provider)
        meter = metrics.get_meter(SCOPE, __version__, meter_provider)
        self._instruments = {metric: self._made(metric, meter) for metric in METRICS}
        self._holding: dict[tuple[str, int | None], list[Span]] = {}
        self._holding_lock = threading.RLock()  # reentrant: a destructor may release a lease while it is held

    def _made(self, metric: Metric, meter: metrics.Meter) -> Any:
        name = f"handfast.{metric.name}"
        if metric.kind == "counter":
            return meter.create_counter(name, description=metric.about)
        if metric.kind == "histogram":
            return meter.create_histogram(name, metric.unit, metric.about, explicit_bucket_boundaries_advisory=BUCKETS)
        # The leases of several processes add up; the states of a node do not.
        make = meter.create_observable_up_down_counter if metric.of_lock else meter.create_observable_gauge
        return make(name, [self._reader(metric)], description=metric.about)

    def _reader(self, metric: Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(options: CallbackOptions) -> Iterable[Observation]:
            levels = list(self._levels.items())
            return [
                Observation(value, self._attributes(metric, labels)) for (of, labels), value in levels if of is metric
            ]

        return read

    def _attributes(self, metric: Metric, labels: tuple[str, ...]) -> dict[str, str]:
        # Named as in Prometheus, without a prefix, so that one Grafana dashboard serves both.
        return dict(zip(self.label_names(metric), labels, strict=True))

    def add(self, metric: Metric, labels: tuple[str, ...]) -> None:
        self._instruments[metric].add(1, self._attributes(metric, labels))

    def record(self, metric: Metric, seconds: float, labels: tuple[str, ...]) -> None:
        self._instruments[metric].record(seconds, self._attributes(metric, labels))

    def level(self, metric: Metric, value: int, labels: tuple[str, ...]) -> None:
        """Levels are read when they are exported."""

    # -- spans, in the thread or task of the event: its current span is their parent

    def _on_event(self, subject: object, event: Event) -> None:
        super()._on_event(subject, event)
        if event.kind == "acquired":
            self._begin_hold(event)
        elif event.kind in ("released", "lost"):
            self._end_hold(event)
        elif event.kind == "renewal_failed":
            self._note_failure(event)
        elif event.kind == "waiting_ended":
            self._waited(event)

    def _begin_hold(self, event: Event) -> None:
        span = self._tracer.start_span("handfast.hold", attributes=_described(event))
        with self._holding_lock:
            self._holding.setdefault((event.name, event.token), []).append(span)

    def _end_hold(self, event: Event) -> None:
        key = (event.name, event.token)
        with self._holding_lock:
            spans = self._holding.get(key)
            span = spans.pop() if spans else None
            if not spans:
                self._holding.pop(key, None)
        if span is None:  # it began before this client was observed
            return
        span.set_attribute("handfast.outcome", event.kind)
        if event.kind == "lost":
            span.set_attribute("handfast.reason", reason_of(event.outcome))
            span.set_status(Status(StatusCode.ERROR, event.outcome))
        span.end()

    def _note_failure(self, event: Event) -> None:
        with self._holding_lock:
            spans = list(self._holding.get((event.name, event.token), ()))
        for span in spans:
            span.add_event("renewal_failed", {"handfast.reason": event.outcome, "handfast.node": event.node})

    def _waited(self, event: Event) -> None:
        ended = time.time_ns()
        began = ended - round(event.seconds * 1e9)
        span = self._tracer.start_span("handfast.wait", attributes=_described(event), start_time=began)
        span.set_attribute("handfast.outcome", event.outcome)
        if event.outcome != "acquired":
            span.set_status(Status(StatusCode.ERROR, event.outcome))
        span.end(ended)

    def _forked(self) -> None:
        super()._forked()
        self._holding_lock = threading.RLock()
        self._holding = {}


def _described(event: Event) -> dict[str, str | int]:
    described: dict[str, str | int] = {"handfast.name": event.name, "handfast.who": event.who}
    if event.token is not None:
        described["handfast.token"] = event.token
    return described
