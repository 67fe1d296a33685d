"""What monitors receive: the same names everywhere, in formats that other programs read, without waiting for anything."""

from __future__ import annotations

import gzip
import json
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.exposition import choose_encoder
from prometheus_client.parser import text_string_to_metric_families

from penstock import clock, tally, wal
from penstock.cli.run.logs import _extra
from penstock.cli.run.measured import Checks, Measuring
from penstock.cli.run.status import Phase, PipelineStatus, Told
from penstock.clock import SECOND_NS
from penstock.errors import Fenced, OptionError, StorageError
from penstock.ingestion.ingested import Ingested
from penstock.ingestion.measures import left_by_partition, of_offset, offsets_in
from penstock.metrics.meter import Meter
from penstock.metrics.names import MEASURES, PREFIX
from penstock.metrics.prometheus import ScrapedPage, application, registry
from penstock.metrics.server import address, serving
from penstock.testing.clock import FakeClock
from tests.docs.markdown import DOCS

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.cli.run.fleet import Fleet

STATE = Ingested(
    3, 5, 500, 2, 20, 70, 4, 40, 6, query="q-1", open_parts=1, open_since_ns=7 * SECOND_NS, aside_records=9
)


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310 - an address of this test
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a scrape, as Prometheus' own parser reads them: (name, labels in order) -> value."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told(meter: Meter, name: str = "logs") -> Told:
    watcher = Measuring(meter)
    first = PipelineStatus(name)
    watcher.changed(first, first)
    return Told((watcher,), first)


@pytest.mark.slow
def test_a_scrape_has_what_a_pipeline_says() -> None:
    """Prometheus' own parser reads a scrape with its counters and gauges and the counts of the ingest; missing values are left out."""
    meter = Meter()
    pipeline = told(meter)
    pipeline.progress(STATE)
    pipeline.phase(Phase.RUNNING)
    meter.batch("q-1", {"addBatch": 0.5, "triggerExecution": 0.75})
    meter.batch("q-1", {"addBatch": 0.25, "triggerExecution": 0.5})
    with serving("127.0.0.1:0", meter) as url:
        status, text = get(f"{url}/metrics")
    samples = scraped(text)
    assert status == 200
    assert samples["penstock_rows_total", "logs", "q-1"] == 70
    assert samples["penstock_left_files", "logs", "q-1"] == 2
    assert samples["penstock_aside_total", "record", "logs", "q-1"] == 9
    assert samples["penstock_phase_seconds_total", "addBatch", "logs", "q-1"] == 0.75
    assert samples["penstock_batches_total", "logs", "q-1"] == 2
    assert samples["penstock_phase", "running", "logs", "q-1"] == 1
    assert samples["penstock_open_since_timestamp_seconds", "logs", "q-1"] == 7
    assert not any(name[0] == "penstock_oldest_left_timestamp_seconds" for name in samples)
    kinds = {family.name: family.type for family in text_string_to_metric_families(text)}
    assert kinds["penstock_rows"] == "counter"
    assert kinds["penstock_left_files"] == "gauge"


def test_topics_say_how_far_after_each_partition_is() -> None:
    """Offsets are reported if there are any, lags per partition; a partition without lag disappears, and file pipelines have none."""
    meter = Meter()
    pipeline = told(meter)
    pipeline.progress(STATE)
    [subject] = meter.subjects()
    assert not {name for name, _ in subject.values} & {"input_offsets", "left_offsets", "left_partition_offsets"}
    for left in ({"orders-0": 7, "orders-1": 2}, {"orders-1": 5}):
        pipeline.progress(replace(STATE, input_offsets=30, left_offsets=sum(left.values()), left_by_partition=left))
        [subject] = meter.subjects()
        assert subject.values["left_offsets", ""] == sum(left.values())
        assert {key[1]: at for key, at in subject.values.items() if key[0] == "left_partition_offsets"} == left
    told_line = _extra(pipeline.status)
    assert (told_line["input_offsets"], told_line["left_offsets"]) == (30, 5)
    assert "left_files" not in told_line


def test_every_measure_has_its_name_in_the_documents() -> None:
    """The page on monitoring has every name, as Prometheus shows it, with its meaning."""
    page = (DOCS / "monitoring.md").read_text(encoding="utf-8")
    for measure in MEASURES:
        assert f"| `{PREFIX}{measure.name}{'_total' if measure.grows else ''}` |" in page, measure.name
        assert measure.meaning.rstrip(".") in page, measure.name


