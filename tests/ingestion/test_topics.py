"""An ingest of topics without Spark: its plans, what a task makes of its share, and its errors."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import DamagedState, OptionError, RecordsLost, TopicNotThere, TopicReplaced
from penstock.formats.account import Account
from penstock.formats.aside import Aside
from penstock.ingestion.call import IngestCall
from penstock.ingestion.ingest import check
from penstock.ingestion.stage import CarriedRows, Stage
from penstock.ingestion.topics import Topics
from penstock.kafka.carried import carried, share_of
from penstock.kafka.cluster import Cluster
from penstock.kafka.offset import OURS, OffsetCounts, Partition, Positions, Range, shared_out
from penstock.kafka.plan import TopicPlanner
from penstock.options.internal import LIVE_TOPICS
from penstock.options.topics import parse_topics
from penstock.session import ddl
from penstock.verify import verify
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.kafka import Kafka

JSON = {"format": "json", "badRecords": "quarantine", "metadataColumn": "_meta"}
COLUMNS = "id bigint, name string"


class Topic:
    """The part of an ingest of topics that needs no Spark: planned as on the driver, read as in tasks."""

    def __init__(self, kafka: Kafka, topics: str, schema: str | None = COLUMNS, **source: str) -> None:
        self.topics = Topics.of(f"kafka://{kafka.servers}/{topics}", {"sessionTimeZone": "UTC"} | source)
        form = "{}" if schema is None else ddl.schema_json(schema)
        self.stage = Stage.of(Stage.describe(dict(self.topics.given), form, None))
        options = parse_topics(self.topics.planned(4), stream=True, table=LIVE_TOPICS)
        self.planner = TopicPlanner(options, Cluster(options))
        self.aside: list[dict[str, Any]] = []

    def rows(self, start: dict[str, Any], end: dict[str, Any], tasks: int = 4) -> list[dict[str, Any]]:
        """Return the rows of a batch, and keep the records that are set aside."""
        rows: list[dict[str, Any]] = []
        for text in carried(start, end, tasks):
            aside, row = Aside(), pa.RecordBatch.from_pydict({"splits": [text]})
            for batch in CarriedRows(self.stage, iter([row]), Account(), aside, text=False, errors="fail"):
                assert isinstance(batch, pa.RecordBatch)
                assert batch.schema == self.stage.schema
                rows += batch.to_pylist()
            self.aside += [line for lines in aside.handed_on() for line in lines.to_pylist()]
        return rows

    def all(self) -> list[dict[str, Any]]:
        """Return the rows of all decided records."""
        start, rows = self.planner.initial(), []
        while (end := json.loads(json.dumps(self.planner.latest(start)))) != start:
            rows += self.rows(start, end)
            start = end
        return rows


@given(
    lengths=st.lists(st.integers(1, 50), max_size=8), tasks=st.integers(1, 12), begin=st.integers(0, 1000)
)  # fmt: skip
def test_shares_lie_edge_to_edge(lengths: list[int], tasks: int, begin: int) -> None:
    """Whatever the partitions and the number of tasks, each offset is in one share, and shares differ by at most one offset."""
    pieces = [Range(Partition("t", number), begin, begin + size, "id") for number, size in enumerate(lengths)]
    shares = shared_out(pieces, tasks)
    offsets = [(each.partition, at) for share in shares for each in share for at in range(each.begin, each.end)]
    assert offsets == [(each.partition, at) for each in pieces for at in range(each.begin, each.end)]
    sizes = [sum(each.offsets for each in share) for share in shares]
    assert not sizes or (max(sizes) - min(sizes) <= 1 and min(sizes) > 0)
    assert len(shares) == min(tasks, sum(lengths))


def test_a_digit_of_the_plan_that_changed() -> None:
    """Spark does not check its log: an altered offset of an ingest is an error; a stream's offset may be written by hand."""
    planned = Positions({Partition("orders", 0): 12}, {"orders": "a"}, {}, OffsetCounts(12, 3), "UTC", sealed=True)
    form = json.loads(json.dumps(planned.form()))
    assert Positions.of(form) == planned
    for change in ({"orders": {"0": 13}}, {"others": {"0": 1}}, {OURS: form[OURS] | {"zone": "Asia/Tokyo"}}):
        with pytest.raises(DamagedState, match="restore it from a copy"):
            Positions.of(form | change)
    assert "sum" not in Positions({Partition("orders", 0): 12}).form()[OURS]


