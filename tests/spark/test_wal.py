"""A log as a stream and as a batch, on a real Spark: each record once, with its position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from penstock import unique
from penstock.wal import Log, Position, Writer
from tests.support.hdfs import MiniHdfs
from tests.support.interpreter import Interpreter
from tests.support.stage import Stage
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Row = tuple[int, int, bytes]


def run(spark: SparkSession, stage: Stage, log: Path | str, **options: Any) -> list[int]:
    """Write the whole log to Parquet; return how many rows each batch had."""
    frame = spark.readStream.format("penstock-wal").options(**options).load(str(log))
    writer = frame.writeStream.format("penstock").option("format", "parquet").option("rollBatches", "1")
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def rows(stage: Stage) -> list[Row]:
    """Return the rows that a reader sees, in the order of their positions."""
    return sorted(tuple(row.values()) for row in ds.dataset(stage.files()).to_table().to_pylist())


def append(log: Path, *records: bytes) -> list[Row]:
    """Append records with a writer that has short segments, and flush each; return them with their positions."""
    found: list[Row] = []
    with Writer(str(log), segment_size=1000) as writer:
        for record in records:
            found.append((*writer.append(record), record))
            writer.flush()
    return found


def test_a_stream_goes_on_where_it_was(spark: SparkSession, stage: Stage) -> None:
    """Batches by the limit, over rolls; a restart brings what is new, a replay brings nothing; records that were read may be purged."""
    log = stage.root / "log"
    expected = append(log, *(b"%d" % n * 50 for n in range(60)))
    batches = run(spark, stage, log, maxBytesPerTrigger="2k", splitSize="500")
    assert len(batches) > 2
    assert rows(stage) == expected
    (last,) = sorted((stage.checkpoint / "commits").glob("[0-9]"), key=lambda path: int(path.name))[-1:]
    last.unlink()
    run(spark, stage, log, maxBytesPerTrigger="2k")
    assert rows(stage) == expected
    expected += append(log, b"", b"new")
    run(spark, stage, log)
    assert rows(stage) == expected
    Log(str(log)).purge(Position(expected[-1][0], 0))
    expected += append(log, b"behind a purge")
    assert run(spark, stage, log) == [1]
    assert rows(stage) == expected


def test_a_stream_follows_a_live_writer(spark: SparkSession, stage: Stage) -> None:
    """A running query takes the records that are appended meanwhile, over rolls and by another writer, each once."""
    log = stage.root / "log"
    log.mkdir()
    frame = spark.readStream.format("penstock-wal").load(str(log))
    writer = frame.writeStream.format("penstock").option("format", "parquet").option("rollBatches", "1")
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    try:
        expected: list[Row] = []
        for number in range(2):
            expected.extend(append(log, *(b"%d.%d" % (number, n) * 40 for n in range(20))))
            wait_for(lambda: stage.files() and rows(stage) == expected, "what was appended")
    finally:
        query.stop()
    assert len({segment for segment, _, _ in expected}) > 4


def test_what_came_after_latest_is_read_though_its_batch_failed(spark: SparkSession, stage: Stage) -> None:
    """Failures 7 and 8 of `wal.runs`: a query of `latest` fails in its first batch with records, more come, and the next start has all."""
    log = stage.root / "log"
    found: list[bytes] = []
    append(log, b"before")

    def fail(_frame: DataFrame, _number: int) -> None:
        found.extend(row.record for row in _frame.collect())
        if found:
            raise OSError

    def start(put: Callable[[DataFrame, int], None], **trigger: Any) -> StreamingQuery:
        frame = spark.readStream.format("penstock-wal").option("startingFrom", "latest").load(str(log))
        return (
            frame.writeStream.foreachBatch(put)
            .option("checkpointLocation", str(stage.checkpoint))
            .trigger(**trigger)
            .start()
        )

    query = start(fail, processingTime="0 seconds")
    wait_for(lambda: (stage.checkpoint / "commits/0").exists(), "the first batch, which keeps where the query begins")
    append(log, b"one")
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert found == [b"one"]
    append(log, b"two")
    found.clear()
    start(lambda frame, _: found.extend(row.record for row in frame.collect()), availableNow=True).awaitTermination()
    assert found == [b"one", b"two"]


def test_a_log_as_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The whole log, or the part after a position; no rows from an empty log; a path without a log is refused."""
    log = tmp_path / "log"
    log.mkdir()
    frame = spark.read.format("penstock-wal")
    assert frame.load(str(log)).collect() == []
    expected = append(log, *(b"%d" % n * 30 for n in range(50)))
    found = frame.option("splitSize", "1k").load(str(log))
    assert found.rdd.getNumPartitions() > 2
    assert sorted(map(tuple, found.collect())) == expected
    at = f"{expected[20][0]}:{expected[20][1]}"
    assert sorted(map(tuple, frame.option("startingFrom", at).load(str(log)).collect())) == expected[20:]
    for path, options, message in (
        (tmp_path / "none", {}, "does not exist"),
        (Path(__file__), {}, "is a file; expected the directory of a log"),
        (Path(__file__).parent, {}, "and no segment of a log"),
        (log, {"startingFrom": "3"}, "expected earliest, latest or a position"),
        (log, {"startingFrom": "1:121"}, "inside a record"),
        (log, {"maxFilesPerTrigger": "3"}, "unknown option"),
    ):
        with pytest.raises(PySparkException, match=message):
            spark.read.format("penstock-wal").options(**options).load(str(path)).collect()
    with pytest.raises(PySparkException, match="has the columns"):
        spark.read.format("penstock-wal").schema("value string").load(str(log)).collect()


