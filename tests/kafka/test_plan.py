"""Plans, offsets, ranges and settings of topics, without a broker: the tests supply the brokers' answers."""

from __future__ import annotations

import json
import pickle
import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import BrokerAway, DamagedState, DependencyError, OptionError, RecordsLost, TopicNotThere
from penstock.ingestion.topics import left_of
from penstock.kafka import client
from penstock.kafka.cluster import Cluster, End, Topic
from penstock.kafka.offset import Partition, Positions, ranges
from penstock.kafka.plan import TopicPlanner
from penstock.options.topics import parse_topics
from tests.kafka.topics import Stream, options, plain

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SERVERS = "127.0.0.1:1"


class Said:
    """The brokers' answers about topics, as written by a test."""

    def __init__(self, topics: dict[str, Topic], ends: dict[Partition, int]) -> None:
        self.known, self.last = topics, ends
        self.first: dict[Partition, int] = {}
        self.undecided: dict[Partition, int] = {}
        self.epoch = -1

    def matching(self, pattern: str) -> set[str]:
        return {name for name in self.known if re.fullmatch(pattern, name)}

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {name: self.known[name] for name in names if name in self.known}

    def firsts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.first.get(partition, 0) for partition in partitions}

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, End]:
        return {partition: End(self.last[partition], self.epoch) for partition in partitions}

    def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {partition: self.undecided.get(partition, self.last[partition]) for partition in partitions}

    def since(self, times: Mapping[Partition, int]) -> dict[Partition, int]:
        return dict(times)  # a record's time is its offset


sizes = st.dictionaries(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), st.integers(0, 20), min_size=1)


@settings(max_examples=40)
@given(sizes, st.integers(1, 30), st.integers(1, 12))
def test_batches_lie_edge_to_edge(ends: dict[tuple[str, int], int], limit: int, pieces: int) -> None:
    """Batches by any limit, cut into any pieces, hold each offset once, and each as many as requested, or one for each partition."""
    last = {Partition(*key): end for key, end in ends.items()}
    names = {partition.topic for partition in last}
    topics = {name: Topic(f"id-{name}", tuple(n for t, n in sorted(last) if t == name)) for name in names}
    checked = options(SERVERS, subscribePattern=".*", maxOffsetsPerTrigger=str(limit))
    planner = TopicPlanner(checked, Said(topics, last))
    start = json.loads(json.dumps(planner.initial()))
    seen: list[tuple[Partition, int]] = []
    while (end := json.loads(json.dumps(planner.latest(start)))) != start:
        batch = ranges(start, end, pieces)
        size = sum(piece.end - piece.begin for piece in batch)
        assert len(batch) >= min(pieces, size) or pieces <= len(last) or len(batch) * 2 >= pieces
        assert start["@penstock"].get("begin") or size > 0
        assert size < limit + len(last)
        seen += [(piece.partition, at) for piece in batch for at in range(piece.begin, piece.end)]
        start = end
    assert sorted(seen) == sorted((partition, at) for partition, end in last.items() for at in range(end))
    assert len(set(seen)) == len(seen)


def test_all_that_is_available_is_what_was_there_when_it_was_asked() -> None:
    """A run of the available records ends where the topic ended when the run began, also if records and topics come meanwhile."""
    said = Said({"a": Topic("1", (0,))}, {Partition("a", 0): 5})
    planner = TopicPlanner(options(SERVERS, subscribePattern=".*", maxOffsetsPerTrigger="3"), said)
    start = planner.initial()
    planner.prepare_available_now()
    said.last = {Partition("a", 0): 50, Partition("b", 0): 9}
    said.known["b"] = Topic("2", (0,))
    first = planner.latest(start)
    last = planner.latest(first)
    assert (plain(first)["a"], plain(last)["a"]) == ({"0": 3}, {"0": 5})
    assert planner.latest(last) == last
    assert plain(last)["b"] == {"0": 0}
    assert planner.latest(start, limited=False)["a"] == {"0": 5}


