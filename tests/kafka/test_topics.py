"""Topics on a real broker, without Spark: what a stream of them reads, and its errors."""

from __future__ import annotations

import json
import random
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any

import pytest

from penstock import clock
from penstock.cli import process
from penstock.errors import (
    BadRecord,
    BrokerAway,
    BrokerError,
    OptionError,
    RecordsLost,
    RecordsReplaced,
    TopicNotThere,
    TopicReplaced,
    TransactionOpen,
)
from penstock.kafka import read as module
from penstock.kafka.cluster import Cluster
from penstock.kafka.offset import Partition, ranges
from penstock.kafka.plan import TopicPlanner
from penstock.kafka.read import read
from penstock.options.topics import parse_topics
from penstock.testing import FakeClock
from tests.kafka.topics import Offset, Stream, options, plain
from tests.support.brokers import send_with_headers
from tests.support.follows import follows
from tests.support.jars import NoJars
from tests.support.wait import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.kafka import Kafka


def test_a_quarter_of_the_transactions_aborts(kafka: Kafka) -> None:
    """Every committed record comes once, in batches of every size, in pieces, as to an independent consumer; no other record comes."""
    topic = kafka.topic(partitions=3)
    producer = kafka.producer(topic)
    chance = random.Random(1)  # noqa: S311 - sizes and places of records
    for number in range(16):
        producer.begin_transaction()
        for each in range(chance.randrange(1, 9)):
            producer.produce(topic, value=b"%d.%d" % (number, each), partition=chance.randrange(3))
        if number % 4 == 3:
            producer.flush()
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    expected = kafka.committed(topic)
    for given in ({}, {"maxOffsetsPerTrigger": "20"}, {"minPartitions": "9"}, {"kafka.fetch.message.max.bytes": "200"}):
        stream = Stream(kafka, subscribe=topic, **given)
        start = stream.initial()
        rows: list[tuple[int, int, bytes]] = []
        while (end := stream.next(start)) != start:
            table = stream.rows(start, end)
            assert table.equals(stream.rows(start, end)), "a replay"
            rows += zip(*(table[name].to_pylist() for name in ("partition", "offset", "value")), strict=True)
            start = end
        assert sorted(rows) == sorted(expected)
        assert plain(start)[topic].keys() == {"0", "1", "2"}


def test_an_open_transaction_is_waited_for(kafka: Kafka) -> None:
    """A batch ends before the first undecided record: no record of an open transaction comes, or after it, until it is decided."""
    topic = kafka.topic()
    stream = Stream(kafka, subscribe=topic)
    begin = stream.initial()
    kafka.send(topic, b"before")
    producer = kafka.producer(topic)
    producer.begin_transaction()
    producer.produce(topic, value=b"open", partition=0)
    producer.flush()
    kafka.send(topic, b"behind")
    before, at = stream.rest(begin)
    assert before == [b"before"]
    assert plain(at) == {topic: {"0": 1}}
    uncommitted = Stream(kafka, subscribe=topic, **{"kafka.isolation.level": "read_uncommitted"})
    assert uncommitted.rest(begin)[0] == [b"before", b"open", b"behind"]
    producer.commit_transaction()
    wait_for(lambda: stream.next(at) != at, "the end of the transaction")
    assert stream.rest(at)[0] == [b"open", b"behind"]


def test_an_offset_in_an_open_transaction_is_waited_for(kafka: Kafka) -> None:
    """Spark's connector, which reads open transactions, left its offset inside one: once it is decided, nothing is lost or read twice."""
    topic = kafka.topic()
    producer = kafka.producer(topic)
    producer.begin_transaction()
    for number in range(5):
        producer.produce(topic, value=b"%d" % number, partition=0)
    producer.flush()
    streams = [Stream(kafka, subscribe=topic, failOnDataLoss=word, timeout="60s") for word in ("true", "false")]
    ends = [stream.next({topic: {"0": 3}}) for stream in streams]
    assert [plain(end) for end in ends] == [{topic: {"0": 3}}] * 2
    with ThreadPoolExecutor() as threads:
        replay = threads.submit(streams[0].values, {topic: {"0": 1}}, {topic: {"0": 3}})
        producer.commit_transaction()
        assert replay.result() == [b"1", b"2"]
    wait_for(lambda: streams[0].next(ends[0]) != ends[0], "the end of the transaction")
    for stream, end in zip(streams, ends, strict=True):
        assert stream.rest(end)[0] == [b"3", b"4"]


