"""Exports the values of a meter to OpenTelemetry, and a span for each batch.

OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_SERVICE_NAME`, ...) say where they go, unless the caller
passes providers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from penstock import clock
from penstock.clock import SECOND_NS
from penstock.errors import DependencyError
from penstock.metrics.names import MEASURES, PREFIX

try:
    from opentelemetry.metrics import Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
except ImportError as missing:
    msg = "--otel needs OpenTelemetry: pip install 'penstock[otel]'"
    raise DependencyError(msg) from missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from penstock.metrics.meter import Meter
    from penstock.metrics.names import Measure

_SCOPE = "penstock"
_WHOLE = "triggerExecution"


def instrument(meter: Meter, metrics: MeterProvider, traces: TracerProvider) -> None:
    """Register the values with a provider of metrics, and make a span of each batch with a provider of traces."""
    scope = metrics.get_meter(_SCOPE)
    for measure in MEASURES:
        create = scope.create_observable_counter if measure.grows else scope.create_observable_gauge
        create(PREFIX + measure.name, callbacks=[_observed(meter, measure)], description=measure.meaning)
    tracer = traces.get_tracer(_SCOPE)

    def batch(pipeline: str, query: str, phases: Mapping[str, float]) -> None:
        end_ns = clock.now_ns()
        attributes: dict[str, Any] = {"penstock.query": query, "penstock.pipeline": pipeline}
        attributes |= {f"penstock.phase.{phase}": seconds for phase, seconds in phases.items()}
        start_ns = end_ns - round(phases.get(_WHOLE, 0.0) * SECOND_NS)
        tracer.start_span("penstock.batch", start_time=start_ns, attributes=attributes).end(end_ns)

    meter.on_batch(batch)


def _observed(meter: Meter, measure: Measure) -> Callable[[Any], Iterator[Observation]]:
    def observe(_: Any) -> Iterator[Observation]:  # noqa: ANN401 - OpenTelemetry's own options, which nothing here asks for
        for subject in meter.subjects():
            for (name, label), value in subject.values.items():
                if name == measure.name:
                    own = {measure.label: label} if measure.label else {}
                    yield Observation(value, {"pipeline": subject.pipeline, "query": subject.query, **own})

    return observe


@contextmanager
def exported(meter: Meter) -> Iterator[None]:
    """Export metrics and traces by OTLP over HTTP during the block."""
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    metrics = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
    traces = TracerProvider()
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    instrument(meter, metrics, traces)
    try:
        yield
    finally:
        metrics.shutdown()
        traces.shutdown()
