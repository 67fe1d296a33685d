"""Spark's calls to the database sink, made by hand: what a driver reports, and what it removes."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.errors import CheckpointMismatch, NotThere, OptionError
from penstock.options import DATABASE, parse
from penstock.query.batch import Task
from penstock.spark.database import open_table
from penstock.spark.writer import StreamWriter, TaskMessage
from tests.support.database import Place

SCHEMA = pa.schema([("v", pa.string())])
FIELDS = [{"name": "v", "type": "string", "nullable": True, "metadata": {}}]


class Query:
    """A query: its checkpoint as Spark keeps it, and its database."""

    def __init__(self, root: Path) -> None:
        self.checkpoint = root / "checkpoint"
        (self.checkpoint / "offsets").mkdir(parents=True)
        (self.checkpoint / "metadata").write_text('{"id": "q"}')
        self.place = Place(f"sqlite://{root}/x.db", "t")

    def writer(self, number: int, offset: int | None = None, **options: str) -> StreamWriter:
        """Plan a batch as Spark does, and begin it."""
        planned = json.dumps({"offset": number if offset is None else offset})
        (self.checkpoint / "offsets" / str(number)).write_text(f"v1\n{{}}\n{planned}")
        given = {"url": self.place.url, "table": "t", "checkpointLocation": str(self.checkpoint)} | options
        opens = partial(
            open_table, parse(DATABASE, given, what="sink"), json.dumps({"type": "struct", "fields": FIELDS})
        )
        made = StreamWriter(opens, checkpoint=str(self.checkpoint), sink_id=None)
        made.begin()
        return made

    def staged(self, writer: StreamWriter, number: int) -> TaskMessage:
        """Stage three rows, as a task would."""
        rows = pa.RecordBatch.from_pydict({"v": [f"{number} {i}" for i in range(3)]}, schema=SCHEMA)
        assert writer._started is not None
        return TaskMessage(writer._started.write(Task("q", number, 0), iter([rows])))

    def files(self) -> list[str]:
        """Return the staged files."""
        return os.listdir(self.checkpoint / "penstock-db-q")


@pytest.fixture
def query(tmp_path: Path) -> Query:
    return Query(tmp_path)


def test_rows_that_are_skipped_are_counted(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """A repeated batch changes nothing; the log names the batch and its number of rows; its staged files are swept."""
    writer = query.writer(0)
    writer.commit([query.staged(writer, 0), None], 0)
    again = query.writer(0)
    with caplog.at_level(logging.WARNING, "penstock.db"):
        again.commit([query.staged(again, 0)], 0)
    assert "batch 0 of query q was applied before: 3 rows skipped" in caplog.text
    assert len(query.place.rows()) == 3
    assert query.files() == []


def test_rows_that_are_rejected_are_counted(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    """The log names the batch, the number of rejected rows and the number of all rows."""
    query.place.query("CREATE TABLE {t} (v text CHECK (v <> '0 1'))")
    writer = query.writer(0, badRows="quarantine")
    with caplog.at_level(logging.WARNING, "penstock.db"):
        writer.commit([query.staged(writer, 0)], 0)
    assert "batch 0 of query q: 1 of 3 rows rejected" in caplog.text


def test_rows_come_in_the_order_of_the_tasks(query: Query) -> None:
    """The order tells an upsert which row of a key is the last; a task that reported nothing has no rows."""
    writer = query.writer(0)
    writer.commit([query.staged(writer, 2), None, query.staged(writer, 1)], 0)
    found = [row[0] for row in query.place.query("SELECT v FROM {t} ORDER BY rowid")]
    assert found == [f"{number} {i}" for number in (2, 1) for i in range(3)]


def test_another_batch_of_the_last_number_is_refused(query: Query) -> None:
    """The offset log was put back, and Spark has planned the batch anew: the sink notices that the batch has another definition."""
    writer = query.writer(0)
    writer.commit([query.staged(writer, 0)], 0)
    with pytest.raises(CheckpointMismatch, match="other offsets"):
        query.writer(0, offset=7)


def test_place_for_rows_that_cannot_be_used(query: Query, tmp_path: Path) -> None:
    """The sink checks the table for unusable rows at the start, before it asks the database."""
    with pytest.raises(OptionError, match="stagingLocation"):
        query.writer(0, stagingLocation="ftp://host/x")
    assert not (tmp_path / "x.db").exists()


def test_staged_rows_that_have_gone(query: Query) -> None:
    """A staged file disappears in the middle of a batch: our error says so, and nothing of the batch is applied."""
    writer = query.writer(0)
    there, gone = query.staged(writer, 0), query.staged(writer, 0)
    writer.abort([gone], 0)
    with pytest.raises(NotThere, match="with the option stagingLocation"):
        writer.commit([there, gone], 0)
    assert query.place.rows() == []
    writer.commit([there], 0)
    assert len(query.place.rows()) == 3


def test_batch_that_failed_leaves_nothing_staged(query: Query) -> None:
    """When Spark aborts a batch, the files that its tasks reported as staged are removed."""
    writer = query.writer(0)
    message = query.staged(writer, 0)
    query.staged(writer, 0)
    writer.abort([message, None], 0)
    assert len(query.files()) == 1
