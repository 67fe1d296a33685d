"""Topics as a stream and as a batch, on a real Spark and a real broker."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest
from pyspark.errors import PySparkException

from penstock import errors
from penstock.errors import OptionError, RecordsLost
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.support.kafka import Kafka
    from tests.support.stage import Stage

Row = tuple[str, int, int, bytes]


def stream(spark: SparkSession, kafka: Kafka, **options: str) -> DataFrame:
    """Return a stream that reads topics from the beginning."""
    frame = spark.readStream.format("penstock-kafka").option("kafka.bootstrap.servers", kafka.servers)
    return frame.options(**{"startingOffsets": "earliest", **options}).load()


def run(frame: DataFrame, stage: Stage) -> list[int]:
    """Write all decided records to Parquet, with a directory for each topic; return how many rows each batch had."""
    writer = frame.writeStream.format("penstock").option("format", "parquet").option("bucketBy", "topic={topic}")
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(stage.checkpoint)).start(str(stage.dst))
    query.awaitTermination()
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def rows(stage: Stage) -> list[Row]:
    """Return topic, partition, offset and value of the rows that a reader sees."""
    table = ds.dataset(stage.files()).to_table(columns=["topic", "partition", "offset", "value"])
    return sorted(tuple(row.values()) for row in table.to_pylist())


def expected(kafka: Kafka, *topics: str) -> list[Row]:
    """Return the same values of the committed records, as another consumer reads them."""
    return sorted((topic, *record) for topic in topics for record in kafka.committed(topic))  # type: ignore[misc]  # no null values


def last(stage: Stage, folder: str) -> Any:
    """Return the newest file of one of the checkpoint's folders."""
    return max((stage.checkpoint / folder).glob("[0-9]*"), key=lambda path: int(path.name))


def test_topics_to_files(spark: SparkSession, kafka: Kafka, stage: Stage) -> None:
    """Batches keep the limit, files are by topic; a restart brings what is new, a replay brings nothing; the offsets are Spark's."""
    topics = [kafka.topic(partitions=2), kafka.topic()]
    frame = stream(spark, kafka, subscribe=",".join(topics), maxOffsetsPerTrigger="30", includeHeaders="true")
    for topic in topics:
        kafka.send(topic, *(b"%d" % number for number in range(40)))
    kafka.send(topics[0], b"other", partition=1)
    assert len(run(frame, stage)) > 2
    assert rows(stage) == expected(kafka, *topics)
    producer = kafka.producer(topics[0])
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topics[0], value=end.__name__.encode(), partition=1)
        producer.flush()
        end()
    wait_for(lambda: len(expected(kafka, topics[0])) == 42, "the end of the transaction")
    assert run(frame, stage) == [1]
    last(stage, "commits").unlink()
    assert run(frame, stage) == [1], "a replay"
    assert rows(stage) == expected(kafka, *topics)
    offset = json.loads(last(stage, "offsets").read_text().splitlines()[-1])
    assert {topic: offset[topic] for topic in topics} == {topics[0]: {"0": 40, "1": 5}, topics[1]: {"0": 40}}
    assert len({path.parent.name for path in stage.files()}) == 2


def test_the_first_batch_is_repeated_as_it_was(spark: SparkSession, kafka: Kafka, stage: Stage) -> None:
    """Spark keeps no offset before the first batch, and asks again: records that retention took meanwhile are an error, not skipped."""
    topic = kafka.topic()
    kafka.send(topic, *(b"%d" % number for number in range(10)))

    def fail(_: DataFrame, number: int) -> None:
        msg = f"batch {number} failed"
        raise RuntimeError(msg)

    writer = stream(spark, kafka, subscribe=topic).writeStream.foreachBatch(fail).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(stage.checkpoint)).start()
    with pytest.raises(PySparkException, match="batch 0 failed"):
        query.awaitTermination()
    kafka.cut(topic, 0, 4)
    with pytest.raises(PySparkException) as lost:
        run(stream(spark, kafka, subscribe=topic), stage)
    found = errors.of(lost.value)
    assert isinstance(found, RecordsLost)
    assert (found.offset, found.first) == (0, 4)
    assert run(stream(spark, kafka, subscribe=topic, failOnDataLoss="false"), stage) == [6]
    assert rows(stage) == [(topic, 0, number, b"%d" % number) for number in range(4, 10)]