def test_zone_of_the_plan_counts() -> None:
    """A share has its plan's zone, so that a replay by a session in another zone reads the same times."""
    end = Positions({Partition("orders", 0): 5}, {}, {}, OffsetCounts(5, 0), "Asia/Tokyo", sealed=True).form()
    (text,) = carried({}, end, 1)
    assert share_of(text) == ([Range(Partition("orders", 0), 0, 5)], "Asia/Tokyo")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ({"maxFilesPerTrigger": "3"}, "is for files"),
        ({"encoding": "latin1", "format": "json"}, "is for files"),
        ({"header": True, "format": "csv"}, "is for files"),
        ({"kafka.bootstrap.servers": "x:1"}, "the brokers are in SRC|SRC says that"),
        ({"subscribe": "x"}, "SRC says that"),
        ({"kafka.sasl.password": "Hush"}, "must say where the secret is"),
        ({"startingOfsets": "latest"}, "did you mean 'startingOffsets'"),
        ({"startingOffsets": "never"}, "expected earliest, latest"),
        ({"endingOffsets": "latest"}, "is for a batch"),
        ({"badRecords": "quarantine"}, "add a format"),
        ({"schema": "id bigint"}, "add a format"),
        ({"format": "json"}, "needs a schema"),
        ({"format": "json", "schema": "infer"}, "say its columns"),
        ({"format": "parquet", "schema": COLUMNS}, "is for whole files"),
        ({"format": "json", "schema": COLUMNS, "metadataColumn": "id"}, "choose another name"),
        ({"format": "json", "schema": COLUMNS, "includeHeaders": True}, "needs metadataColumn"),
        ({"format": "jsn"}, "jsn"),
        ({"checkpointLocation": "x"}, "an ingest takes that from checkpoint"),
    ],
)
def test_options_that_are_not_for_topics(source: dict[str, Any], told: str, tmp_path: Path) -> None:
    """Options that make no sense for topics are refused before Spark or a broker is asked, with the right option."""
    with pytest.raises(OptionError, match=told) as raised:
        check(IngestCall("kafka://nowhere:9/orders", str(tmp_path / "out"), source=source, sink={"format": "parquet"}))
    assert "Hush" not in str(raised.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "src",
    [
        "kafka://",
        "kafka://u:p@host/orders",
        "kafka:orders",
        "kafka://host/a/b",
        "kafka://host/a b",
        "kafka://host\n/a",
        "kafka://host/a\n",
    ],
)
def test_address_that_is_none(src: str, tmp_path: Path) -> None:
    """An address without brokers, with a password, or with an invalid topic is refused, and the error hides the password."""
    with pytest.raises(OptionError, match="kafka://broker:9092/topic|no name of a topic") as raised:
        check(IngestCall(src, str(tmp_path / "out"), source={}, sink={"format": "parquet"}))
    assert "u:p" not in str(raised.value)


def test_commands_for_files_say_so(tmp_path: Path) -> None:
    """Commands that look at an input's files say that they cannot do so for topics, and what to do instead."""
    src, out = "kafka://host:9092/orders", str(tmp_path / "out")
    for call in (
        lambda: penstock.late(src, out),
        lambda: penstock.reset(src, out),
        lambda: verify(str(tmp_path), src),
    ):
        with pytest.raises(OptionError, match="is a topic"):
            call()


def test_ingest_that_begins_by_time() -> None:
    """An ingest with a starting time begins there, and not with the first records, where it begins by default."""
    src = "kafka://host:9092/orders"
    assert Topics.of(src, {"format": "json"}).planned(1)["startingOffsets"] == "earliest"
    for name, value in (("startingTimestamp", "5"), ("StartingOffsetsByTimestamp", '{"orders": {"0": 5}}')):
        planned = Topics.of(src, {"format": "json", name: value}).planned(1)
        assert "startingOffsets" not in planned
        assert value in planned.values()
        parse_topics(planned, stream=True, table=LIVE_TOPICS)


