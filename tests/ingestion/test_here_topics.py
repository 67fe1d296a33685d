"""An ingest of topics without Spark: each committed record once, whatever is killed and whoever continues; and the answer to a stop."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow.dataset as ds
import pytest

import penstock
from penstock.errors import BrokerAway
from penstock.ingestion import planning
from penstock.ingestion.call import IngestCall
from penstock.ingestion.here import QueryHere
from penstock.ingestion.ingest import carried_out, here
from penstock.ingestion.workers import Workers
from penstock.kafka import cluster, read
from penstock.kafka.offset import Partition
from tests.ingestion.test_here import lines
from tests.support.forked import Commands
from tests.support.wait import PATIENCE_SECONDS, wait_for
from tests.testing.topics_program import Brokers, row_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.ingestion.ingested import Ingested
    from penstock.ingestion.run import IngestRun
    from tests.support.kafka import Kafka

SOURCE = {"format": "text", "maxOffsetsPerTrigger": "4"}
OFFSETS = 6


@pytest.fixture
def brokers(monkeypatch: pytest.MonkeyPatch) -> Brokers:
    """Return simulated brokers for every request in this process."""
    made_up = Brokers(OFFSETS)
    monkeypatch.setattr(cluster, "Cluster", lambda _: made_up)
    monkeypatch.setattr(read, "read", made_up.read)
    return made_up


def begun(dst: Path, **source: str) -> IngestRun[Any]:
    """Return a run without Spark over these brokers, before it has begun."""
    run = here(IngestCall("kafka://nowhere:9092/orders", str(dst), source=SOURCE | source, sink={"format": "text"}))
    assert run is not None
    return run


def ingest(dst: Path, **source: str) -> Ingested:
    """Take the available records."""
    return carried_out(begun(dst, **source), None)


def expected(brokers: Brokers, begin: int = 0) -> list[str]:
    """Return the values of all records from `begin` in the first partition, and from one less in the other, up to the current ends."""
    ends = brokers.ends([Partition("orders", number) for number in range(2)])
    parts = [(each, max(begin - each.number, 0), end.offset) for each, end in ends.items()]
    return sorted(row_of(each, at).decode() for each, first, end in parts for at in brokers.records(each, first, end))


def test_each_record_once_over_several_batches_and_runs(tmp_path: Path, brokers: Brokers) -> None:
    """Batches, a run that finds more, a run that finds nothing, and a batch whose end Spark's log has lost."""
    done = ingest(tmp_path / "out")
    assert done.batch > 0
    assert lines(tmp_path / "out") == expected(brokers)
    brokers.planned = 1
    again = ingest(tmp_path / "out")
    assert again.batch > done.batch
    assert (again.input_offsets, again.left_offsets) == (2 * OFFSETS - 1, 0)
    assert lines(tmp_path / "out") == expected(brokers)
    assert ingest(tmp_path / "out").batch == again.batch
    (tmp_path / f"out/_penstock/checkpoint/commits/{again.batch}").unlink()
    assert ingest(tmp_path / "out").batch == again.batch
    assert lines(tmp_path / "out") == expected(brokers)


