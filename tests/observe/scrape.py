"""A scrape of a real HTTP endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

__all__ = ["Endpoint", "endpoint"]


class Endpoint:
    def __init__(self, url: str) -> None:
        self.url = url

    def scrape(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """All samples, by name and labels."""
        with urlopen(self.url, timeout=10) as answer:
            text = answer.read().decode()
        families = text_string_to_metric_families(text)
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, /, **labels: str) -> float | None:
        """One sample; None if there is none with exactly these labels."""
        return self.scrape().get((name, frozenset(labels.items())))

    def names(self) -> set[str]:
        return {name for name, _ in self.scrape()}


@contextmanager
def endpoint(registry: CollectorRegistry) -> Iterator[Endpoint]:
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    try:
        yield Endpoint(f"http://127.0.0.1:{server.server_port}/metrics")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