def test_topics_as_a_batch(spark: SparkSession, kafka: Kafka) -> None:
    """All decided records, or those between two offsets, in as many tasks as requested; errors are in our words."""
    topic = kafka.topic()
    kafka.send(topic, *(b"%d" % number for number in range(20)))
    reader = spark.read.format("penstock-kafka").options(
        **{"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    )
    assert reader.load().selectExpr("CAST(value AS STRING) AS value").count() == 20
    part = reader.option("minPartitions", "4").option("endingOffsets", json.dumps({topic: {"0": 18}}))
    part = part.option("startingOffsets", json.dumps({topic: {"0": 3}}))
    frame = part.load()
    assert frame.rdd.getNumPartitions() == 4
    assert sorted(row.offset for row in frame.collect()) == list(range(3, 18))
    kafka.cut(topic, 0, 5)
    with pytest.raises(PySparkException) as lost:
        part.load().collect()
    found = errors.of(lost.value)
    assert isinstance(found, RecordsLost)
    assert (found.topic, found.partition, found.offset, found.first) == (topic, 0, 3, 5)
    for options, message in (
        ({"endingOffsets": json.dumps({topic: {"0": 99}})}, "expected at most 20"),
        ({"startingOffsets": "latest"}, "are for a stream"),
        ({"startingOffsets": json.dumps({topic: {"0": 21}})}, "would begin at offset 21"),
        ({"kafka.sasl.password": "Hush"}, "must say where the secret is"),
        ({"subscribePatern": "x"}, "did you mean 'subscribePattern'"),
    ):
        with pytest.raises(PySparkException) as refused:
            spark.read.format("penstock-kafka").options(
                **{"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, **options}
            ).load().collect()
        assert isinstance(errors.of(refused.value), OptionError)
        assert message in str(errors.of(refused.value))
        assert "Hush" not in str(refused.value)


def test_topics_by_time(spark: SparkSession, kafka: Kafka, stage: Stage) -> None:
    """A batch between two times, and a stream from a time on, have these records, over a restart, a replay and a corrected time."""
    topic = kafka.topic(partitions=2, settings={"retention.ms": "-1"})
    producer = kafka.producer()

    def send(partition: int, *times: int) -> None:
        for time in times:
            producer.produce(topic, value=b"%d.%d" % (partition, time), partition=partition, timestamp=time)
        assert producer.flush(30) == 0

    send(0, 1000, 2000, 3000, 4000)
    send(1, 1000, 2500)
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic}
    between = {"startingTimestamp": "2000", "endingOffsetsByTimestamp": json.dumps({topic: {"0": 3500, "1": 9000}})}
    batch = spark.read.format("penstock-kafka").options(**given, **between).load()
    told = batch.selectExpr("CAST(value AS STRING)", "CAST(CAST(timestamp AS DOUBLE) * 1000 AS BIGINT)").collect()
    assert sorted(map(tuple, told)) == [("0.2000", 2000), ("0.3000", 3000), ("1.2500", 2500)]

    def since(time: int, **options: str) -> list[int]:
        frame = spark.readStream.format("penstock-kafka").options(**given, startingTimestamp=str(time), **options)
        return run(frame.load(), stage)

    with pytest.raises(Exception, match=f"{topic}-1 has no record of 2600 ms") as early:
        since(2600)
    assert isinstance(errors.of(early.value), OptionError)
    assert since(2600, startingOffsetsByTimestampStrategy="latest") == [2]
    send(1, 500, 5000)
    assert since(1) == [2], "a checkpoint goes on where it was, whatever the time"
    last(stage, "commits").unlink()
    assert since(1) == [2], "a replay"
    assert [value for *_, value in rows(stage)] == [b"0.3000", b"0.4000", b"1.500", b"1.5000"]
