"""Reads a range of one partition as Arrow: all that is committed in it, each record once, or an error.

The client gives an object a record, so that each costs some calls in C, and no statement of Python: `map` over the methods of its class.
A consumer is kept by its process for the next range, since connecting to brokers takes longer than reading a few megabytes.
"""

from __future__ import annotations

import logging
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock import clock
from penstock.errors import BrokerAway, BrokerError, RecordsLost, TopicReplaced
from penstock.kafka import client, plan
from penstock.kafka.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from confluent_kafka import Consumer, KafkaError, Message

    from penstock.kafka.offset import Range
    from penstock.options import Options

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_COLUMNS = [
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
]
_BATCH_ROWS = 16_384
_BATCH_BYTES = 8 << 20  # of keys and values, about
_POLL_SECONDS = 0.5
_MICROSECONDS = 1000  # in a millisecond
_log = logging.getLogger("penstock.kafka")


def schema(options: Options) -> pa.Schema:
    """Return the columns, which are those of Spark's own connector."""
    return pa.schema(_COLUMNS + ([("headers", HEADERS)] if options["includeHeaders"] else []))


def read(options: Options, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order. `RecordsLost`, `TopicReplaced`, `TopicNotThere`, `BrokerAway`, `BrokerError`.

    Where a loss is no failure, what is left of the range; each loss is told.
    """
    reader = _reader(tuple(sorted(options["kafka"].items())), os.getpid(), options["timeout"])
    try:
        reader.check(wanted, options)
        yield from _batches(reader, wanted, options)
        reader.check(wanted, options)
    except (RecordsLost, TopicReplaced) as error:
        if options["failOnDataLoss"]:
            raise
        _log.warning("failOnDataLoss=false: %s", error)


def _batches(reader: _Reader, wanted: Range, options: Options) -> Iterator[pa.RecordBatch]:
    columns = schema(options)
    ready: list[Message] = []
    size = 0
    for messages in reader.messages(wanted, lossy=not options["failOnDataLoss"]):
        ready += messages
        size += sum(map(len, messages))
        if len(ready) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            yield arrow(ready, wanted, columns)
            ready, size = [], 0
    if ready:
        yield arrow(ready, wanted, columns)


def arrow(messages: list[Message], wanted: Range, columns: pa.Schema) -> pa.RecordBatch:
    """Return messages of one partition as rows."""
    from confluent_kafka import Message

    count = len(messages)
    kinds, milliseconds = np.fromiter(map(Message.timestamp, messages), dtype=_TIMES, count=count).view(np.int64).reshape(-1, 2).T
    arrays = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(wanted.partition.topic), count),
        pa.repeat(pa.scalar(wanted.partition.number, pa.int32()), count),
        _numbers(_offsets(messages), pa.int64()),
        # A record without a time has the kind 0 here; Spark has the time -1 for it, and kinds that are one less.
        _numbers(np.where(kinds == 0, -1, milliseconds) * _MICROSECONDS, columns.field("timestamp").type),
        _numbers((kinds - 1).astype(np.int32), pa.int32()),
    ]
    if len(columns) > len(arrays):
        arrays.append(pa.array(list(map(Message.headers, messages)), HEADERS))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


_TIMES = np.dtype([("kind", np.int64), ("milliseconds", np.int64)])


def _offsets(messages: list[Message]) -> Any:  # noqa: ANN401 - numpy's
    from confluent_kafka import Message

    return np.fromiter(map(Message.offset, messages), dtype=np.int64, count=len(messages))


def _numbers(values: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - numpy's
    """Return numbers as a column; `pa.array` would import pandas, a fifth of a second in each new process."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


@lru_cache(maxsize=1)
def _reader(given: tuple[tuple[str, str], ...], process: int, timeout: int) -> _Reader:  # noqa: ARG001 - one a process
    return _Reader(dict(given), timeout)


class _Reader:
    """A consumer of this process, and what asks brokers beside it."""

    def __init__(self, given: Mapping[str, str], timeout: int) -> None:
        self._given = given
        self._seconds = timeout / 1_000_000_000
        self._consumer: Consumer | None = None
        self._cluster: Cluster | None = None
        self._heard: KafkaError | None = None

    def check(self, wanted: Range, options: Options) -> None:
        """Raise `TopicReplaced` if the topic is another one than was planned, or is gone."""
        if not wanted.id:
            return
        if self._cluster is None:
            self._cluster = Cluster(options)
        name = wanted.partition.topic
        topic = self._cluster.topics([name]).get(name)
        known = topic.id if topic is not None else "none, as it is gone"
        if known != wanted.id:
            raise plan.replaced(name, wanted.id, known)

    def messages(self, wanted: Range, *, lossy: bool) -> Iterator[list[Message]]:
        """Yield the messages of a range as they come; what is behind its end is dropped."""
        begin: int | None = wanted.begin
        while begin is not None:
            consumer = self._assigned(wanted, begin)
            try:
                begin = yield from self._until_end(consumer, wanted, lossy=lossy)
            finally:
                consumer.unassign()

    def _until_end(self, consumer: Consumer, wanted: Range, *, lossy: bool) -> Iterator[list[Message]]:
        """Yield messages; return where to go on behind records that are lost, `None` at the end."""
        since = clock.monotonic()
        while True:
            messages = consumer.consume(1, _POLL_SECONDS)
            if not messages:
                self._check_patience(since, wanted)
                continue
            messages += consumer.consume(_BATCH_ROWS, 0)
            ...