def test_failures_and_fences_are_counted() -> None:
    """Failures count by code and return to 0 on recovery; the counts of errors, retries and fences of this command stay."""
    meter = Meter()
    pipeline = told(meter)
    pipeline.failed(StorageError("x"), "x")
    pipeline.retried()
    pipeline.failed(Fenced("x"), "x")
    pipeline.recovered()
    [subject] = meter.subjects()
    assert {key: subject.values[key] for key in subject.values if key[0] in {"errors", "failures", "retries", "fenced"}} == {
        ("errors", "PST-500"): 1, ("errors", "PST-301"): 1, ("failures", ""): 0, ("retries", ""): 1, ("fenced", ""): 1,
    }  # fmt: skip


FORMATS = [
    "text/plain",
    "application/openmetrics-text; version=1.0.0",
    "application/openmetrics-text; version=1.0.0; escaping=allow-utf-8",
]


@pytest.mark.parametrize("accepted", FORMATS)
def test_a_scrape_is_what_prometheus_client_writes(accepted: str) -> None:
    """Only the numbers are new in each scrape, but each is, byte for byte, what prometheus-client makes of the same values."""
    meter, encoder = Meter(), choose_encoder(accepted)[0]
    page = ScrapedPage(encoder)
    names = ["logs", 'a"} 1\n# EOF\npenstock_rows_total{x="\\', "ünï 0.0\r", ""]
    pipelines = {name: told(meter, name) for name in names}
    for step in range(3):
        for name, pipeline in pipelines.items():
            pipeline.progress(replace(STATE, query=f"q {name}", rows=10**step, left_bytes=0 if step else 1 << 60))
            meter.batch(f"q {name}", {"addBatch": 0.1 + step, f"phase {step}": float("nan")})
        assert page.text(meter.subjects()) == encoder(registry(meter))
        meter.forget(names[step])
        assert page.text(meter.subjects()) == encoder(registry(meter))
    assert ScrapedPage(encoder).text(()) == encoder(registry(Meter()))


@pytest.mark.slow
def test_a_scrape_costs_a_hundredth_of_a_core() -> None:
    """One scrape per second of fifty pipelines that all have changed, compressed, costs less than a hundredth of a core."""
    meter = Meter()
    pipelines = [told(meter, f"p{number}") for number in range(50)]
    costs = []
    with serving("127.0.0.1:0", meter) as url:
        request = urllib.request.Request(f"{url}/metrics", headers={"Accept-Encoding": "gzip"})  # noqa: S310 - an address of this test
        for step in range(12):
            for number, pipeline in enumerate(pipelines):
                pipeline.progress(replace(STATE, query=f"q{number}", batch=step, rows=step, input_files=step))
                meter.batch(f"q{number}", {"addBatch": 0.5, "walCommit": 0.25, "triggerExecution": 0.75})
            begin = time.process_time()
            with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310 - an address of this test
                body = response.read()
            costs.append(time.process_time() - begin)
    assert scraped(gzip.decompress(body).decode())["penstock_rows_total", "p49", "q49"] == 11
    assert sorted(costs)[2] < 0.01


def test_logs_of_the_process_are_told(tmp_path: Path) -> None:
    """What a process appends to logs is reported without a query: records, their bytes, flushes, and the waits for the disk."""
    before = tally.of_process()
    with wal.Writer(tmp_path / "log") as writer:
        writer.append_many([b"one", b"three"])
        writer.flush()
    meter = Meter(tally.of_process)
    [subject] = meter.subjects()
    grown = {
        name: value - before.get(name[0], 0) for name, value in subject.values.items() if name[0].startswith("log_")
    }
    assert (subject.pipeline, subject.query) == ("", "")
    assert grown == {("log_records", ""): 2, ("log_bytes", ""): 8, ("log_flushes", ""): 1}
    assert subject.values["syncs", "process"] >= 2
    assert b'penstock_log_records_total{pipeline="",query=""}' in ScrapedPage(choose_encoder("")[0]).text(
        meter.subjects()
    )


@pytest.mark.slow
def test_hostile_names_stay_values() -> None:
    """A label with quotes, line breaks and text that looks like a sample is read back unchanged, and adds no sample."""
    meter = Meter()
    name = 'a"} 1\npenstock_rows_total{x="\\'
    meter.set(name, {"rows": 1.0})
    with serving(":0", meter) as url:
        samples = scraped(get(f"{url}/metrics")[1])
    assert samples == {("penstock_rows_total", "", name): 1.0}


