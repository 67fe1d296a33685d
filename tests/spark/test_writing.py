"""Spark's single writer object, made as Spark makes it: how often its processes ask the storage, and what they send to each other."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructField, StructType

from penstock.errors import OptionError
from penstock.ingestion.stage import LIVE_SINK
from penstock.options import parse
from penstock.query.batch import Task
from penstock.spark.database import DatabaseDataSource
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.writer import StreamWriter
from penstock.spark.writing import open_files
from penstock.storage import LocalStorage
from tests.support.counting import CountingStorage

TEXT = pa.schema([("value", pa.string())])
STRUCT = StructType([StructField("value", StringType())])


class Process:
    """The processes of a query's driver and tasks, with objects made as Spark makes them; the storage counts its calls."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.number = -1
        self.storage = CountingStorage(LocalStorage(), str(root))
        for module in ("ingestion.writing", "query.checkpoint", "db.staging"):
            monkeypatch.setattr(f"penstock.{module}.locate", self._locate)
        monkeypatch.setattr("penstock.session.task.task_batch", lambda: Task("q", self.number, 0))
        monkeypatch.setattr("penstock.sink.keeper._start", lambda _: 0)
        self.checkpoint = root / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id": "q"}')
        self.options = {"checkpointLocation": str(self.checkpoint)} | options

    def _locate(self, location: str, **_: object) -> tuple[Any, str]:
        return self.storage, location

    def writer(self) -> StreamWriter:
        """Return the writer that Spark makes from the data source in a new process."""
        source = DatabaseDataSource(self.options) if "url" in self.options else PenstockDataSource(self.options)
        return source.streamWriter(STRUCT, overwrite=False)

    def batch(self, *rows: str) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
        """Run the next batch; return the storage calls of its beginning and of its commit."""
        self.number += 1
        (self.checkpoint / "offsets" / str(self.number)).write_text(f"v1\n{{}}\n{json.dumps({'offset': self.number})}")
        self.storage.asked.clear()
        begins = self.writer()
        begins.__getstate__()  # Spark pickles it
        begun = self.storage.asked.copy()
        message = begins.write(iter([pa.record_batch({"value": list(rows)}, schema=TEXT)]))
        self.storage.asked.clear()
        self.writer().commit([message, None], self.number)
        return begun, self.storage.asked.copy()


def files(root: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return a query that writes files."""
    return Process(root, monkeypatch, path=str(root / "out"), rollRows="3")


def table(root: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Return a query that writes into a table."""
    return Process(root, monkeypatch, url=f"sqlite://{root}/x.db", table="t")


LEDGER = "out/_penstock/q/ledger"
BATCHES = (("a",), ("b", "c"), ("d", "e", "f", "g"), ())


@pytest.mark.parametrize("to", [files, table])
def test_a_batch_reads_the_checkpoint_once(to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch reads each file of the checkpoint once, when it begins, and carries the contents; a commit reads none."""
    process = to(tmp_path, monkeypatch)
    for number, rows in enumerate(BATCHES):
        begun, committed = process.batch(*rows)
        assert (begun["names", "checkpoint/offsets"], begun["read", "checkpoint"]) == (1, 1)
        assert begun["read", "checkpoint/offsets"] == (
            2 if number else 1
        )  # its own entry, and that of the batch before it
        assert not {place for _, place in committed} & {"checkpoint", "checkpoint/offsets"}


def test_a_batch_lists_the_ledger_once_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is listed when a batch begins, before the decision, and after the put; the first two steps also read the last record."""
    process = files(tmp_path, monkeypatch)
    for number, rows in enumerate(BATCHES):
        begun, committed = process.batch(*rows)
        if number:  # the first one claims the sink
            assert (begun["names", LEDGER], begun["read", LEDGER]) == (1, 1)
        assert (committed["names", LEDGER], committed["read", LEDGER]) == (2, 1)
        assert committed["names", "out/_penstock/q/staging"] == 1


def test_a_batch_lists_staged_rows_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Applying a batch of a table lists its staged files once, to sweep them; beginning one does not list them."""
    process = table(tmp_path, monkeypatch)
    for rows in BATCHES:
        begun, committed = process.batch(*rows)
        assert begun["names", "checkpoint/penstock-db-q"] == 0
        assert committed["names", "checkpoint/penstock-db-q"] == 1


@pytest.mark.parametrize("to", [files, table])
def test_a_writer_that_is_not_pickled_begins_nothing(to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark makes one in the committing process, which must not take the sink over. If a writer is pickled twice, the batch begins once."""
    process = to(tmp_path, monkeypatch)
    process.storage.asked.clear()
    process.writer()
    assert not process.storage.asked
    monkeypatch.setattr("penstock.query.checkpoint.locate", lambda location, **_: (LocalStorage(), location))
    monkeypatch.setattr("penstock.ingestion.writing.locate", lambda location, **_: (LocalStorage(), location))
    (process.checkpoint / "offsets/0").write_text('v1\n{}\n{"offset":0}')
    writer = process.writer()
    first, second = (pickle.loads(pickle.dumps(writer)) for _ in range(2))  # noqa: S301 - our own bytes
    assert first._started.begun == second._started.begun == writer._started.begun


def test_rows_without_columns_are_refused(tmp_path: Path) -> None:
    """`df.select()` into JSON: Spark hands over no rows, where its own sink writes a `{}` for each, and all of them were lost silently."""
    none = StructType([])
    given = {"path": str(tmp_path / "out"), "format": "json"}
    with pytest.raises(OptionError, match="does not tell Python how many .* select one"):
        open_files(parse(LIVE_SINK, given, what="sink"), none.json(), "s")
    with pytest.raises(OptionError, match="does not tell Python how many .* select one"):
        PenstockDataSource(given | {"batchKey": "k"}).writer(none, overwrite=False)
    assert not (tmp_path / "out").exists()