def test_values_become_rows(kafka: Kafka) -> None:
    """Each committed record becomes a row, or a quarantine line with its place, in any number of shares, and also in a replay."""
    topics = [kafka.topic(partitions=2), kafka.topic()]
    producer = kafka.producer(topics[0])
    for number in range(8):
        producer.begin_transaction()
        for each in range(10):
            value = b"{bad" if each == 7 else b'{"id":%d,\n"name":"%d"}' % (each, number)
            producer.produce(topics[each % 2], key=b"k%d" % each, value=value, partition=0)
        producer.flush()
        producer.abort_transaction() if number % 4 == 3 else producer.commit_transaction()
    expected = Counter((topic, *record) for topic in topics for record in kafka.committed(topic))
    topic = Topic(kafka, ",".join(topics), maxOffsetsPerTrigger="17", **JSON)
    rows = topic.all()
    place = {f"kafka://{kafka.servers}/{name}/0": name for name in topics}
    bad = Counter((place[line["path"]], 0, line["offset"], line["bytes"].encode()) for line in topic.aside)
    metas = [(row["_meta"]["topic"], row["_meta"]["partition"], row["_meta"]["offset"]) for row in rows]
    values = [b'{"id":%d,\n"name":"%s"}' % (row["id"], row["name"].encode()) for row in rows]
    good = Counter((*meta, value) for meta, value in zip(metas, values, strict=True))
    assert good + bad == expected
    assert {row["_meta"]["key"] for row in rows} == {b"k%d" % each for each in range(10) if each != 7}
    start, end = topic.planner.initial(), topic.planner.latest(topic.planner.initial())
    whole = topic.rows(start, end, 1)
    assert all(topic.rows(start, end, tasks) == whole for tasks in (2, 7, 100)), "a replay, with more cores or fewer"
    plain = Topic(kafka, ",".join(topics), None, includeHeaders="true").all()
    assert Counter((row["topic"], row["partition"], row["offset"], row["value"]) for row in plain) == expected


def test_ranges_that_are_no_more(kafka: Kafka) -> None:
    """Deletion by retention after the plan, and a topic that was made anew, raise typed errors in an ingest's task, too."""
    name = kafka.topic(settings={"retention.ms": "-1"})
    kafka.send(name, *(b'{"id":%d}' % number for number in range(10)))
    topic, lossy = Topic(kafka, name, **JSON), Topic(kafka, name, failOnDataLoss="false", **JSON)
    start = topic.planner.initial()
    end = topic.planner.latest(start)
    assert (end[OURS]["read"], end[OURS]["left"]) == (10, 0)
    kafka.cut(name, 0, 4)
    with pytest.raises(RecordsLost) as lost:
        topic.rows(start, end, 1)
    assert (lost.value.partition, lost.value.offset, lost.value.first) == (0, 0, 4)
    assert [row["id"] for row in lossy.rows(start, end, 1)] == [4, 5, 6, 7, 8, 9]
    kafka.delete(name)
    wait_for(lambda: name not in kafka.admin.list_topics(timeout=10).topics, "the topic is gone")
    with pytest.raises(TopicReplaced):
        topic.rows(start, end, 1)
    with pytest.raises(TopicNotThere):
        topic.planner.latest(end)
    kafka.topic(name)
    kafka.send(name, *(b'{"id":%d}' % number for number in range(20)))
    with pytest.raises(TopicReplaced):
        topic.rows(start, end, 1)
    assert lossy.rows(start, lossy.planner.latest(end), 2)[-1]["id"] == 19


def test_partitions_that_come_are_read_from_their_beginning(kafka: Kafka) -> None:
    """A partition that is added between two batches of an ingest is in the next one, from its first record on."""
    name = kafka.topic()
    kafka.send(name, b'{"id":1}')
    topic = Topic(kafka, name, **JSON)
    end = topic.planner.latest(topic.planner.initial())
    kafka.widen(name, 3)
    kafka.send(name, b'{"id":2}', b'{"id":3}', partition=2)
    assert [row["id"] for row in topic.rows(end, topic.planner.latest(end))] == [2, 3]


def test_dry_run_asks_brokers(kafka: Kafka, tmp_path: Path) -> None:
    """A dry run shows batches, offsets, columns and a sample, and writes nothing; a missing topic is reported as a problem."""
    name = kafka.topic(partitions=2)
    kafka.send(name, *(b'{"id":%d}' % number for number in range(5)), b"{bad")
    src, out = f"kafka://{kafka.servers}/{name}", tmp_path / "out"
    source = {"schema": COLUMNS, "maxOffsetsPerTrigger": "4", **JSON}
    done = penstock.dry_run(src, out, source=source, sink={"format": "parquet"})
    assert ([batch.offsets for batch in done.batches], done.offsets, done.files) == ([4, 2], 6, 0)
    assert done.batches[0].first == f"{name}-0 from 0"
    assert (done.sample.rows, done.sample.set_aside, done.problem) == (5, 1, None)
    assert list(done.sample.columns) == ["id", "name", "_meta"]
    failing = penstock.dry_run(src, out, source={"schema": COLUMNS, "format": "json"}, sink={"format": "parquet"})
    assert f"{name}/0', offset 5" in (failing.problem or "")
    none = penstock.dry_run(f"kafka://{kafka.servers}/missing", out, source=source, sink={"format": "parquet"})
    assert "topic 'missing' is not there" in (none.problem or "")
    assert not out.exists()