def test_a_first_batch_that_is_repeated_begins_where_it_was_planned(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then `latest` is another offset: records that came meanwhile are in the next batch, and are not skipped."""
    with monkeypatch.context() as patched:
        patched.setattr(QueryHere, "_batch", _unanswered)
        with pytest.raises(BrokerAway):
            ingest(tmp_path / "out", startingOffsets="latest")
    brokers.planned = 1
    assert ingest(tmp_path / "out", startingOffsets="latest").batch > 0
    assert lines(tmp_path / "out") == expected(brokers, 3)


def test_a_later_batch_that_was_planned_alone(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is read from the end of the batch before it, although the process that planned it is gone."""
    done = ingest(tmp_path / "out")
    brokers.planned = 1
    with monkeypatch.context() as patched:
        patched.setattr(QueryHere, "_batch", _unanswered)
        with pytest.raises(BrokerAway):
            ingest(tmp_path / "out")
    assert (tmp_path / f"out/_penstock/checkpoint/offsets/{done.batch + 1}").exists()
    ingest(tmp_path / "out")
    assert lines(tmp_path / "out") == expected(brokers)


def _unanswered(*_: object, **__: object) -> Any:
    msg = "no answer"
    raise BrokerAway(msg)


@pytest.mark.parametrize("silent", ["ends", "read"])
def test_asked_to_end_while_no_broker_answers(tmp_path: Path, brokers: Brokers, silent: str) -> None:
    """A stop once waited for `timeout`, while a plan was made or a task read: now it ends at once, and the next run goes on."""
    ingest(tmp_path / "out")
    brokers.planned = 1
    waits, answers, waited = threading.Event(), threading.Event(), threading.Event()

    def wait(*_: object) -> Any:
        waits.set()
        answers.wait(PATIENCE_SECONDS)
        waited.set()
        _unanswered()

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(*((read, "read", wait) if silent == "read" else (brokers, "ends", wait)))
        run = begun(tmp_path / "out")
        following = threading.Thread(target=run.follow, args=(None,))
        following.start()
        assert waits.wait(PATIENCE_SECONDS)
        run.end()
        assert not waited.is_set()
        following.join()
    answers.set()
    run.publish()
    ingest(tmp_path / "out")
    assert lines(tmp_path / "out") == expected(brokers)


STEPS = [
    "ingest.here.planned=kill",
    "kafka.read=kill@2",
    "sink.write.staged=kill@2",
    "sink.ledger.before-put=kill@3",
    "sink.ledger.after-put=kill@3",
    "sink.publish.one=kill",
    "sink.publish.before-note=kill",
    "ingest.here.committed=kill@2",
]


def visible(dst: Path) -> Counter[tuple[int, int]]:
    """Return how often each record is visible, by partition and offset."""
    files = [str(path) for path in dst.glob("*.parquet")]
    rows = ds.dataset(files).to_table(columns=["partition", "offset"]).to_pylist() if files else []
    return Counter((row["partition"], row["offset"]) for row in rows)


@pytest.mark.timeout(900)
def test_killed_at_each_step_and_gone_on_from_by_spark(
    kafka: Kafka, spark: SparkSession, commands: Commands, tmp_path: Path
) -> None:
    """Each step meets the state after another crash, and aborted transactions; the next run, with Spark or without, repeats the batch."""
    topic, dst = kafka.topic(partitions=2), tmp_path / "out"
    src = f"kafka://{kafka.servers}/{topic}"
    limit = {"maxOffsetsPerTrigger": "20"}
    for number, points in enumerate(STEPS):
        produced(kafka, topic, 4)
        command = "ingest", src, dst, "--source-option", "maxOffsetsPerTrigger=20", "--roll-rows", "15"
        killed = commands.run(*command, points=points, check=False)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        committed = Counter((partition, offset) for partition, offset, _ in kafka.committed(topic))
        assert not visible(dst) - committed
        if number % 4 == 1:
            penstock.ingest(spark, src, str(dst), source=limit, sink={"format": "parquet", "rollRows": "15"})
        else:
            assert "without Spark" in commands.run(*command).stdout
        assert visible(dst) == committed, points


STANDS = [
    "ingest.here.planned=stop@2",
    "sink.write.staged=stop",
    "sink.ledger.after-put=stop@2",
    "ingest.here.committed=stop",
]


@pytest.mark.timeout(900)
def test_a_driver_that_stood_still_goes_on_beside_its_successor(
    kafka: Kafka, spark: SparkSession, commands: Commands, tmp_path: Path
) -> None:
    """It is fenced by name wherever it stood; at no moment is a record visible twice, and at the end none is missing."""
    topic, dst = kafka.topic(partitions=2), tmp_path / "out"
    src = f"kafka://{kafka.servers}/{topic}"
    command = "ingest", src, dst, "--source-option", "maxOffsetsPerTrigger=20", "--roll-rows", "15"
    for points in STANDS:
        produced(kafka, topic, 4)
        stood = commands.begin(*command, points=points)
        stood.stands()
        produced(kafka, topic, 4)
        committed = Counter((partition, offset) for partition, offset, _ in kafka.committed(topic))
        penstock.ingest(spark, src, str(dst), source={}, sink={"format": "parquet", "rollRows": "15"})
        assert visible(dst) == committed, points
        stood.signal(signal.SIGCONT)
        ended = stood.ended(check=False)
        assert ended.returncode == 1, points
        assert "[PST-301]" in ended.stderr, "it is `Fenced`"
        assert visible(dst) == committed, points


def produced(kafka: Kafka, topic: str, transactions: int) -> None:
    """Produce transactions of ten records; every fourth one aborts."""
    producer = kafka.producer(topic)
    for number in range(transactions):
        producer.begin_transaction()
        for each in range(10):
            producer.produce(topic, value=b"%d" % each, partition=each % 2)
        producer.flush()
        producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()
    wait_for(lambda: len(kafka.committed(topic)) % 30 == 0, "the end of the transactions")


def test_much_is_written_by_several_processes(kafka: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More records than one process reads while the others start: the ranges are shared out, and each record is in one of them."""
    monkeypatch.setattr(planning, "_APART_OFFSETS", 1000)  # few offsets count as many here
    asked: list[int] = []
    each = Workers.each

    def counted(self: Workers, *given: Any, processes: int) -> list[Any]:
        asked.append(processes)
        return each(self, *given, processes=processes)

    monkeypatch.setattr(Workers, "each", counted)
    topic, dst, count = kafka.topic(partitions=3), tmp_path / "out", 1300
    producer = kafka.producer()
    for number in range(count):
        producer.produce(topic, value=b"%d" % number, partition=number % 3)
    assert producer.flush(PATIENCE_SECONDS) == 0
    run = here(
        IngestCall(
            f"kafka://{kafka.servers}/{topic}", str(dst), source={}, sink={"format": "parquet", "rollRows": "200"}
        )
    )
    assert run is not None
    assert carried_out(run, None).rows == count
    assert asked == [2]
    assert visible(dst) == Counter((number % 3, number // 3) for number in range(count))