def test_damage_ends_the_query(spark: SparkSession, stage: Stage) -> None:
    """A byte that was changed before the end fails the batch that reads it, with file and byte, and nothing of that batch is written."""
    log = stage.root / "log"
    append(log, *(b"%d" % n * 90 for n in range(20)))
    path = log / "000000000002.wal"
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(PySparkException, match=r"000000000002\.wal.* is damaged at byte"):
        run(spark, stage, log)
    assert stage.files() == []


@pytest.mark.soak  # `tests/wal/test_log_hdfs.py` has a log on HDFS, and the test above streams a log
def test_a_log_on_hdfs(spark: SparkSession, stage: Stage, hdfs: MiniHdfs) -> None:
    """Records flushed to a log on HDFS come once, in batches by the limit, while its writer runs; a purge of read records makes no gap."""
    log = f"{hdfs.url}/{unique.token()}"
    expected: list[Row] = []
    with Writer(log, whole=True) as writer:
        for upto in (8, 9):
            for number in range(len(expected), upto):
                record = b"%d" % number * 200
                expected.append((*writer.append(record), record))
                writer.flush()
            batches = run(spark, stage, log, maxBytesPerTrigger="1k", splitSize="300")
            assert rows(stage) == expected
            assert len(batches) == (2 if upto == 8 else 1)
            Log(log).purge(writer.position)
    with pytest.raises(PySparkException, match="it was purged"):
        spark.read.format("penstock-wal").option("startingFrom", "1:120").load(log).collect()
    assert [tuple(row) for row in spark.read.format("penstock-wal").load(log).collect()] == expected[-1:]


FORMATS = """
import sys
import penstock
spark = penstock.local_session("local[1]", rows_in_jvm=False)
log = spark.read.format("penstock-wal").load(sys.argv[1])
print("ROWS", log.count())
for refused in (log.write.format("penstock-db").mode("append").save, spark.read.format("penstock-db").load):
    try:
        refused()
    except Exception as error:
        print(error)
"""


@pytest.mark.spark
@pytest.mark.xdist_group("programs")
def test_formats_register_themselves(stage: Stage, python: Interpreter) -> None:
    """A session that has registered nothing finds the formats, because their packages are installed."""
    append(stage.root / "log", b"a", b"b")
    done = python.run(FORMATS, str(stage.root / "log"))
    assert "ROWS 2" in done.stdout, done.stderr[-3000:]
    assert "format penstock-db is a stream: expected df.writeStream" in done.stdout
    assert "format penstock-db does not read" in done.stdout
