"""The finished files of an output as a batch read: chosen by the ledger, as of a record, whatever other files lie next to them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from penstock import clock, failpoints
from penstock.errors import EventsLost, FileChanged, OptionError
from penstock.formats import ddl
from penstock.options.finished import BATCH
from penstock.sink import ledger
from penstock.spark.datasource import PenstockDataSource
from penstock.spark.finished import FinishedReader
from penstock.testing import FakeClock
from tests.support.follows import follows
from tests.support.keys import READER, READER_KEY
from tests.support.output import Output

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERED = pa.schema([("id", pa.int64()), ("country", pa.string()), ("name", pa.string())])


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    with clock.use(fake := FakeClock()):
        yield Output(tmp_path / "out", fake)


def struct(text: str) -> StructType:
    """Return a schema as Spark hands it over."""
    return StructType.fromJson(json.loads(ddl.parsed(text) or ""))


def load(output: Output, schema: str | None = None, **options: Any) -> list[dict[str, Any]]:
    """Return the rows, in order, that a session gets after `penstock.register`."""
    given = {"path": str(output.root), BATCH: "true", "sessionTimeZone": "UTC"} | {
        k: str(v) for k, v in options.items()
    }
    return read(PenstockDataSource(given), schema)


def read(source: PenstockDataSource, schema: str | None = None) -> list[dict[str, Any]]:
    """Return the rows of a source, called as Spark calls it."""
    asked = schema or source.schema()
    reader = source.reader(struct(str(asked)))
    assert isinstance(reader, FinishedReader)
    parts = reader.partitions()
    return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]


def values(output: Output, **options: Any) -> list[str]:
    """Return the lines of a text output."""
    return sorted(row["value"] for row in load(output, **options))


def text_output(output: Output, batches: int = 4, **options: str) -> Any:
    """Write one file a batch, with the batch's number as its only line."""
    sink = output.sink(rollBatches="1", **options)
    for number in range(batches):
        output.batch(sink, number, {0: [str(number)]}, mark=str(number))
    return sink


def test_files_of_the_ledger_only(output: Output) -> None:
    """A read skips what a stranger, a crash or another writer put among the finished files, and what is open or staged."""
    sink = text_output(output)
    (output.root / "stranger.txt").write_text("foreign\n")
    (output.root / "part-s-0-99.txt").write_text("foreign\n")
    open_parts = output.sink(sink_id="open")
    output.batch(open_parts, 0, {0: ["open"]})
    assert values(output) == ["0", "1", "2", "3"]
    assert sink.ledger.head().n == 5