@follows("PST-906")
def test_a_transaction_that_stays_open_over_a_batch(kafka: Kafka) -> None:
    """A repeated batch ends in a transaction that stays open for longer than `timeout`: the error says so; once ended, it is read."""
    topic = kafka.topic()
    kafka.send(topic, b"before")
    producer = kafka.producer(topic)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, value=b"%d" % number, partition=0)
    producer.flush()
    # That is also how long a busy broker may take to say what holds it up.
    stream = Stream(kafka, subscribe=topic, timeout="5s")
    for begin in (0, 2):
        with pytest.raises(TransactionOpen, match="kafka-transactions") as held:
            stream.values({topic: {"0": begin}}, {topic: {"0": 3}})
        assert (held.value.topic, held.value.partition, held.value.offset) == (topic, 0, 1)
    producer.commit_transaction()
    assert stream.values({topic: {"0": 0}}, {topic: {"0": 3}}) == [b"before", b"0", b"1"]


def test_a_query_that_rests_says_what_keeps_records_back(kafka: Kafka, caplog: pytest.LogCaptureFixture) -> None:
    """A hanging transaction is reported after a minute without new records, and again every ten minutes; a quiet topic never is."""
    topic = kafka.topic()
    kafka.send(topic, b"before")
    stream = Stream(kafka, subscribe=topic)
    with clock.use(FakeClock()):
        _, at = stream.rest(stream.initial())
        for _ in range(100):
            clock.sleep(30)
            assert stream.next(at) == at
        assert not caplog.messages, "a quiet topic"
        producer = kafka.producer(topic)
        producer.begin_transaction()
        producer.produce(topic, value=b"open", partition=0)
        producer.flush()
        told = []
        for seconds in range(0, 1500, 20):
            assert stream.next(at) == at
            told += [(seconds, message) for message in caplog.messages]
            caplog.clear()
            clock.sleep(20)
        assert [seconds for seconds, _ in told] == pytest.approx([60, 660, 1260], abs=60)
        [message, *_] = (message for _, message in told)
        assert process._OURS.match(message), "the command hands it on"
        assert f"partition 0 of topic {topic!r} has been read up to offset 1 for" in message
        assert "what is written after it, up to offset 2, waits" in message
        assert f"abort --topic {topic} --partition 0 --start-offset 1`" in message
        producer.commit_transaction()
        wait_for(lambda: stream.next(at) != at, "the end of the transaction")
        assert stream.rest(at)[0] == [b"open"]
        clock.sleep(30)
    assert not caplog.messages


def test_columns_are_those_of_sparks_connector(kafka: Kafka) -> None:
    """Keys, values, headers, null and empty ones, times and their kinds, all have the types of Spark's connector."""
    topic = kafka.topic(partitions=2, settings={"retention.ms": "-1"})
    logged = kafka.topic(settings={"message.timestamp.type": "LogAppendTime"})
    producer = kafka.producer()
    producer.produce(
        topic, key=b"k", value=b"", partition=0, timestamp=1_700_000_000_123, headers=[("a", b"1"), ("a", None)]
    )
    producer.produce(topic, key=b"", value=None, partition=0, timestamp=1)
    producer.produce(logged, value=b"v", partition=0, timestamp=1)
    producer.flush()
    stream = Stream(kafka, subscribe=f"{topic}, {logged}", includeHeaders="true")
    table = stream.rows(start := stream.initial(), stream.next(start))
    rows = {(row["topic"], row["offset"]): row for row in table.to_pylist()}
    first, second, last = rows[topic, 0], rows[topic, 1], rows[logged, 0]
    assert first["headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    assert (first["key"], first["value"], first["timestamp"].isoformat(), first["timestampType"]) == (
        b"k", b"", "2023-11-14T22:13:20.123000+00:00", 0,
    )  # fmt: skip
    assert (second["key"], second["value"], second["headers"], second["partition"]) == (b"", None, None, 0)
    assert last["timestampType"] == 1
    assert last["timestamp"].year > 2024