def test_a_pipeline_that_is_gone_is_told_no_more() -> None:
    """After a reload without the pipeline, or the end of a query, none of its values is left that could pass for a live one."""
    meter = Meter()
    watcher = Measuring(meter)
    watcher.changed(PipelineStatus("logs"), PipelineStatus("logs", state=STATE))
    meter.set("q-2", {"rows": 1.0})
    watcher.gone("logs")
    meter.forget("q-2")
    assert list(meter.subjects()) == []


def test_what_spark_tells_before_the_pipeline_is_the_pipelines() -> None:
    """If Spark reports a batch before the pipeline knows its query's id, the batch is counted once, for the pipeline."""
    meter = Meter()
    pipeline = told(meter)
    meter.set("q-1", {"rows": 5.0})
    meter.batch("q-1", {"addBatch": 1.0})
    pipeline.progress(STATE)
    meter.batch("q-1", {"addBatch": 1.0})
    [subject] = meter.subjects()
    assert (subject.pipeline, subject.query) == ("logs", "q-1")
    assert subject.values["phase_seconds", "addBatch"] == 2
    assert subject.values["rows", ""] == 70


def test_ports_that_are_taken() -> None:
    """An address in use is refused, and the error says what to do, before anything starts."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(OptionError, match="choose another port"), serving(f":{port}", Meter(), name="--metrics"):
            pass


@pytest.mark.parametrize("text", ["", "9108", ":", ":x", ":70000", "host:", ":-1", ":²"])
def test_addresses_that_are_none(text: str) -> None:
    """For an invalid address the error shows the expected form."""
    with pytest.raises(OptionError, match="expected HOST:PORT"):
        address(text, name="--metrics")


def test_without_a_host_it_is_this_machine() -> None:
    """An address without a host means only the loopback; an IPv6 address has brackets."""
    assert address(":9108", name="x") == ("127.0.0.1", 9108)
    assert address("0.0.0.0:1", name="x") == ("0.0.0.0", 1)  # noqa: S104 - what a user may ask for
    assert address("[::1]:1", name="x") == ("::1", 1)


def write(meter: Meter) -> None:
    for number in range(5000):
        meter.set(f"p{number % 50}", {"rows": number})


@pytest.mark.slow
def test_scrapes_wait_for_nobody_and_nobody_for_them() -> None:
    """While one client holds its connection open silently, other clients are answered, and writers are not delayed."""
    meter = Meter()
    for number in range(50):
        told(meter, f"p{number}").progress(replace(STATE, query=f"q{number}"))
    with serving("127.0.0.1:0", meter) as url, socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))):
        get(f"{url}/metrics")
        begin = time.process_time()
        writer = threading.Thread(target=write, args=(meter,))
        writer.start()
        assert get(f"{url}/metrics")[0] == 200
        writer.join()
        used = time.process_time() - begin
    assert used < 1


def test_offsets_of_topics_are_told_where_there_are_some() -> None:
    """A topic pipeline reports its offsets, a file pipeline does not: 0 would be a claim."""
    meter = Meter()
    told(meter, "files").progress(STATE)
    told(meter, "topics").progress(replace(STATE, query="q-2", input_offsets=9, left_offsets=1))
    values = {subject.pipeline: subject.values for subject in meter.subjects()}
    assert ("input_offsets", "") not in values["files"]
    assert (values["topics"]["input_offsets", ""], values["topics"]["left_offsets", ""]) == (9, 1)


@pytest.mark.parametrize("query", ["", "name[]=penstock_rows_total", "%ff"])
def test_who_asks_oddly_is_answered(query: str) -> None:
    """Invalid versions, or endlessly many, get the plain format or their own; only a few pages are kept."""
    meter = Meter()
    meter.set("q", {"rows": 1.0})
    answer = application(meter)
    odd = [
        "application/openmetrics-text; version=abc",
        "text/plain; version=",
        ";;,,=",
        "application/openmetrics-text; escaping=x",
    ]
    statuses: list[str] = []
    for accepted in [*odd, *(f"application/openmetrics-text; version=1.0.{number}" for number in range(30))]:
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/metrics", "QUERY_STRING": query, "HTTP_ACCEPT": accepted}
        [body] = answer(environ, lambda status, _: statuses.append(status))
        assert b'penstock_rows_total{pipeline="",query="q"} 1.0' in body
    assert set(statuses) == {"200 OK"}
    pages = next(cell.cell_contents for cell in answer.__closure__ or () if isinstance(cell.cell_contents, dict))
    assert len(pages) <= 8


@pytest.mark.slow
def test_only_what_is_asked_for() -> None:
    """Other paths are not found, and only reads are answered."""
    with serving("127.0.0.1:0", Meter()) as url:
        assert get(f"{url}/")[0] == 404
        assert get(f"{url}/health") == (200, '{"ok": true}')
        request = urllib.request.Request(f"{url}/health", data=b"x", method="POST")  # noqa: S310 - an address of this test
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(request, timeout=10)  # noqa: S310 - an address of this test
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as response:  # noqa: S310 - an address of this test
            assert response.headers["Content-Type"].partition(";")[0] == CONTENT_TYPE_LATEST.partition(";")[0]


def fleet(*statuses: PipelineStatus, stopping: bool = False) -> Fleet:
    return cast("Fleet", SimpleNamespace(statuses=list(statuses), stopping=stopping))


def test_hung_is_told_from_idle_and_from_failing() -> None:
    """A pipeline that should make progress and does not is hung, and named; one that waits for cron, backs off or is done is not."""
    meter = Meter()
    checks = Checks(meter, hung_after=60.0)
    names = {phase: f"p-{phase.value}" for phase in Phase}
    statuses = [PipelineStatus(name, phase=phase) for phase, name in names.items()]
    checks.look_at(fleet(*statuses, PipelineStatus("cron", phase=Phase.WAITING, next_ns=5)))
    machine = FakeClock()
    with clock.use(machine):
        for name in [*names.values(), "cron"]:
            meter.pipeline(name)
            meter.beat(name)
        machine.sleep(61)
        verdict = checks.health()
        hung = {"p-starting", "p-running", "p-waiting", "p-draining"}
        assert (verdict.ok, set(verdict.facts["hung"])) == (False, hung)
        for name in names.values():
            meter.beat(name)
        assert checks.health().ok


class SetClock(FakeClock):
    """A machine whose clock is set, while durations stay as they are."""

    ahead = 0.0

    def now_ns(self) -> int:
        return super().now_ns() + round(self.ahead * SECOND_NS)


@pytest.mark.parametrize("ahead", [86400.0, -86400.0])
def test_a_clock_that_is_set_hangs_nobody_and_hides_nobody(ahead: float) -> None:
    """A machine that wakes up, or sets its clock, was not hung that long; and a hung pipeline is found though the date went back."""
    meter = Meter()
    checks = Checks(meter, hung_after=60.0)
    checks.look_at(fleet(PipelineStatus("p", phase=Phase.RUNNING)))
    machine = SetClock()
    with clock.use(machine):
        meter.pipeline("p", "q")
        meter.beat("p")
        machine.ahead = ahead
        assert checks.health().ok
        machine.sleep(61)
        assert not checks.health().ok


def test_ready_is_when_all_have_looked() -> None:
    """Not ready before the pipelines exist, while one has not looked at its input, or when all of them are ending."""
    checks = Checks(Meter(), hung_after=60.0)
    assert not checks.ready().ok
    begun = [
        PipelineStatus("a", ready=True),
        PipelineStatus("cron", phase=Phase.WAITING, next_ns=5),
        PipelineStatus("b", phase=Phase.FAILED),
    ]
    checks.look_at(fleet(*begun, PipelineStatus("c")))
    assert checks.ready().facts == {"waits_for": ["c"]}
    checks.look_at(fleet(*begun))
    assert checks.ready().ok
    checks.look_at(fleet(*begun, stopping=True))
    assert not checks.ready().ok


def test_opentelemetry_has_the_same_names_and_a_span_a_batch() -> None:
    """OpenTelemetry's own reader gets the same values as Prometheus, and each batch is a span of the batch's duration."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415 - an extra

    from penstock.metrics.telemetry import instrument  # noqa: PLC0415 - an extra

    meter, reader, spans = Meter(), InMemoryMetricReader(), InMemorySpanExporter()
    traces = TracerProvider()
    traces.add_span_processor(SimpleSpanProcessor(spans))
    instrument(meter, MeterProvider([reader]), traces)
    told(meter).progress(STATE)
    meter.batch("q-1", {"triggerExecution": 2.0})
    data: Any = reader.get_metrics_data()
    metrics = {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    [point] = metrics["penstock_rows"].data.data_points
    assert (point.value, dict(point.attributes)) == (70, {"pipeline": "logs", "query": "q-1"})
    assert set(metrics) <= {PREFIX + measure.name for measure in MEASURES}
    [span] = cast("Any", spans.get_finished_spans())
    assert (span.end_time - span.start_time, span.attributes["penstock.pipeline"]) == (2 * SECOND_NS, "logs")


class _Collector(ThreadingHTTPServer):
    """A collector as OpenTelemetry's exporters see it: it accepts what is posted, and the test reads that."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Receiver)
        self.posted: list[tuple[str, bytes]] = []


class _Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        cast("_Collector", self.server).posted.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the base has it
        pass


@pytest.mark.slow
def test_opentelemetry_reaches_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--otel` sends the meter's values and a span per batch by OTLP over HTTP, all of it before the command ends."""
    pytest.importorskip("opentelemetry.sdk")
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2  # noqa: PLC0415 - an extra
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2  # noqa: PLC0415 - an extra

    from penstock.metrics.telemetry import exported  # noqa: PLC0415 - an extra

    collector = _Collector()
    threading.Thread(target=collector.serve_forever, daemon=True).start()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "penstock-test")
    meter = Meter()
    try:
        with exported(meter):
            told(meter).progress(STATE)
            meter.batch("q-1", {"triggerExecution": 2.0})
    finally:
        collector.shutdown()
        collector.server_close()
    metrics: Any = metrics_service_pb2.ExportMetricsServiceRequest()
    traces: Any = trace_service_pb2.ExportTraceServiceRequest()
    for path, body in collector.posted:
        {"/v1/metrics": metrics, "/v1/traces": traces}[path].MergeFromString(body)
    [resource] = metrics.resource_metrics
    values = {metric.name: metric for scope in resource.scope_metrics for metric in scope.metrics}
    [rows] = values["penstock_rows"].sum.data_points
    assert (rows.as_int or rows.as_double, {a.key: a.value.string_value for a in rows.attributes}["pipeline"]) == (
        70,
        "logs",
    )
    assert {a.key: a.value.string_value for a in resource.resource.attributes}["service.name"] == "penstock-test"
    [span] = [span for each in traces.resource_spans for scope in each.scope_spans for span in scope.spans]
    assert (span.name, span.end_time_unix_nano - span.start_time_unix_nano) == ("penstock.batch", 2 * SECOND_NS)