@pytest.mark.parametrize("starting", ["latest", "earliest", '{"a": {"0": -1}}'])
def test_the_first_batch_keeps_where_a_query_begins(starting: str) -> None:
    """Spark asks for the first offset at each start: the first batch, even an empty one, stores it; its replay has the same records."""
    said = Said({"a": Topic("1", (0,))}, {Partition("a", 0): 5})
    planner = TopicPlanner(options(SERVERS, subscribe="a", startingOffsets=starting), said)
    start = json.loads(json.dumps(planner.initial()))
    begin = 0 if starting == "earliest" else 5
    first = json.loads(json.dumps(planner.latest(start)))
    assert first != start, "nothing new, and a batch"
    assert planner.latest(first) == first
    said.last = {Partition("a", 0): 9}
    for at in (start, json.loads(json.dumps(planner.initial()))):
        busy = json.loads(json.dumps(planner.latest(start)))
        said.last, said.first = {Partition("a", 0): 20}, {Partition("a", 0): 7}
        again = json.loads(json.dumps(planner.initial()))
        for other in (at, again):
            assert [(piece.begin, piece.end) for piece in ranges(other, busy)] == [(begin, 9)]
            assert [(piece.begin, piece.end) for piece in ranges(other, first)] == ([(0, 5)] if begin == 0 else [])
        said.last, said.first = {Partition("a", 0): 9}, {}
    assert [(piece.begin, piece.end) for piece in ranges(first, planner.latest(first))] == [(5, 9)]


@pytest.mark.parametrize("ends", [False, True])
def test_what_is_next_lies_after_the_end(ends: bool) -> None:
    """A partition that ends before the next offset is an error, also in a run of the available records, which must not end silently."""
    said = Said({"a": Topic("1", (0,))}, {Partition("a", 0): 5})
    for given_options in ({}, {"failOnDataLoss": "false"}):
        planner = TopicPlanner(
            options(SERVERS, subscribe="a", startingOffsets='{"a": {"0": 9}}', **given_options), said
        )
        if ends:
            planner.prepare_available_now()
        start = planner.initial()
        if given_options:
            assert plain(planner.latest(start)) == {"a": {"0": 5}}
        else:
            with pytest.raises(RecordsLost, match="ends at offset 5, expected at least 9"):
                planner.latest(start)


def test_what_is_next_is_not_decided_yet() -> None:
    """A reader of open transactions left its offset after the last stable one: we wait for that offset, and read each record once."""
    said = Said({"a": Topic("1", (0,))}, {Partition("a", 0): 5})
    said.undecided = {Partition("a", 0): 9}
    for word in ("true", "false"):
        planner = TopicPlanner(options(SERVERS, subscribe="a", failOnDataLoss=word), said)
        first = planner.latest({"a": {"0": 8}})
        assert plain(first) == {"a": {"0": 8}}
        said.last = {Partition("a", 0): 10}
        assert [(piece.begin, piece.end) for piece in ranges(first, planner.latest(first))] == [(8, 10)]
        said.last = {Partition("a", 0): 5}


def test_batch_that_ends_in_front_of_its_begin() -> None:
    """A batch between offsets in the wrong order, or after the end, is refused, and is not an empty batch."""
    said = Said({"a": Topic("1", (0,))}, {Partition("a", 0): 5})
    said.first = {Partition("a", 0): 2}
    servers = {"kafka.bootstrap.servers": SERVERS, "subscribe": "a"}

    def whole(**given_options: str) -> list[tuple[int, int]]:
        planner = TopicPlanner(parse_topics(servers | given_options, stream=False), said)
        return [(piece.begin, piece.end) for piece in ranges(*planner.whole())]

    assert whole() == [(2, 5)]
    assert whole(startingOffsets='{"a": {"0": 3}}', endingOffsets='{"a": {"0": 4}}') == [(3, 4)]
    assert whole(startingOffsets='{"a": {"0": 5}}') == []
    for wrong in (
        {"startingOffsets": '{"a": {"0": 4}}', "endingOffsets": '{"a": {"0": 3}}'},
        {"startingOffsets": '{"a": {"0": 6}}'},
        {"endingOffsets": '{"a": {"0": 1}}'},
    ):
        with pytest.raises(OptionError, match="the batch would begin at offset"):
            whole(**wrong)