def test_what_no_column_can_hold(kafka: Kafka) -> None:
    """A time in nanoseconds, and a header whose name is not text, are errors with their offset, or null where a loss is not a failure."""
    any_time = {f"message.timestamp.{side}.max.ms": str((1 << 63) - 1) for side in ("before", "after")}
    topic, headed = (kafka.topic(settings={**any_time, "retention.ms": "-1"}) for _ in range(2))
    producer = kafka.producer()
    times = [1, 1_700_000_000_000_000_000, (1 << 63) // 1000]
    for number in times:
        producer.produce(topic, value=b"v", partition=0, timestamp=number)
    producer.flush()
    try:
        send_with_headers(kafka.servers, headed, b"good", b"bad\xff", "gr\u00fcn".encode(), b"\xfe")
    except NoJars as error:
        pytest.skip(str(error))
    for name, offset, word in ((topic, 1, "found the time 1700000000000000000"), (headed, 1, "name is not UTF-8")):
        strict, lossy = (
            Stream(kafka, subscribe=name, includeHeaders="true", failOnDataLoss=each) for each in ("true", "false")
        )
        start = strict.initial()
        with pytest.raises(BadRecord, match=f"/{name}/0', offset {offset}: found.*{word}|{word}") as caught:
            strict.values(start, strict.next(start))
        assert (caught.value.path, caught.value.offset) == (f"kafka://{kafka.servers}/{name}/0", offset)
        table = lossy.rows(start, lossy.next(start))
        if name == topic:
            assert table["timestamp"].cast("int64").to_pylist() == [1000, None, times[2] * 1000]
        else:
            headers = [{"key": key, "value": b"1"} for key in ("good", "gr\u00fcn")]
            assert table["headers"].to_pylist() == [[headers[0]], None, [headers[1]], None]
    plain_rows = Stream(kafka, subscribe=headed)
    assert plain_rows.rest(plain_rows.initial())[0] == [b"value"] * 4, "who asks for no headers reads it"


def test_topics_that_begin_with_two_lines(kafka: Kafka) -> None:
    """A pattern matches topics that users named like a broker's internal topic, but not the brokers' internal topics."""
    topic = kafka.topic("__debezium-heartbeat.shop")
    kafka.producer(topic).begin_transaction()  # now the brokers have an internal topic, __transaction_state
    assert plain(Stream(kafka, subscribePattern="__.*").initial()) == {topic: {"0": 0}}


def test_where_a_query_begins(kafka: Kafka) -> None:
    """`earliest`, `latest`, single offsets with the two words, one pasted from a checkpoint; a missing or extra partition is named."""
    topic = kafka.topic(partitions=2)
    kafka.send(topic, b"a", b"b", b"c")
    kafka.send(topic, b"d", partition=1)
    known = Stream(kafka, subscribe=topic).initial()

    def begins(word: object, **given: str) -> object:
        text = word if isinstance(word, str) else json.dumps(word)
        return plain(Stream(kafka, startingOffsets=text, **(given or {"subscribe": topic})).initial())

    assert begins("earliest") == {topic: {"0": 0, "1": 0}}
    assert begins("latest") == {topic: {"0": 3, "1": 1}}
    assert begins({topic: {"0": -1, "1": -2}}) == {topic: {"0": 3, "1": 0}}
    assert begins(known | {topic: {"0": 1, "1": 1}}) == {topic: {"0": 1, "1": 1}}
    assert begins({topic: {"1": 1}}, assign=json.dumps({topic: [1]})) == {topic: {"1": 1}}
    assert begins("latest", subscribePattern=topic[:-1] + ".") == {topic: {"0": 3, "1": 1}}
    for wrong in ({topic: {"0": 1}}, {topic: {"0": 1, "1": 1, "2": 1}}):
        with pytest.raises(OptionError, match=f"mend {topic}-[12]"):
            begins(wrong)
    other = kafka.topic(partitions=2)
    kafka.send(other, b"e")
    both = {"subscribe": f"{topic},{other}"}
    assert begins({topic: "LATEST", other: {"0": 1, "1": -2}}, **both) == {
        topic: {"0": 3, "1": 1},
        other: {"0": 1, "1": 0},
    }
    assert begins({topic: "earliest"}, assign=json.dumps({topic: [1]})) == {topic: {"1": 0}}
    for missing in ({topic: "earliest"}, {topic: "earliest", other: "latest", "none": "latest"}):
        with pytest.raises(OptionError, match=rf"mend ({other}-0|none-0)"):
            begins(missing, **both)


def test_where_a_query_begins_by_time(kafka: Kafka) -> None:
    """Starts with the first record at a time or later, of all partitions or of each; without one it is an error, or the next record."""
    topic = kafka.topic(partitions=2, settings={"retention.ms": "-1"})
    producer = kafka.producer()
    for partition, times in ((0, (1000, 2000, 1500, 3000)), (1, (1000,))):
        for time in times:
            producer.produce(topic, value=b"%d.%d" % (partition, time), partition=partition, timestamp=time)
    assert producer.flush(30) == 0

    def begins(**given: str) -> Offset:
        return plain(Stream(kafka, subscribe=topic, startingOffsets=None, **given).initial())

    assert begins(startingTimestamp="0") == begins(startingTimestamp="1000") == {topic: {"0": 0, "1": 0}}
    each = json.dumps({topic: {"0": 1001, "1": 1000}})
    assert begins(startingOffsetsByTimestamp=each) == {topic: {"0": 1, "1": 0}}
    for late, at in ((2500, 3), (4000, 4)):
        with pytest.raises(OptionError, match=rf"{topic}-[01] has no record of {late} ms.*Strategy=latest"):
            begins(startingTimestamp=str(late))
        latest = {"startingTimestamp": str(late), "startingOffsetsByTimestampStrategy": "latest"}
        assert begins(**latest) == {topic: {"0": at, "1": 1}}
    with pytest.raises(OptionError, match=f"mend {topic}-1$"):
        begins(startingOffsetsByTimestamp=json.dumps({topic: {"0": 1}}))
    given = {"kafka.bootstrap.servers": kafka.servers, "subscribe": topic, "startingTimestamp": "1000"}
    for ending, end in (
        ({"endingTimestamp": "1600"}, {"0": 1, "1": 1}),
        ({"endingOffsetsByTimestamp": json.dumps({topic: {"0": 2500, "1": 0}})}, {"0": 3, "1": 0}),
    ):
        batch = parse_topics(given | ending, stream=False)
        assert plain(TopicPlanner(batch, Cluster(batch)).whole()[1]) == {topic: end}


def test_an_offset_of_sparks_connector_is_gone_on_with(kafka: Kafka) -> None:
    """An offset that Spark's own connector wrote says where to go on; from then on the topic is known by its id."""
    topic = kafka.topic()
    kafka.send(topic, b"a", b"b")
    stream = Stream(kafka, subscribe=topic)
    assert stream.next({topic: {"0": 2}}) == {topic: {"0": 2}}
    values, end = stream.rest({topic: {"0": 1}})
    assert values == [b"b"]
    assert end["@penstock"]["ids"].keys() == {topic}


def test_partitions_that_come(kafka: Kafka) -> None:
    """A new partition of a topic begins with its first record, and so does a new topic that matches."""
    topic = kafka.topic()
    stream = Stream(kafka, subscribePattern=f"{topic}.*", startingOffsets="latest")
    start = stream.initial()
    kafka.widen(topic, 3)
    kafka.send(topic, b"new", partition=2)
    values, end = stream.rest(start)
    assert values == [b"new"]
    other = kafka.topic(f"{topic}-b")
    kafka.send(other, b"gone", b"other")
    kafka.cut(other, 0, 1)
    last = stream.next(end)
    assert stream.values(end, last) == [b"other"]
    assert last["@penstock"]["from"] == {other: {"0": 1}}


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern", "assign"])
def test_topic_that_is_asked_for_again(kafka: Kafka, how: str) -> None:
    """A partition that is left out of the options for a while goes on where it was: nothing of it comes twice, nothing is skipped."""
    name, other = kafka.topic(partitions=2), kafka.topic()
    every, rest = {
        "subscribe": (f"{name},{other}", other),
        "subscribePattern": (f"{name}|{other}", other),
        "assign": (json.dumps({name: [0, 1], other: [0]}), json.dumps({name: [0], other: [0]})),
    }[how]

    def whole(**given: str) -> Stream:
        return Stream(kafka, **{how: every}, **given)

    part = Stream(kafka, **{how: rest})
    kafka.send(name, b"a", b"b", partition=1)
    values, end = whole().rest(whole().initial())
    assert values == [b"a", b"b"]
    kafka.send(name, b"c", partition=1)
    kafka.send(other, b"x")
    values, end = part.rest(end)
    assert values == [b"x"]
    assert end["@penstock"]["unasked"][name]["1"] == 2
    kafka.send(other, b"y")
    assert part.next(part.next(end)) == part.next(end)
    values, last = whole().rest(end)
    assert set(values) == {b"c", b"y"}
    assert "unasked" not in last["@penstock"]
    kafka.cut(name, 1, 3)
    kafka.send(name, b"d", partition=1)
    kafka.cut(name, 1, 4)
    with pytest.raises(RecordsLost, match="begins at offset 4, expected 2"):
        whole().next(end)
    kafka.delete(name)
    kafka.topic(name, partitions=2)
    kafka.send(name, b"new", partition=1)
    with pytest.raises(TopicReplaced):
        whole().next(end)
    assert set(whole(failOnDataLoss="false").rest(end)[0]) == {b"new", b"y"}


@follows("PST-904")
def test_retention_overtakes(kafka: Kafka) -> None:
    """Deleted records fail the plan and the task that would read them; a query that accepts losses goes on after them, and counts them."""
    topic = kafka.topic()
    stream, lossy = (Stream(kafka, subscribe=topic, failOnDataLoss=word) for word in ("true", "false"))
    start = stream.initial()
    kafka.send(topic, *(b"%d" % number for number in range(10)))
    end = stream.next(start)
    kafka.cut(topic, 0, 4)
    for refused in (stream.next, lambda at: stream.values(at, end)):
        with pytest.raises(
            RecordsLost, match="begins at offset 4, expected 0, which is next: retention took 4"
        ) as caught:
            refused(start)
        assert (caught.value.topic, caught.value.offset, caught.value.first) == (topic, 0, 4)
    assert lossy.values(start, end) == [b"%d" % number for number in range(4, 10)]
    begun = lossy.next(start)
    assert begun["@penstock"]["from"] == {topic: {"0": 4}}
    assert [(piece.begin, piece.end) for piece in ranges(start, begun)] == [(4, 10)]
    kafka.cut(topic, 0, 10)
    assert lossy.values(start, end) == []


@follows("PST-903")
def test_topic_made_anew(kafka: Kafka) -> None:
    """A new topic with the name and length of the old one is refused in plan and task; a new checkpoint, or accepting losses, reads it."""
    topic = kafka.topic()
    stream = Stream(kafka, subscribe=topic)
    kafka.send(topic, b"a", b"b")
    start = stream.initial()
    end = stream.next(start)
    kafka.delete(topic)
    kafka.topic(topic)
    kafka.send(topic, b"x", b"y")
    for refused in (stream.next, lambda _: stream.values(start, end)):
        with pytest.raises(TopicReplaced, match="it was deleted and made anew"):
            refused(end)
    assert Stream(kafka, subscribe=topic).rest(stream.initial())[0] == [b"x", b"y"]
    lossy = Stream(kafka, subscribe=topic, failOnDataLoss="false")
    assert lossy.values(start, end) == []
    values, last = lossy.rest(end)
    assert values == [b"x", b"y"]
    assert lossy.rest(last) == ([], last)


@pytest.mark.parametrize("accepts", [False, True], ids=["fails", "goes-on"])
def test_topic_deleted_with_a_range_half_read(kafka: Kafka, monkeypatch: pytest.MonkeyPatch, accepts: bool) -> None:
    """A task whose topic is deleted says so, and not that brokers do not answer; a task that accepts losses returns what was there."""
    monkeypatch.setattr(module, "_BATCH_ROWS", 10)
    topic = kafka.topic()
    apart: dict[str, Any] = {"batch.num.messages": 1}
    producer = kafka.producer(**apart)
    for number in range(60):
        producer.produce(topic, b"%d" % number + bytes(1000), partition=0)
    assert producer.flush(30) == 0
    little = {"kafka.fetch.message.max.bytes": "2000", "kafka.queued.min.messages": "1"}
    stream = Stream(kafka, subscribe=topic, timeout="3s", failOnDataLoss=str(not accepts), **little)
    start = stream.initial()
    (piece,) = ranges(start, stream.next(start))
    reading = read(stream.options, piece)
    offsets = next(reading)["offset"].to_pylist()
    assert 0 < len(offsets) < 40
    kafka.delete(topic)
    with nullcontext() if accepts else pytest.raises(TopicReplaced, match="none, as it is gone"):
        offsets += [offset for batch in reading for offset in batch["offset"].to_pylist()]
    assert offsets == list(range(len(offsets)))
    assert len(offsets) < 60


def test_topic_deleted_after_the_last_record(kafka: Kafka) -> None:
    """A task that has its whole range fails if the topic is gone and cannot be compared; a task that accepts losses returns the range."""
    topic = kafka.topic()
    kafka.send(topic, b"0", b"1")
    stream, accepts = (Stream(kafka, subscribe=topic, failOnDataLoss=word) for word in ("true", "false"))
    start = stream.initial()
    (piece,) = ranges(start, stream.next(start))
    readings = [read(each.options, piece) for each in (stream, accepts)]
    assert [next(each).num_rows for each in readings] == [2, 2]
    kafka.delete(topic)
    with pytest.raises(TopicNotThere):
        next(readings[0])
    assert list(readings[1]) == []


@pytest.mark.soak
def test_topic_made_anew_by_a_broker_that_was_started_again(kafka: Kafka) -> None:
    """A new topic's epochs begin anew, and a client takes them for outdated: the next range is read all the same, without a wait."""
    topic = kafka.topic()
    kafka.send(topic, b"a")
    kafka.kill()
    kafka.restart()
    lossy = Stream(kafka, subscribe=topic, failOnDataLoss="false", timeout="30s")
    start = lossy.initial()
    end = lossy.next(start)
    assert lossy.values(start, end) == [b"a"]
    kafka.delete(topic)
    kafka.topic(topic)
    kafka.send(topic, b"x", b"y")
    assert lossy.rest(end)[0] == [b"x", b"y"]


@follows("PST-902")
def test_topic_that_is_not_there(kafka: Kafka) -> None:
    """A wrong name is an error at once, a deleted topic when it is next; once the topic is made, or left out, the query goes on."""
    topic, other = kafka.topic(), kafka.topic()
    with pytest.raises(TopicNotThere, match=f"'{topic}-b' is not there"):
        Stream(kafka, subscribe=f"{topic},{topic}-b").initial()
    with pytest.raises(TopicNotThere, match="no partition 7"):
        Stream(kafka, assign=json.dumps({topic: [0, 7]})).initial()
    kafka.topic(f"{topic}-b")
    start = Stream(kafka, subscribe=f"{topic},{topic}-b").initial()
    assert plain(start).keys() == {topic, f"{topic}-b"}
    stream = Stream(kafka, subscribe=f"{topic},{other}")
    kafka.send(topic, b"a")
    start = stream.initial()
    kafka.delete(other)
    with pytest.raises(TopicNotThere, match="is gone, which was read up to offset 0"):
        stream.next(start)
    values, end = Stream(kafka, subscribe=topic, failOnDataLoss="false").rest(start)
    assert values == [b"a"]
    assert plain(end).keys() == {topic}


@pytest.mark.soak  # it takes a quarter of a minute; `test_plan.py` tests a missing broker
@follows("PST-901")
def test_broker_that_dies(kafka: Kafka) -> None:
    """A plan and a task without a broker fail at their time limit, by name; if the broker comes back meanwhile they go on."""
    topic = kafka.topic()
    kafka.send(topic, *(b"%d" % number for number in range(100)))
    stream, patient = Stream(kafka, subscribe=topic, timeout="2s"), Stream(kafka, subscribe=topic)
    start = patient.initial()
    end = patient.next(start)
    (piece,) = ranges(start, end)
    kafka.kill()
    with ThreadPoolExecutor() as threads:
        try:
            with pytest.raises(BrokerAway, match="see that they run"):
                stream.next(start)
            with pytest.raises(BrokerAway):
                list(read(stream.options, piece))
            waiting = threads.submit(patient.values, start, end)
        finally:
            kafka.restart()
        assert waiting.result() == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("again", [1, pytest.param(5, marks=pytest.mark.soak)])
def test_broker_dies_with_questions_unanswered(kafka: Kafka, again: int) -> None:
    """Whatever a plan asked of a broker that dies, it asks again: no answer is not the same as an answer such as "no such record"."""
    topic = kafka.topic(partitions=2)
    kafka.send(topic, b"0", b"1")
    zero, one = Partition(topic, 0), Partition(topic, 1)
    wide = options(kafka, subscribe=topic)
    (known,) = Cluster(wide).topics([topic]).values()
    questions: dict[str, tuple[Callable[[Cluster], object], object]] = {
        "topics": (lambda asked: asked.topics([topic]), {topic: known}),
        "matching": (lambda asked: asked.matching(topic), {topic}),
        "firsts": (lambda asked: asked.firsts([zero, one]), {zero: 0, one: 0}),
        "ends": (lambda asked: {each: end.offset for each, end in asked.ends([zero, one]).items()}, {zero: 2, one: 0}),
        "written": (lambda asked: asked.written([zero]), {zero: 2}),
        "since": (lambda asked: asked.since({zero: 1, one: 1}), {zero: 0}),
    }
    for _ in range(again):
        clusters = {name: Cluster(wide) for name in questions}
        assert all(asks(clusters[name]) == answer for name, (asks, answer) in questions.items()), "connected"
        with ThreadPoolExecutor(len(questions)) as threads:
            kafka.broker.signal(signal.SIGSTOP)
            waiting = {name: threads.submit(asks, clusters[name]) for name, (asks, _) in questions.items()}
            clock.sleep(0.5)
            kafka.kill()
            kafka.restart()
            given = {name: future.result() for name, future in waiting.items()}
        assert given == {name: answer for name, (_, answer) in questions.items()}


@pytest.mark.soak
def test_broker_dies_with_a_range_half_read(kafka: Kafka) -> None:
    """A task that has read a part of its range gets the rest, each record once; a leader that returns with all records is the same."""
    topic = kafka.topic()
    kafka.send(topic, *(b"%d" % number + bytes(900_000) for number in range(12)))
    stream = Stream(kafka, subscribe=topic, **{"kafka.queued.max.messages.kbytes": "1000"})
    start = stream.initial()
    end = stream.next(start)
    (whole,) = ranges(start, end)
    reading = read(stream.options, whole)
    offsets = next(reading)["offset"].to_pylist()
    assert 0 < len(offsets) < 12
    kafka.kill()
    kafka.restart()
    offsets += [offset for batch in reading for offset in batch["offset"].to_pylist()]
    assert offsets == list(range(12))
    kafka.send(topic, b"next")
    assert stream.rest(end)[0] == [b"next"]


@pytest.mark.soak
def test_leader_that_has_not_got_all_records(kafka: Kafka) -> None:
    """Other records stand at the offsets of lost ones: a replay, the next batch, and a range in which nobody sees a record fail by name.

    A query that accepts losses, or begins before the cut, reads what is there.
    """
    topic, hidden = kafka.topic(), kafka.topic()
    for name in (topic, hidden):
        kafka.send(name, b"0", b"1", b"2")
        kafka.send(name, b"3", b"4")
    stream, lossy = (Stream(kafka, subscribe=topic, failOnDataLoss=word) for word in ("true", "false"))
    aborted = Stream(kafka, subscribe=hidden)
    start, begin = stream.initial(), aborted.initial()
    end, upto = stream.next(start), aborted.next(begin)
    kafka.kill()
    for name in (topic, hidden):
        kafka.forget(name, 3)
    kafka.restart()
    kafka.send(topic, *(b"new %d" % number for number in range(3, 8)))
    producer = kafka.producer(hidden)
    producer.begin_transaction()
    for number in range(3, 5):
        producer.produce(hidden, value=b"aborted %d" % number, partition=0)
    producer.flush()
    producer.abort_transaction()
    last = stream.next(end)
    assert (plain(end), plain(last)) == ({topic: {"0": 5}}, {topic: {"0": 8}})
    for first, second in ((start, end), (end, last)):
        with pytest.raises(RecordsReplaced, match="before offset 5") as caught:
            stream.values(first, second)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == (topic, 0, 5)
    with pytest.raises(RecordsReplaced, match="before offset 5"):
        aborted.values(begin, upto)
    assert lossy.values(start, end) == [b"0", b"1", b"2", b"new 3", b"new 4"]
    assert lossy.values(end, last) == [b"new 5", b"new 6", b"new 7"]
    anew = Stream(kafka, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 3}}))
    assert anew.rest(anew.initial())[0] == [b"new %d" % number for number in range(3, 8)]


