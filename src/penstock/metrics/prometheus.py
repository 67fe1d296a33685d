"""The values of a meter for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DependencyError
from penstock.metrics.names import MEASURES, PREFIX

try:
    from prometheus_client import CollectorRegistry, make_wsgi_app
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.registry import Collector
except ImportError as missing:
    msg = "metrics need prometheus-client: pip install 'penstock[run]'"
    raise DependencyError(msg) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from penstock.metrics.meter import Meter


class MeterCollector(Collector):
    """Gives the values of a meter away as they are at a scrape."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Yield a family for each measure that has a value."""
        subjects = list(self._meter.subjects())
        for measure in MEASURES:
            family = CounterMetricFamily if measure.grows else GaugeMetricFamily
            labels = ["pipeline", "query", *([measure.label] if measure.label else [])]
            metric = family(PREFIX + measure.name, measure.meaning, labels=labels)
            for subject in subjects:
                for (name, label), value in subject.values.items():
                    if name == measure.name:
                        own = [label] if measure.label else []
                        metric.add_metric([subject.pipeline, subject.query, *own], value)
            if metric.samples:
                yield metric


def application(meter: Meter) -> Callable[..., Iterable[bytes]]:
    """Return what answers a scrape."""
    return make_wsgi_app(registry(meter))


def registry(meter: Meter) -> CollectorRegistry:
    """Return a registry of this meter alone, apart from what else the process measures."""
    own = CollectorRegistry(auto_describe=False)
    own.register(MeterCollector(meter))
    return own