def test_partition_that_is_assigned_later_begins_where_it_does() -> None:
    """A partition that the user adds to `assign` has lost nothing, although retention has deleted its first records."""
    said = Said({"a": Topic("1", (0, 1))}, {Partition("a", 0): 5, Partition("a", 1): 9})
    said.first = {Partition("a", 1): 7}
    start = TopicPlanner(options(SERVERS, assign='{"a": [0]}'), said).initial()
    end = TopicPlanner(options(SERVERS, assign='{"a": [0, 1]}'), said).latest(start)
    assert [(str(piece.partition), piece.begin, piece.end) for piece in ranges(start, end)] == [
        ("a-0", 0, 5),
        ("a-1", 7, 9),
    ]


def test_topic_that_is_gone_is_no_end_of_a_run_that_accepts_losses() -> None:
    """A run of the available records goes on without a topic that was deleted, as any other run does."""
    said = Said({"a": Topic("1", (0,)), "b": Topic("2", (0,))}, {Partition("a", 0): 5, Partition("b", 0): 9})
    planner = TopicPlanner(options(SERVERS, subscribe="a,b", failOnDataLoss="false"), said)
    start = planner.initial()
    del said.known["b"]
    planner.prepare_available_now()
    end = planner.latest(start)
    assert [(each.partition.topic, each.begin, each.end) for each in ranges(start, end)] == [("a", 0, 5)]
    assert planner.latest(end) == end


def test_topic_that_is_gone_stays_known(caplog: pytest.LogCaptureFixture) -> None:
    """A query that accepts losses goes on after one report; if the topic comes back it goes on where it was; a new topic begins anew."""
    partition = Partition("b", 0)
    said = Said({"a": Topic("1", (0,)), "b": Topic("2", (0,))}, {Partition("a", 0): 5, partition: 9})
    given = options(SERVERS, subscribe="a,b", failOnDataLoss="false")
    planner = TopicPlanner(given, said)
    at = planner.latest(planner.initial())
    del said.known["b"]
    for last in (6, 7):
        said.last[Partition("a", 0)] = last
        before, at = at, planner.latest(at)
        assert [(each.partition.topic, each.begin, each.end) for each in ranges(before, at)] == [("a", last - 1, last)]
    assert planner.latest(at) == TopicPlanner(given, said).latest(at) == at
    assert (
        sum("partition 0 of topic 'b' is gone" in record.getMessage() for record in caplog.records) == 2
    )  # by each planner
    said.last[partition] = 10
    for topic, begin in ((Topic("2", (0,)), 9), (Topic("3", (0,)), 0)):
        said.known["b"] = topic
        (piece,) = ranges(at, planner.latest(at))
        assert (piece.partition, piece.begin, piece.end, piece.id) == (partition, begin, 10, topic.id)
    strict = TopicPlanner(options(SERVERS, subscribe="a,b"), said)
    del said.known["b"]
    with pytest.raises(TopicNotThere, match="partition 0 of topic 'b' is gone"):
        strict.latest(at)


def test_topic_made_anew_while_all_that_is_available_is_taken() -> None:
    """The old topic's available records say nothing about the new topic, which the next run reads from first record to last."""
    said = Said({"a": Topic("1", (0,))}, {Partition("a", 0): 9})
    given = options(SERVERS, subscribe="a", failOnDataLoss="false", maxOffsetsPerTrigger="5")
    planner = TopicPlanner(given, said)
    planner.prepare_available_now()
    first = planner.latest(planner.initial())
    said.known, said.last = {"a": Topic("2", (0,))}, {Partition("a", 0): 3}
    assert [plain(planner.latest(each))["a"] for each in (first, planner.initial())] == [{"0": 0}, {"0": 0}]
    end = planner.latest(first)
    later = TopicPlanner(given, said)
    later.prepare_available_now()
    said.last = {Partition("a", 0): 4}
    assert [(each.begin, each.end, each.id) for each in ranges(end, later.latest(end))] == [(0, 3, "2")]


