"""Helpers that drive the source of topics without Spark: options, a planner as a driver has it, and the contents of its ranges."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.kafka.cluster import Cluster
from penstock.kafka.offset import ranges
from penstock.kafka.plan import TopicPlanner
from penstock.kafka.read import read, schema
from penstock.options.topics import parse_topics

if TYPE_CHECKING:
    from penstock.options import Options
    from tests.support.kafka import Kafka

Offset = dict[str, Any]


def options(kafka: Kafka | str, **given: str | None) -> Options:
    """Return the options of a stream, which begins with the first records by default; `None` leaves an option out."""
    servers = kafka if isinstance(kafka, str) else kafka.servers
    given.setdefault("startingOffsets", "earliest")
    written = {name: value for name, value in given.items() if value is not None}
    return parse_topics({"kafka.bootstrap.servers": servers, **written}, stream=True)


class Stream:
    """A query without Spark: it plans and reads, and every offset passes through JSON, as in a checkpoint."""

    def __init__(self, kafka: Kafka | str, **given: str | None) -> None:
        self.options = options(kafka, **given)
        self.planner = TopicPlanner(self.options, Cluster(self.options))

    def initial(self) -> Offset:
        """Return the first offset."""
        return json.loads(json.dumps(self.planner.initial()))  # type: ignore[no-any-return]  # of JSON

    def next(self, start: Offset) -> Offset:
        """Return the end of the next batch."""
        return json.loads(json.dumps(self.planner.latest(start)))  # type: ignore[no-any-return]  # of JSON

    def rows(self, start: Offset, end: Offset) -> pa.Table:
        """Return the rows of a batch."""
        pieces = ranges(start, end, self.options["minPartitions"])
        batches = [batch for piece in pieces for batch in read(self.options, piece)]
        return pa.Table.from_batches(batches, schema(self.options))

    def values(self, start: Offset, end: Offset) -> list[bytes | None]:
        """Return the values of a batch, partition by partition."""
        return self.rows(start, end)["value"].to_pylist()  # type: ignore[no-any-return]  # Arrow's

    def rest(self, start: Offset) -> tuple[list[bytes | None], Offset]:
        """Return the values of all batches from an offset on, and the last offset."""
        values: list[bytes | None] = []
        while (end := self.next(start)) != start:
            values += self.values(start, end)
            start = end
        return values, start


def plain(offset: Offset) -> Offset:
    """Return an offset as Spark's own connector writes it."""
    return {topic: numbers for topic, numbers in offset.items() if topic[0] != "@"}