def test_who_takes_the_rows_may_take_time(kafka: Kafka) -> None:
    """A sink that takes rows slowly, for longer than `timeout`, is not taken for a silent broker."""
    topic = kafka.topic()
    kafka.send(topic, *(b"%d" % number + bytes(900_000) for number in range(12)))
    stream = Stream(kafka, subscribe=topic, timeout="60s", **{"kafka.queued.max.messages.kbytes": "1000"})
    start = stream.initial()
    (piece,) = ranges(start, stream.next(start))
    with clock.use(FakeClock()):
        reading = read(stream.options, piece)
        taken = len(next(reading))
        clock.sleep(70)
        assert 0 < taken < 12
        assert taken + sum(map(len, reading)) == 12


def test_compaction_leaves_gaps(kafka: Kafka) -> None:
    """Records that compaction removed are no loss: each key's newest record is there, and the range ends without its last offsets."""
    topic = kafka.topic(
        settings={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "min.compaction.lag.ms": "0",
        }
    )
    producer = kafka.producer()
    numbers = count()

    def is_compacted() -> bool:
        for number in islice(numbers, 50):
            producer.produce(topic, key=b"%d" % (number % 5), value=b"%d" % number, partition=0)
        producer.flush()
        return len(kafka.committed(topic)) < end_of(topic) - 60

    def end_of(name: str) -> int:
        at = plain(Stream(kafka, subscribe=name, startingOffsets="latest").initial())
        return int(at[name]["0"])

    wait_for(is_compacted, "compaction")
    expected = [value for _, _, value in kafka.committed(topic)]
    stream = Stream(kafka, subscribe=topic, maxOffsetsPerTrigger="30")
    values, last = stream.rest(stream.initial())
    assert set(values) >= set(expected[-50:])
    assert len(values) == len(set(values)) < plain(last)[topic]["0"] - 50