def test_epochs_of_leaders_are_those_of_what_was_planned() -> None:
    """A range has its plan's epoch, and the earlier plan's if the leader changed since; a partition without new records keeps its epoch."""
    a, b = Partition("a", 0), Partition("a", 1)
    said = Said({"a": Topic("1", (0, 1))}, {a: 5, b: 7})
    planner = TopicPlanner(options(SERVERS, subscribe="a"), said)
    start = json.loads(json.dumps(planner.initial()))
    said.epoch = 3
    first = json.loads(json.dumps(planner.latest(start)))
    assert first["@penstock"]["epochs"] == {"a": {"0": 3, "1": 3}}
    assert [(piece.epoch, piece.before) for piece in ranges(start, first)] == [(3, -1), (3, -1)]
    said.epoch, said.last = 4, {a: 9, b: 7}
    second = json.loads(json.dumps(planner.latest(first)))
    assert second["@penstock"]["epochs"] == {"a": {"0": 4, "1": 3}}, "nobody looks at what is not read"
    assert [(piece.begin, piece.epoch, piece.before) for piece in ranges(first, second, 2)] == [(5, 4, 3), (7, 4, -1)]
    said.last = {a: 10, b: 8}
    third = planner.latest(second)
    assert [(piece.partition, piece.epoch, piece.before) for piece in ranges(second, third)] == [(a, 4, -1), (b, 4, 3)]
    assert planner.latest(third) == third
    said.epoch = 5
    assert planner.latest(third) == third, "a leader that changes is no batch"
    said.first, said.last = {a: 20}, {a: 22, b: 8}
    lossy = TopicPlanner(options(SERVERS, subscribe="a", failOnDataLoss="false"), said)
    assert [(piece.begin, piece.epoch, piece.before) for piece in ranges(third, lossy.latest(third))] == [(20, 5, -1)]
    said.first, said.last, said.known = {a: 10}, {a: 11, b: 0}, {"a": Topic("2", (0, 1))}
    assert [(piece.begin, piece.before) for piece in ranges(third, lossy.latest(third))] == [(10, -1)], (
        "of another topic"
    )


def test_how_far_after_partitions_are_is_bounded() -> None:
    """An offset counts the planned and the unplanned records, and lists the latter for the hundred partitions that have most of them."""
    last = {Partition("a", number): number for number in range(300)}
    planner = TopicPlanner(
        options(SERVERS, subscribe="a", maxOffsetsPerTrigger="1000"), Said({"a": Topic("1", tuple(range(300)))}, last)
    )
    end = json.loads(json.dumps(planner.latest(planner.initial())))
    own = end["@penstock"]
    assert own["read"] + own["left"] == sum(last.values())
    assert sum(end["a"].values()) == own["read"]
    behind = left_of(end)
    assert len(behind) == 100
    assert behind["a-299"] == 299 - end["a"]["299"]
    assert min(behind.values()) >= 299 - 100 - end["a"]["199"] - 2
    last_offset = Positions.of(planner.latest(end)).counts
    assert last_offset is not None
    assert last_offset.read > own["read"]


def test_offset_that_is_none_is_told() -> None:
    """Anything else in place of an offset in a checkpoint is damage, never a new beginning; a later version is not interpreted."""
    offsets: tuple[dict[str, Any], ...] = (
        {"a": 5},
        {"a": {"x": 1}},
        {"a": {"0": None}},
        {"a": {"0": 1}, "@penstock": {"v": 2}},
        {"@penstock": []},
    )
    for offset in offsets:
        with pytest.raises(DamagedState, match="restore it from a copy"):
            Positions.of(offset)
    assert Positions.of({"a": {"0": 7}}).next == {Partition("a", 0): 7}


