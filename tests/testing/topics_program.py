"""An ingest of topics as a program that can be crashed anywhere: brokers, an engine with its offset log, tasks, and the sink."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock import clock
from penstock.formats.account import Account
from penstock.formats.aside import Aside
from penstock.ingestion.stage import CarriedRows, Stage
from penstock.ingestion.topics import Topics
from penstock.kafka import read
from penstock.kafka.carried import carried
from penstock.kafka.cluster import End, Topic
from penstock.kafka.offset import Partition, Range
from penstock.kafka.plan import TopicPlanner
from penstock.options import SINK, parse
from penstock.options.internal import LIVE_TOPICS
from penstock.options.topics import parse_topics
from penstock.session import ddl
from penstock.sink.ledger import STATE_DIRECTORY, Ledger
from penstock.sink.sink import Batch, Sink
from penstock.testing import Crashable, Program, compare, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from penstock.options import Options

ROOT, QUERY = "/out", "q"
_TASKS, _A_BATCH = 2, 3


class Brokers:
    """Two partitions that grow as batches are planned, each time with another leader; every fourth offset holds no record."""

    def __init__(self, offsets: int) -> None:
        self._offsets = offsets
        self.planned = 0

    def matching(self, pattern: str) -> set[str]:
        raise NotImplementedError

    def topics(self, names: Collection[str]) -> dict[str, Topic]:
        return {name: Topic("id", (0, 1)) for name in names}

    def firsts(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return dict.fromkeys(partitions, 0)

    def ends(self, partitions: Collection[Partition]) -> dict[Partition, End]:
        end = min(self._offsets, _A_BATCH * (self.planned + 1))
        return {each: End(end - each.number, self.planned) for each in partitions}

    def written(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        return {each: end.offset for each, end in self.ends(partitions).items()}

    def since(self, times: Mapping[Partition, int]) -> dict[Partition, int]:
        return dict(times)

    def records(self, partition: Partition, begin: int, end: int) -> list[int]:
        return [at for at in range(begin, end) if (at + partition.number) % 4]

    def read(self, options: Options, wanted: Range) -> Iterator[pa.RecordBatch]:
        """Stand in for `kafka.read.read`, with one record in each batch."""
        for at in self.records(wanted.partition, wanted.begin, wanted.end):
            row = dict.fromkeys(read.schema(options).names) | {
                "value": row_of(wanted.partition, at),
                "topic": wanted.partition.topic,
                "partition": wanted.partition.number,
                "offset": at,
                "timestampType": 0,
            }
            yield pa.RecordBatch.from_pylist([row], schema=read.schema(options))


def row_of(partition: Partition, at: int) -> bytes:
    """Return a record's value, which is also its line in the output."""
    return b'{"id":%d,"name":"%d"}' % (at, partition.number)


class TopicsProgram(Program):
    """Plans, notes the offset, reads, commits; its memory is Spark's offset log; a restart repeats the last batch of the log."""

    memory: tuple[str, ...]

    def __init__(self, offsets: int) -> None:
        self.memory = ()
        self.brokers = Brokers(offsets)
        source = {"format": "json", "sessionTimeZone": "UTC", "maxOffsetsPerTrigger": "4"}
        topics = Topics.of("kafka://nowhere:9092/orders", source)
        form = ddl.schema_json("id bigint, name string")
        self._stage = Stage.of(Stage.describe(dict(topics.given), form, None))
        self._planned = parse_topics(topics.planned(_TASKS), stream=True, table=LIVE_TOPICS)
        self._options = parse(SINK, {"path": ROOT, "format": "json", "rollRows": "3"}, what="sink")

    def run(self, disk: Crashable, rest: Callable[[], None]) -> None:
        """Act as a driver that starts, and goes on until there are no more records."""
        storage = disk.storage()
        storage.make_directory(ROOT)
        sink, owner = Sink(storage, ROOT, self._options, "s"), f"driver-{clock.now_ns()}"
        planner = TopicPlanner(self._planned, self.brokers)
        if self.memory:
            self._batch(sink, owner, len(self.memory) - 1)
        while True:
            rest()
            self.brokers.planned = len(self.memory)
            start = json.loads(self.memory[-1]) if self.memory else planner.initial()
            end = planner.latest(start)
            if end == start:
                break
            self.memory = (*self.memory, json.dumps(end))
            self._batch(sink, owner, len(self.memory) - 1)
        if sink.ledger.head().n:
            Sink.existing(storage, ROOT, "s").finish()

    def _batch(self, sink: Sink, owner: str, number: int) -> None:
        # Spark asks for the offset before the first batch at each start; here each start gets another one.
        start = json.loads(self.memory[number - 1]) if number else {"orders": {"0": 1 + len(self.memory)}}
        batch = Batch(QUERY, number)
        begun = sink.begin(owner, batch)
        results = []
        for writer, text in enumerate(carried(start, json.loads(self.memory[number]), _TASKS)):
            row = pa.RecordBatch.from_pydict({"splits": [text]})
            rows = CarriedRows(self._stage, iter([row]), Account(), Aside(), text=False, errors="fail")
            results.append(sink.write(begun, QUERY, number, writer, self._stage.schema, iter(rows)))
        sink.commit(batch, results)

    def check(self, disk: Crashable, *, final: bool) -> list[str]:
        """Look at the output: no record twice, none that was not decided; at the end all records."""
        lines = [line for data in visible(disk.storage(), ROOT).values() for line in data.splitlines()]
        head = Ledger(disk.storage(), f"{ROOT}/{STATE_DIRECTORY}/s/ledger", "s").head()
        decided = head.last_batch(QUERY)
        committed = self._rows(decided) if decided >= 0 else []
        return compare(lines, acknowledged=committed, offered=self._rows(len(self.memory) - 1)).complaints(final=final)

    def _rows(self, batch: int) -> list[bytes]:
        """Return the rows up to a batch, according to its offset."""
        if batch < 0:
            return []
        ends = json.loads(self.memory[batch])["orders"].items()
        parts = [(Partition("orders", int(number)), end) for number, end in ends]
        return [row_of(each, at) for each, end in parts for at in self.brokers.records(each, 0, end)]
