"""The values of a meter for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import DependencyError
from penstock.metrics.names import BY_NAME, MEASURES, PREFIX

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
        families = {}
        for measure in MEASURES:
            family = CounterMetricFamily if measure.grows else GaugeMetricFamily
            labels = ["pipeline", "query", *([measure.label] if measure.label else [])]
            families[measure.name] = family(PREFIX + measure.name, measure.meaning, labels=labels)
        for subject in self._meter.subjects():
            named = [subject.pipeline, subject.query]
            for (name, label), value in subject.values.items():
                families[name].add_metric([*named, label] if BY_NAME[name].label else named, value)
        yield from (metric for metric in families.values() if metric.samples)


def application(meter: Meter) -> Callable[..., Iterable[bytes]]:
    """Return what answers a scrape."""
    return make_wsgi_app(registry(meter))


def registry(meter: Meter) -> CollectorRegistry:
    """Return a registry of this meter alone, apart from what else the process measures."""
    own = CollectorRegistry(auto_describe=False)
    own.register(MeterCollector(meter))
    return own