def test_options_that_lose_records_are_refused() -> None:
    """Options that would reset, skip or commit are refused, with the alternative; so are two selections, no selection, and no brokers."""
    good = {"subscribe": "a", "kafka.bootstrap.servers": SERVERS}
    for given_options, message in (
        (good | {"kafka.auto.offset.reset": "latest"}, "never skipped"),
        (good | {"kafka.enable.auto.commit": "true"}, "Spark's checkpoint has the offsets"),
        (good | {"kafka.sasl.jaas.config": "Hush"}, "kafka.sasl.password=env:NAME"),
        (good | {"kafka.metadata.broker.list": "elsewhere:9092"}, "kafka.bootstrap.servers has the brokers"),
        (good | {"kafka.stats_cb": "x"}, "is a function of Python"),
        (good | {"kafka.default.topic.config": "x"}, "by its own name"),
        (good | {"assign": '{"a": [0]}'}, "found subscribe and assign"),
        ({"kafka.bootstrap.servers": SERVERS}, "found none of them"),
        ({"subscribe": "a"}, "needs brokers"),
        ({**good, "subscribe": "a b"}, "is not a topic name"),
        (good | {"startingOffsets": "{}"}, "expected earliest, latest, or JSON"),
        (good | {"startingOffsets": '{"a": {"0": -3}}'}, "at least -2"),
        (good | {"endingOffsets": "latest"}, "for a batch"),
        (good | {"startingTimestamp": "yesterday"}, "expected milliseconds since 1970"),
        (good | {"startingTimestamp": "1", "startingOffsets": "earliest"}, "expected one of them"),
        (good | {"startingOffsetsByTimestamp": '{"a": {"0": -1}}'}, "expected JSON with milliseconds"),
        (good | {"endingTimestamp": "1"}, "endingTimestamp is for a batch"),
        (good | {"startingOffsets": '{"a": {"00": 1, "0": 2}}'}, "with an offset of at least -2"),
        (good | {"startingOffsets": '{"a": {"0": 9223372036854775808}}'}, "with an offset of at least -2"),
        (good | {"startingOffsets": '{"a": {"0": 1, "0": 2}}'}, "for each partition, each once"),
        (good | {"startingOffsets": '{"a": {"0": 1}, "a": {"1": 2}}'}, "for each partition, each once"),
        ({**good, "subscribe": ".."}, "is not a topic name"),
        ({"kafka.bootstrap.servers": SERVERS, "assign": '{"a": [0], "a": [1]}'}, "each topic once"),
        (good | {"timeout": "0s"}, "expected 1ms to 1h"),
        (good | {"timeout": "2h"}, "expected 1ms to 1h"),
        (good | {"kafka.group.id": ""}, "kafka.group.id is empty"),
        (good | {"kafka.bootstrap.servers": " , "}, "needs brokers"),
        (
            good | {"kafka.bootstrap.servers": "a:9092, SSL://b:9093"},
            "SSL:// is not what kafka.security.protocol says, which is plaintext",
        ),
        (good | {"kafka.bootstrap.servers": "http://a:9092", "kafka.security.protocol": "ssl"}, "which is ssl"),
        (good | {"startingOffsets": '{"a": "first"}'}, "one of these words for a topic"),
        (good | {"startingOffsets": '{"a": "earliest", "a": {"0": 1}}'}, "each once"),
        (good | {"startingOffsets": '{"a": {"0": "earliest"}}'}, "with an offset of at least -2"),
        (good | {"startingOffsets": '{"a": -1}'}, "with an offset of at least -2"),
    ):
        with pytest.raises(OptionError) as refused:
            parse_topics(given_options, stream=True)
        assert message in refused.value.message
        assert "Hush" not in refused.value.message
    with pytest.raises(OptionError, match=r"startingOffsets=latest \(or -1\)"):
        parse_topics(good | {"startingOffsets": '{"a": {"0": -1}}'}, stream=False)
    with pytest.raises(OptionError, match=r"startingOffsets=latest \(or -1\)"):
        parse_topics(good | {"startingOffsets": '{"a": "Latest"}'}, stream=False)
    with pytest.raises(OptionError, match=r"endingOffsets=.*expected latest, or JSON"):
        parse_topics(good | {"endingOffsets": '{"a": "earliest"}'}, stream=False)
    assert parse_topics(good | {"startingOffsets": " Earliest "}, stream=True)["startingOffsets"] == "earliest"
    for servers in ("PLAINTEXT://a:9092,b:9092", "a", "[::1]:9092"):
        parse_topics(good | {"kafka.bootstrap.servers": servers}, stream=True)
    with pytest.raises(OptionError, match=r"^(?!.*Nonsense7).*\*\*\*"):
        client.consumer({"bootstrap.servers": SERVERS, "security.protocol": "Nonsense7"}, print)
    with pytest.raises(OptionError, match="No such configuration property"):
        client.consumer({"bootstrap.servers": SERVERS, "fetch.max.wait.ms": "1"}, print)