def queries() -> dict[str, list[str]]:
    """Return every query of the dashboard and of the alert rules, by file."""
    dashboard = json.loads((DOCS / "monitoring" / "grafana.json").read_text(encoding="utf-8"))
    panels = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    rules = (DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8")
    return {"grafana.json": panels, "alerts.yml": re.findall(r"^ +expr: (.+)$", rules, re.MULTILINE)}


@pytest.mark.parametrize("file", ["grafana.json", "alerts.yml"])
def test_dashboard_and_alerts_ask_for_what_is_told(file: str) -> None:
    """Every query uses existing measures, each as what it is: `rate` for counters only, and labels that the measure has."""
    told_as = {f"{PREFIX}{measure.name}{'_total' if measure.grows else ''}": measure for measure in MEASURES}
    asked = queries()[file]
    assert len(asked) >= 8
    for query in asked:
        names = re.findall(r"\bpenstock_\w+", query)
        assert names, query
        assert set(names) <= told_as.keys(), query
        assert query.count("(") == query.count(")"), query
        for name, label in re.findall(r"(penstock_\w+)\{(\w+)=", query):
            assert label in {"pipeline", "query", told_as[name].label}, query
        for name in re.findall(r"(?:rate|increase)\((penstock_\w+)", query):
            assert told_as[name].grows, query
        for name in names:
            counted = re.search(rf"(?:rate|increase)\({name}\b", query)
            assert counted or not told_as[name].grows, query


def test_alerts_say_why() -> None:
    """Every rule has a name, a duration, and a sentence that says what to do."""
    rules = (DOCS / "monitoring" / "alerts.yml").read_text(encoding="utf-8").split("- alert: ")[1:]
    assert rules
    for rule in rules:
        assert re.search(r"^\w+\n", rule)
        assert all(f"\n        {key}" in rule for key in ("expr:", "for:", "annotations:"))
        assert re.search(r"description: .{30,}", rule)


def test_queries_over_topics_say_how_far_after_they_are() -> None:
    """The offsets of all our sources in a user's own query count; offsets that are not ours are skipped."""

    def topic(left: int) -> str:
        own = {"v": 1, "ids": {}, "from": {}, "read": 10, "left": left, "behind": {"orders": {"0": left}}}
        return json.dumps({"orders": {"0": 10}, "@penstock": own})

    ends = [topic(3), json.loads(topic(4)), '{"orders": {"0": 10}}', "7", "no JSON", None]
    measured_values = [of_offset(offset) for offset in offsets_in(ends)]
    assert [values for values in measured_values if values] == [
        {"input_offsets": 10, "left_offsets": 3},
        {"input_offsets": 10, "left_offsets": 4},
    ]
    assert left_by_partition(ends) == {"orders-0": 7}
