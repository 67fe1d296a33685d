"""What a listener makes of Spark's reports about a query and of the counts of the query's processes, without Spark."""

from __future__ import annotations

import json
import tempfile
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from penstock.metrics.meter import Meter
from penstock.query import measured
from penstock.spark import calls
from penstock.spark.calls import AsyncMap, CallCounts
from penstock.spark.measuring import MeasuringListener
from penstock.tally import Counted

if TYPE_CHECKING:
    from pathlib import Path

LOG_OFFSET = {"v": 1, "log": "x", "position": "3:1024", "cuts": []}
OURS = {"read": [2, 20], "left": [1, 10], "sum": "x"}


class Session:
    """Stands for a session whose queries have other sinks than ours."""

    streams = SimpleNamespace(get=lambda _: None)


class Listener:
    """A listener, and the query whose events it receives."""

    def __init__(self) -> None:
        self.session = Session()
        self.meter = Meter()
        self.listener = MeasuringListener(cast("Any", self.session), self.meter)

    def start(self) -> None:
        """Start the query."""
        self.listener.onQueryStarted(cast("Any", SimpleNamespace(id="q")))

    def batch(self, number: int, *offsets: Any) -> None:
        """End a batch that has read up to these offsets."""
        sources = [SimpleNamespace(endOffset=json.dumps(offset)) for offset in offsets]
        progress = SimpleNamespace(id="q", batchId=number, sources=sources, durationMs={"addBatch": 500})
        self.listener.onQueryProgress(cast("Any", SimpleNamespace(progress=progress)))

    def end(self) -> None:
        """End the query."""
        self.listener.onQueryTerminated(cast("Any", SimpleNamespace(id="q")))

    @property
    def values(self) -> dict[str, float]:
        """Return what a monitor learns about the query, with labels after a blank."""
        subjects = [subject.values for subject in self.meter.subjects() if subject.query == "q"]
        return {" ".join(filter(None, key)): value for values in subjects for key, value in values.items()}


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Listener:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return Listener()


def test_a_stream_of_a_log_says_how_far_it_is(listener: Listener) -> None:
    """A query that reads a log is one of ours, and its position is reported; about a query with nothing of ours nothing is."""
    listener.batch(0, LOG_OFFSET)
    assert {name: listener.values[name] for name in ("log_segment", "log_offset", "batch")} == {
        "log_segment": 3, "log_offset": 1024, "batch": 0
    }  # fmt: skip
    other = Listener()
    other.batch(0, {"topic": {"0": 5}}, None, 7)
    assert other.values == {}


def test_a_query_of_topics_is_told(listener: Listener) -> None:
    """A query with our topic source is one of ours, whatever its sink; its count of offsets is reported if the offset has it."""
    listener.batch(0, {"orders": {"0": 5}, "@penstock": {"v": 1, "ids": {}, "from": {}}})
    assert (listener.values["batches"], listener.values.get("input_offsets")) == (1, None)
    listener.batch(1, {"orders": {"0": 5}, "@penstock": {"v": 1, "ids": {}, "from": {}, "read": 5, "left": 2}})
    assert (listener.values["input_offsets"], listener.values["left_offsets"]) == (5, 2)


def test_calls_alone_make_a_query_ours(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of a query with other sources and another sink are reported like those of any query."""
    monkeypatch.setattr(calls, "counts_of", lambda query: CallCounts(rows=7, failed=2) if query == "q" else None)
    listener.batch(0, {"topic": {"0": 5}})
    assert (listener.values["calls rows"], listener.values["calls failed"], listener.values["batches"]) == (7, 2, 1)


def test_what_processes_count_is_added_up_once(listener: Listener) -> None:
    """Counts of tasks and commits are reported as they grow, also across an end and a restart; names unknown to monitors are left out."""
    listener.start()
    measured.note(
        "q", [("write", {"syncs": 2, "sync_seconds": 0.5, "calls rows": 3, "calls late": 1}), ("commit", {"syncs": 1})]
    )
    listener.batch(0, OURS)
    listener.batch(1, OURS)
    told = {"syncs write": 2, "sync_seconds write": 0.5, "syncs commit": 1, "calls rows": 3}
    assert {name: value for name, value in listener.values.items() if name.startswith(("sync", "calls"))} == told
    measured.note("q", [("commit", {"syncs": 4})])
    with measured._fact("q").locked():  # held by a stalled process
        listener.batch(2, OURS)
    assert listener.values["syncs commit"] == 1
    listener.batch(3, OURS)
    assert listener.values["syncs commit"] == 5
    listener.end()
    assert listener.values == measured.counts("q") == {}
    listener.start()
    measured.note("q", [("commit", {"syncs": 1})])
    listener.batch(4, OURS)
    assert listener.values["syncs commit"] == 1


def test_a_query_that_ran_before_is_counted_from_then_on(listener: Listener) -> None:
    """A query that was started before anybody measured it is counted from its next batch on."""
    measured.note("q", [("commit", {"syncs": 1})])
    listener.batch(5, OURS)
    measured.note("q", [("commit", {"syncs": 2})])
    listener.batch(6, OURS)
    assert listener.values["syncs commit"] == 2


async def doubled(row: Any) -> dict[str, int]:  # a user's call
    return {"twice": 2 * row.n}


def test_calls_of_an_ingest_are_counted_in_its_tasks() -> None:
    """In an ingest, where Spark adds nothing up, calls are counted with the task's report; in a query they are not counted twice."""
    counted = Counted()
    reported: list[dict[str, int]] = []
    transform = AsyncMap(doubled, schema="twice bigint")
    rows = pa.record_batch({"n": [1, 2, 3]})
    assert sum(batch.num_rows for batch in transform.stream(iter([rows]), operator="x", otherwise="t")) == 3
    amounts = counted.amounts()
    assert (amounts["calls rows"], amounts["calls calls"]) == (3, 3)
    list(transform.stream(iter([rows]), operator="x", otherwise="t", report=reported.append))
    assert (counted.amounts(), len(reported)) == (amounts, 1)