def test_what_clients_of_java_have() -> None:
    """Kerberos, which is the default mechanism, and Java's regular expressions are refused, with what works here instead."""
    for more in ({}, {"sasl.mechanism": "GSSAPI"}):
        with pytest.raises(OptionError, match=r"kafka\.sasl\.mechanism is GSSAPI.*PLAIN, SCRAM-SHA-256"):
            client.consumer({"bootstrap.servers": SERVERS, "security.protocol": "SASL_PLAINTEXT"} | more, print)
    for java in (r"\Qa.b\E", r"a\p{Punct}b"):
        with pytest.raises(OptionError, match=r"of Python, which differs from Java's: bad escape.*orders-"):
            options(SERVERS, subscribePattern=java)


def test_offsets_of_few_of_many_partitions() -> None:
    """If `startingOffsets` leave out hundreds of partitions, the error names the first ones and counts the rest."""
    said = Said({"a": Topic("1", tuple(range(500)))}, {Partition("a", number): 0 for number in range(500)})
    planner = TopicPlanner(options(SERVERS, subscribe="a", startingOffsets='{"a": {"0": 0}}'), said)
    with pytest.raises(OptionError, match="mend a-1, .*, a-10, and 489 more$"):
        planner.initial()


def test_words_of_the_client_count_in_any_case() -> None:
    """The client accepts `READ_UNCOMMITTED` in any case, and so does the plan: both read to the same end."""
    for word, uncommitted in (("READ_UNCOMMITTED", True), ("read_uncommitted", True), ("Read_Committed", False)):
        cluster = Cluster(options(SERVERS, subscribe="a", **{"kafka.isolation.level": word}))
        assert cluster.reads_uncommitted is uncommitted


def test_secret_is_looked_up_where_it_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A literal password is refused; a reference is resolved anew for each connection, and the password is in no pickle and no error."""
    monkeypatch.setenv("KAFKA_PASSWORD", "Hush-1")
    key = tmp_path / "key.pem"
    key.write_text("Hush-2\n")
    known = {"bootstrap.servers": SERVERS, "sasl.password": "env:KAFKA_PASSWORD", "ssl.key.password": f"file:{key}"}
    checked = parse_topics({"subscribe": "a", **{f"kafka.{name}": value for name, value in known.items()}}, stream=True)
    assert b"Hush" not in pickle.dumps(checked)
    assert client.resolved(checked["kafka"]) == known | {"sasl.password": "Hush-1", "ssl.key.password": "Hush-2"}
    monkeypatch.setenv("KAFKA_PASSWORD", "Hush-3")
    assert client.resolved(checked["kafka"])["sasl.password"] == "Hush-3"
    for name in ("sasl.password", "ssl.key.pem", "sasl.oauthbearer.client.secret", "ssl.keystore.password"):
        with pytest.raises(OptionError, match="must say where the secret is") as refused:
            parse_topics({"subscribe": "a", "kafka.bootstrap.servers": SERVERS, f"kafka.{name}": "Hush-4"}, stream=True)
        assert "Hush" not in refused.value.message
    wrong = {"bootstrap.servers": SERVERS, "security.protocol": "ssl", "ssl.key.pem": f"file:{key}"}
    with pytest.raises(OptionError) as refused:
        client.consumer(wrong, print)
    assert "Hush" not in refused.value.message


def test_nobody_listens() -> None:
    """Where there is no broker, the first request ends at its time limit, and the error names the address."""
    with pytest.raises(BrokerAway, match=r"no answer from 127\.0\.0\.1:1"):
        Stream(SERVERS, subscribe="a", timeout="1s").initial()


def test_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without confluent-kafka the error says what to install, and where."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(DependencyError, match=r"pip install 'penstock\[kafka\]'"):
        Stream(SERVERS, subscribe="a").initial()