@follows("PST-900")
def test_broker_that_refuses(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login that a broker refuses fails at once, in plan and task, with its words but no password; once fixed, the query reads."""
    monkeypatch.setenv("KAFKA_PASSWORD", "Hush-1")
    topic = kafka.topic()
    kafka.send(topic, b"a")
    login = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "env:KAFKA_PASSWORD",
    }
    refused = Stream(kafka, subscribe=topic, **{f"kafka.{name}": value for name, value in login.items()})
    stream = Stream(kafka, subscribe=topic, **{"kafka.security.protocol": "plaintext"})
    start = stream.initial()
    (piece,) = ranges(start, stream.next(start))
    for call in (
        refused.initial,
        lambda: list(read(refused.options, piece)),
        lambda: list(read(refused.options, replace(piece, id=""))),
    ):
        with pytest.raises(BrokerError, match="SASL PLAIN mechanism handshake failed.*mend what it says") as caught:
            call()
        assert caught.value.code == "PST-900"
        assert "Hush" not in caught.value.message
    assert stream.rest(start)[0] == [b"a"]


def test_topic_deleted_under_a_query_that_accepts_losses(kafka: Kafka) -> None:
    """The query goes on while the topic is gone, and reads its successor; the other topics lose nothing meanwhile."""
    kept, gone = kafka.topic(), kafka.topic(partitions=2)
    stream = Stream(kafka, subscribe=f"{kept},{gone}", failOnDataLoss="false")
    kafka.send(kept, b"a")
    kafka.send(gone, b"b", partition=1)
    read_until, at = stream.rest(stream.initial())
    assert set(read_until) == {b"a", b"b"}
    kafka.delete(gone)
    for value in (b"c", b"d"):
        kafka.send(kept, value)
        values, at = stream.rest(at)
        assert values == [value]
    kafka.topic(gone)
    kafka.send(gone, b"e")
    assert stream.rest(at)[0] == [b"e"]
