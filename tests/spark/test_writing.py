"""Spark's calls to the sink, made by hand: what a checkpoint tells a driver that is not the only one."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import CheckpointMismatch, Fenced
from penstock.options import parse
from penstock.sink.sink import Sink
from penstock.spark import writing
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.datasource import PenstockDataSource, PenstockStreamWriter
from penstock.spark.fused import LIVE_SINK
from penstock.spark.writing import Bound
from penstock.storage import LocalStorage
from tests.support.counting import CountingStorage

TEXT = pa.schema([("value", pa.string())])


class Query:
    """A checkpoint as Spark keeps it, and the sink of its query."""

    def __init__(self, root: Path) -> None:
        self.offsets = root / "checkpoint" / "offsets"
        self.offsets.mkdir(parents=True)
        (root / "checkpoint" / "metadata").write_text('{"id": "q"}')
        given = {"path": str(root / "out"), "checkpointLocation": str(root / "checkpoint")}
        self.options = parse(LIVE_SINK, given, what="sink")
        self.sink: Sink = writing.sink(self.options, TEXT, "q")

    def plan(self, number: int) -> None:
        """Have Spark plan a batch."""
        (self.offsets / str(number)).write_text(f"v1\n{{}}\n{json.dumps({'offset': number})}")

    def run(self, number: int, owner: str) -> None:
        """Have a driver plan, write and commit a batch of one row."""
        self.plan(number)
        batch = Checkpoint(str(self.offsets.parent)).batch("q", number)
        begun = self.sink.begin(owner, batch)
        self.sink.commit(batch, [self.sink.write(begun, "q", number, 0, TEXT, [b"row\n"])])


@pytest.fixture
def query(tmp_path: Path) -> Query:
    made = Query(tmp_path)
    made.run(0, "first")
    made.plan(1)
    return made


def test_driver_that_is_overtaken_before_its_batch_begins_is_fenced(
    query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read the checkpoint, stands still in the sync that follows, and finds the sink further on: that is `Fenced`."""
    persist = Checkpoint.persist

    def stand_still(self: Checkpoint, number: int) -> None:
        persist(self, number)
        for later in range(1, 4):
            query.run(later, "second")

    monkeypatch.setattr(Checkpoint, "persist", stand_still)
    with pytest.raises(Fenced, match="batch 1 of query q is not the last one"):
        writing.begin(query.sink, Bound.of(query.options))
    assert query.sink.ledger.head().owner == "second"


def test_restored_checkpoint_is_not_fenced(query: Query) -> None:
    """A checkpoint that is older than the output, and that nobody moves, is a mismatch."""
    for later in range(1, 4):
        query.run(later, "second")
    for later in range(2, 4):
        (query.offsets / str(later)).unlink()
    with pytest.raises(CheckpointMismatch, match="restored from an older copy"):
        writing.begin(query.sink, Bound.of(query.options))


class Process:
    """The processes of a query's driver and its tasks, as Spark makes the objects in them; the storage counts."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = -1
        self.storage = CountingStorage(LocalStorage(), str(root))
        monkeypatch.setattr("penstock.spark.writing.locate", self._locate)
        monkeypatch.setattr("penstock.spark.checkpoint.locate", self._locate)
        monkeypatch.setattr("penstock.spark.writing.task_batch", lambda: ("q", self.number, 0))
        monkeypatch.setattr("penstock.spark.keeper._start", lambda _: 0)
        self.checkpoint = root / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id": "q"}')
        options = {"path": str(root / "out"), "checkpointLocation": str(self.checkpoint), "rollRows": "3"}
        self.source = PenstockDataSource(options)

    def _locate(self, location: str, **_: object) -> tuple[Any, str]:
        return self.storage, location

    def batch(self, *rows: str) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """Run the next batch; return what its beginning and its commit asked of the storage."""
        self.number += 1
        (self.checkpoint / "offsets" / str(self.number)).write_text(f"v1\n{{}}\n{json.dumps({'offset': self.number})}")
        self.storage.asked.clear()
        begins = self._writer()
        begins.__getstate__()  # Spark pickles it
        begun = self.storage.asked.copy()
        message = begins.write(iter([pa.record_batch({"value": list(rows)}, schema=TEXT)]))
        self.storage.asked.clear()
        self._writer().commit([message], self.number)
        return begun, self.storage.asked.copy()

    def _writer(self) -> PenstockStreamWriter:
        return self.source.streamWriter(StructType([StructField("value", StringType())]), overwrite=False)


LEDGER = "out/_penstock/q/ledger"


def test_a_batch_reads_the_checkpoint_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is read when the batch begins, each file once, and travels with the batch; a commit reads none of it."""
    process = Process(tmp_path, monkeypatch)
    for rows in (("a",), ("b", "c"), ("d", "e", "f", "g")):
        begun, committed = process.batch(*rows)
    assert (begun["names", "checkpoint/offsets"], begun["read", "checkpoint"]) == (1, 1)
    assert begun["read", "checkpoint/offsets"] == 1
    assert not [place for _, place in committed if place.startswith("checkpoint")]


def test_a_batch_lists_the_ledger_once_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once when it begins, once before the decision, once behind the put; and the last record is read in the first two."""
    process = Process(tmp_path, monkeypatch)
    for number, rows in enumerate((("a",), ("b", "c"), ("d", "e", "f", "g"), ())):
        begun, committed = process.batch(*rows)
        if number:  # the first one claims the sink
            assert (begun["names", LEDGER], begun["read", LEDGER]) == (1, 1)
        assert (committed["names", LEDGER], committed["read", LEDGER]) == (2, 1)
        assert committed["names", "out/_penstock/q/staging"] == 1