def test_as_of_a_record_is_what_it_was(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read as of each record of a ledger gives what was there at that record, even if it is folded by now, and never changes."""
    monkeypatch.setattr(ledger, "FOLD", 4)
    sink = output.sink(rollBatches="1")
    then: dict[int, list[str]] = {}
    for number in range(20):
        output.batch(sink, number, {0: [] if number % 3 == 2 else [str(number)]}, mark=str(number))
        then[sink.ledger.head().n] = values(output)
    assert sink.ledger.look().folds
    assert then[21] == sorted(str(n) for n in range(20) if n % 3 != 2)
    for record, lines in then.items():
        assert values(output, asOf=record) == lines


def test_a_record_that_is_not_there_is_refused_with_those_that_are(output: Output) -> None:
    """A future record, a value that is not a number, and a record of an unknown sink are refused; the advice can be followed."""
    text_output(output)
    for wrong, words in [
        ("6", "whose last one is 5; expected one from 1 to that"),
        ("900", "whose last one is 5"),
        ("0", "expected a record of the ledger such as 12"),
        ("later", "penstock status prints the last ones"),
        ("other:3", "expected such as asOf=s:5"),
    ]:
        with pytest.raises(OptionError, match=words):
            load(output, asOf=wrong)
    assert values(output, asOf="s:5") == ["0", "1", "2", "3"]


def test_as_of_names_each_sink(output: Output) -> None:
    """With several sinks, each is read as of its own record; a bare number is refused, and the error says what to write."""
    text_output(output)
    other = output.sink(sink_id="other", rollBatches="1")
    output.batch(other, 0, {0: ["other"]})
    with pytest.raises(OptionError, match="expected such as asOf=other:2,s:5, or one sink by sinkId"):
        load(output, asOf=3)
    assert values(output, asOf="other:2,s:3") == ["0", "1", "other"]
    assert values(output, asOf=3, sinkId="s") == ["0", "1"]
    with pytest.raises(OptionError, match="sinkId='no' is not in .*; there are: other, s"):
        load(output, sinkId="no")


def test_a_record_that_is_not_published_yet_is_not_read(output: Output) -> None:
    """A driver dies between the put and the last file: a snapshot has none of the record's files until all are there."""
    sink = output.sink(rollRows="1")
    output.batch(sink, 0, {0: ["a", "b"]}, mark="0")
    failpoints.arm("sink.publish.one=error@2")
    with pytest.raises(OSError, match="sink.publish.one"):
        output.batch(sink, 1, {0: ["c", "d"]}, mark="1")
    failpoints.arm("")
    assert len(output.visible()) == 3
    assert values(output) == ["a", "b"]
    with pytest.raises(
        OptionError, match="record 3 .* is decided and not published yet: .*record 2 is the last one that is"
    ):
        load(output, asOf=3)
    sink.begin("d2")
    assert values(output, asOf=3) == values(output) == ["a", "b", "c", "d"]


@follows("PST-203")
def test_files_that_were_deleted_are_told_before_the_first_row(output: Output) -> None:
    """Retention deleted two files: the error names them, and a reader that accepts the loss gets the rest."""
    text_output(output)
    gone = sorted(output.visible())[:2]
    for path in gone:
        (output.root / path).unlink()
    with pytest.raises(FileChanged, match=f"2 of 4 finished files of .* are not there, such as '{gone[0]}'"):
        load(output)
    assert values(output, ignoreMissingFiles="true") == ["2", "3"]
    shutil.rmtree(output.root / "_penstock/s/staging")
    (output.root / min(output.visible())).write_text("other\n")
    with pytest.raises(FileChanged, match="has 6 bytes, the ledger says 2: it was changed"):
        load(output, ignoreMissingFiles="true")


def test_history_that_was_removed_is_told(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """After old folds and their files were removed, a reader must state that it knows this; then it gets the rest."""
    monkeypatch.setattr(ledger, "FOLD", 4)
    sink = text_output(output, 14)
    (output.root / "_penstock/s/ledger" / sink.ledger.look().folds[0]).unlink()
    with pytest.raises(EventsLost, match="its oldest files were removed"):
        load(output)
    assert len(values(output, ignoreMissingFiles="true")) == 11


def test_what_a_task_finds_changed_fails_it(output: Output) -> None:
    """A file that is removed or altered between plan and task is an error; a task never returns a part of its rows."""
    text_output(output, 1)
    source = PenstockDataSource({"path": str(output.root), BATCH: "true"})
    reader = source.reader(struct(str(source.schema())))
    (part,) = reader.partitions()
    (path,) = output.visible()
    (output.root / path).unlink()
    with pytest.raises(FileChanged, match="was planned and is gone; .*and load again"):
        list(reader.read(part))


def test_an_action_sees_what_was_there_at_load(output: Output) -> None:
    """Without a user's schema a DataFrame is one snapshot: none of its actions sees what is published after `load`."""
    sink = text_output(output)
    source = PenstockDataSource({"path": str(output.root), BATCH: "true"})
    source.schema()
    output.batch(sink, 4, {0: ["late"]}, mark="4")
    travelled = PenstockDataSource({"path": str(output.root), BATCH: "true"})
    travelled.__dict__.update(source.__dict__)
    assert sorted(row["value"] for row in read(travelled, "value string")) == ["0", "1", "2", "3"]
    assert values(output) == ["0", "1", "2", "3", "late"]


@pytest.mark.parametrize("form", ["parquet", "orc", "json", "csv"])
def test_format_schema_and_buckets_come_from_the_output(output: Output, form: str) -> None:
    """Format, CSV dialect, columns and directory columns need no options; the rows are what was written."""
    if form == "orc":
        pytest.importorskip("pyarrow.orc")
    output.schema = NUMBERED
    dialect = {"header": "true", "nullValue": "NULL", "quote": "'"} if form == "csv" else {}
    sink = output.sink(format=form, bucketBy="country={country}", dropBucketColumns="true", rollBatches="1", **dialect)
    output.batch(sink, 0, {0: ["1|de|a'b", "2|fr|x"]}, mark="0")
    output.batch(sink, 1, {0: ["3|de|z"]}, mark="1")
    rows = sorted((row["id"], row["country"], row["name"]) for row in load(output))
    assert rows == [(1, "de", "a'b"), (2, "fr", "x"), (3, "de", "z")]
    assert [set(row) for row in load(output, "name string", partitionColumns="none")] == [{"name"}] * 3


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_columns_that_stay_in_the_files_are_read_from_them(output: Output, form: str) -> None:
    """A column that is in the files is read from them and not from the directory: `name=01` is not a number, and a day is not a time."""
    output.schema = NUMBERED
    header = {"header": "true"} if form == "csv" else {}
    sink = output.sink(format=form, bucketBy="name={name}/half={id}", rollBatches="1", **header)
    output.batch(sink, 0, {0: ["1|de|x y", "2|fr|"]}, mark="0")
    rows = sorted((row["id"], row["country"], row["name"] or "", row["half"]) for row in load(output))
    assert rows == [(1, "de", "x y", 1), (2, "fr", "", 2)]
    other = output.sink(
        sink_id="other", format=form, bucketBy="name={name}", dropBucketColumns="true", rollBatches="1", **header
    )
    output.batch(other, 0, {0: ["3|de|z"]}, mark="0")
    with pytest.raises(
        OptionError, match="have name in their files, or in the names of directories alone; choose one by sinkId"
    ):
        load(output)
    assert [row["name"] for row in load(output, sinkId="other")] == ["z"]


def test_files_of_several_formats_are_chosen_by_name(output: Output) -> None:
    """A sink whose format was changed has files of both formats: the error says how to read either."""
    output.schema = NUMBERED
    output.batch(output.sink(format="json", rollBatches="1"), 0, {0: ["1|de|a"]}, mark="0")
    output.batch(output.sink(format="parquet", rollBatches="1"), 1, {0: ["2|de|b"]}, owner="d2", mark="1")
    with pytest.raises(OptionError, match="of several formats: json .* parquet .*; expected one: choose by"):
        load(output)
    assert [row["id"] for row in load(output, pathGlobFilter="*.json")] == [1]
    assert [row["id"] for row in load(output, pathGlobFilter="*.parquet")] == [2]


def test_an_output_without_files_needs_a_schema(output: Output) -> None:
    """An output without finished files offers nothing to infer a schema from; with a schema it has no rows."""
    output.schema = NUMBERED
    output.batch(output.sink(format="parquet"), 0, {0: ["1|de|a"]})
    with pytest.raises(OptionError, match="has no finished file to infer a schema from; give the schema"):
        load(output)
    assert load(output, "id bigint") == []


def test_encrypted_files_are_read_with_a_key(output: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader's key opens age-encrypted files; without a key the error comes before the first row."""
    monkeypatch.setenv("PENSTOCK_TEST_READER", READER_KEY)
    sink = output.sink(rollBatches="1", encryptTo=READER, encryptionKey="none")
    output.batch(sink, 0, {0: ["secret"]})
    assert values(output, decryptionKey="env:PENSTOCK_TEST_READER") == ["secret"]
    with pytest.raises(OptionError, match="set decryptionKey=env:NAME"):
        load(output)


def test_growing_files_are_read_up_to_what_is_published(output: Output) -> None:
    """A growing file is read up to the ledger's length, although it holds more bytes, and cannot be read as of a record."""
    sink = output.sink(growing="true", fileName="log")
    for number in range(3):
        output.batch(sink, number, {0: [str(number)]}, mark=str(number))
    with (output.root / "log.txt").open("a") as file:
        file.write("beyond the ledger\n")
    assert values(output) == ["0", "1", "2"]
    with pytest.raises(
        OptionError, match="has growing files, of which the ledger keeps only the newest lengths; leave asOf out"
    ):
        load(output, asOf=2)


def test_a_directory_without_a_ledger_is_refused_as_ever(tmp_path: Path) -> None:
    """An ordinary input directory can only be read as a stream: a batch read is refused, and the message names what reads it."""
    (tmp_path / "a.txt").write_text("a\n")
    for given in (
        {"path": str(tmp_path)},
        {"path": str(tmp_path), BATCH: "true"},
        {"path": str(tmp_path), "asOf": "3"},
    ):
        with pytest.raises(OptionError, match="is no output of Penstock, .*expected spark.readStream"):
            read(PenstockDataSource(given), "value string")
    assert PenstockDataSource({"path": str(tmp_path)}).schema() == "value string"


def test_a_stream_of_an_output_is_what_it_was(output: Output) -> None:
    """Spark asks for a schema before it says whether it reads a stream: a stream over an output of lines still has its lines.

    A stream with its own schema gets that; one that used the schema of tables as its own is told what to add.
    """
    output.schema = NUMBERED
    sink = output.sink(format="json", rollBatches="1")
    output.batch(sink, 0, {0: ["1|de|a"]})
    unregistered = PenstockDataSource({"path": str(output.root)})
    assert unregistered.schema() == "value string"
    assert unregistered.streamReader(struct("value string")) is not None
    with pytest.raises(OptionError, match="the files are json, and nothing said so .*option..format., .json") as told:
        unregistered.reader(struct("value string"))
    assert "in SQL, which penstock.register does not reach, OPTIONS (format 'json')" in told.value.message
    said = PenstockDataSource({"path": str(output.root), "format": "json"})
    assert [row["id"] for row in read(said)] == [1]
    with pytest.raises(OptionError, match="is an output of json files, and a stream of them needs their schema"):
        said.streamReader(struct("id bigint"))
    assert (
        PenstockDataSource({"path": str(output.root), "format": "json"}).streamReader(struct("id bigint")) is not None
    )
    registered = PenstockDataSource({"path": str(output.root), "sessionTimeZone": "UTC"})
    assert registered.schema() == "value string"
