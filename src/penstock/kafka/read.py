"""Reads a range of one partition as Arrow: all committed records in it, each once, or an error.

The client returns an object for each record, so each costs some calls in C, but no Python statement: `map` runs over the methods of its
class. A process keeps a consumer for the next range, because connecting to brokers takes longer than reading a few megabytes.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import lru_cache
from itertools import chain, filterfalse
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock import clock, failpoints
from penstock.errors import (
    BadRecord,
    BrokerAway,
    BrokerError,
    RecordsLost,
    RecordsReplaced,
    TopicNotThere,
    TopicReplaced,
)
from penstock.kafka import client, plan
from penstock.kafka.cluster import Cluster
from penstock.kafka.offset import UNKNOWN_EPOCH
from penstock.processes import no_collection

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping

    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

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
_LEAVING_SECONDS = 0.005
_LOOK_SECONDS = 5.0  # at most, for finding out why a partition gave nothing
# The client's answers to a seek while it still leaves its last assignment.
_LEAVING = frozenset({"_STATE", "_PREV_IN_PROGRESS"})
_MICROSECONDS = 1000  # in a millisecond
_MOST_MILLISECONDS = ((1 << 63) - 1) // _MICROSECONDS
_CUT = "log truncation"  # the client's words for an offset before which the leader has other records
_log = logging.getLogger("penstock.kafka")


def schema(options: Options) -> pa.Schema:
    """Return the columns, which are the columns of Spark's own connector."""
    return pa.schema(_COLUMNS + ([("headers", HEADERS)] if options["includeHeaders"] else []))


def read(options: Options, wanted: Range) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in order.

    Raises `RecordsLost`, `RecordsReplaced`, `TopicReplaced`, `TopicNotThere`, `TransactionOpen`, `BrokerAway`, `BrokerError`;
    `BadRecord` for a time or a header name that is not valid. If a loss is no failure, yields what is left of the range; each loss is
    logged.
    """
    pool = _pool(tuple(sorted(options["kafka"].items())), options["timeout"], options["failOnDataLoss"], os.getpid())
    reader = pool.pop() if pool else _Reader(options)
    try:
        reader.check(wanted)
        yield from _batches(reader, wanted, options)
        reader.check_leader(wanted)
    except (RecordsLost, RecordsReplaced, TopicNotThere, TopicReplaced) as error:
        if options["failOnDataLoss"]:
            raise
        _log.warning("failOnDataLoss=false: %s", error)
    else:
        reader.check(wanted)  # a failure in any case: yielded records may be from the other topic
    pool.append(reader)  # a reader that has failed is not used again


@lru_cache(maxsize=4)
def _pool(*settings: object) -> list[_Reader]:  # noqa: ARG001 - each has its own; the process id is among them, because no reader survives a fork
    """Return the readers with these settings that are not in use."""
    return []


def _batches(reader: _Reader, wanted: Range, options: Options) -> Iterator[pa.RecordBatch]:
    columns, unheld = schema(options), _UnheldValues(options, wanted)
    ready: list[Message] = []
    size = 0
    for messages in reader.messages(wanted):
        ready += messages
        size += sum(map(len, messages))
        if len(ready) >= _BATCH_ROWS or size >= _BATCH_BYTES:
            failpoints.hit("kafka.read")
            yield arrow(ready, wanted, columns, unheld)
            ready, size = [], 0
    if ready:
        failpoints.hit("kafka.read")
        yield arrow(ready, wanted, columns, unheld)


def arrow(messages: list[Message], wanted: Range, columns: pa.Schema, unheld: _UnheldValues) -> pa.RecordBatch:
    """Return messages of one partition as rows; values that no column can hold are reported to `unheld`, and null."""
    from confluent_kafka import Message

    count = len(messages)
    times = chain.from_iterable(map(Message.timestamp, messages))
    kinds, milliseconds = np.fromiter(times, np.int64, 2 * count).reshape(-1, 2).T
    arrays = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(wanted.partition.topic), count),
        pa.repeat(pa.scalar(wanted.partition.number, pa.int32()), count),
        _numbers(_offsets(messages), pa.int64()),
        # A record without a time has kind 0 here; Spark has the time -1 for it, and kinds that are one less.
        _moments(messages, np.where(kinds == 0, -1, milliseconds), columns.field("timestamp").type, unheld),
        _numbers((kinds - 1).astype(np.int32), pa.int32()),
    ]
    if len(columns) > len(arrays):
        arrays.append(pa.array(_headers(messages, unheld), HEADERS))
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def _offsets(messages: list[Message]) -> Any:  # noqa: ANN401 - numpy's
    from confluent_kafka import Message

    return np.fromiter(map(Message.offset, messages), dtype=np.int64, count=len(messages))


def _numbers(values: Any, kind: pa.DataType) -> pa.Array:  # noqa: ANN401 - numpy's
    """Return numbers as a column; `pa.array` would import pandas, a fifth of a second in each new process."""
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _moments(messages: list[Message], milliseconds: Any, kind: pa.DataType, unheld: _UnheldValues) -> pa.Array:  # noqa: ANN401 - numpy's
    """Return times as a column; a producer may have written other units, such as nanoseconds."""
    beyond = (milliseconds > _MOST_MILLISECONDS) | (milliseconds < -_MOST_MILLISECONDS)
    if not beyond.any():
        return _numbers(milliseconds * _MICROSECONDS, kind)
    first = int(np.flatnonzero(beyond)[0])
    unheld.tell(
        messages[first],
        f"found the time {milliseconds[first]}, expected milliseconds that a timestamp can hold, which nanoseconds are not",
    )
    return pa.array(np.where(beyond, 0, milliseconds) * _MICROSECONDS, kind, mask=beyond)


def _headers(messages: list[Message], unheld: _UnheldValues) -> list[Any]:
    """Return the headers of records; null for a record with a header name that is not UTF-8.

    The library refuses such a record, and must be asked for it only once: afterwards it has half of the headers.
    """
    from confluent_kafka import Message

    headers: list[Any] = []
    while len(headers) < len(messages):
        try:
            headers.extend(map(Message.headers, messages[len(headers) :]))  # headers before an error stay
        except SystemError as error:  # noqa: PERF203 - the loop continues after the record
            if not isinstance(error.__cause__, UnicodeDecodeError):
                raise
            unheld.tell(
                messages[len(headers)],
                "found a header whose name is not UTF-8, which the client cannot give; expected text",
            )
            headers.append(None)
    return headers


class _UnheldValues:
    """Values in the records of a range that no column, or not the client, can hold: a failure, or logged and null."""

    def __init__(self, options: Options, wanted: Range) -> None:
        self._fails: bool = options["failOnDataLoss"]
        servers, (topic, number) = options["kafka"]["bootstrap.servers"], wanted.partition
        self._place = f"kafka://{servers}/{topic}/{number}"

    def tell(self, message: Message, reason: str) -> None:
        """Raise `BadRecord` for a record, or log it if a loss is no failure."""
        msg = (
            f"{self._place!r}, offset {message.offset()}: {reason}; mend its producer, and set failOnDataLoss=false, by which "
            "such a value becomes null, and is reported"
        )
        if self._fails:
            raise BadRecord(msg, path=self._place, offset=message.offset())
        _log.warning("failOnDataLoss=false: %s", msg)


class _Reader:
    """A consumer of this process, and a client that asks brokers beside it."""

    def __init__(self, options: Options) -> None:
        self._given: Mapping[str, str] = options["kafka"]
        self._seconds = options["timeout"] / 1_000_000_000
        self._lossy = not options["failOnDataLoss"]
        self._options, self._cluster = options, Cluster(options)
        self._consumer: Consumer | None = None
        self._ids: dict[str, str] = {}  # ids of the topics that the consumer has read
        self._heard = client.Heard()

    def check(self, wanted: Range) -> None:
        """Raise `TopicReplaced` if the topic is another one than was planned, or is gone."""
        name = wanted.partition.topic
        _check_id(self._cluster, wanted)
        if self._ids.setdefault(name, wanted.id) != wanted.id:
            # A client takes the leaders of a topic that was made anew for stale, because epochs begin anew: it would wait for ever.
            self._ids, self._consumer = {name: wanted.id}, None

    def check_leader(self, wanted: Range) -> None:
        """Raise `RecordsReplaced` if other records are in the place of the range's records, `RecordsLost` if none are.

        As long as the leader is the plan's leader, there is nothing to check.
        """
        if wanted.epoch == UNKNOWN_EPOCH:
            return
        now = self._cluster.ends([wanted.partition])[wanted.partition].epoch
        if now in {UNKNOWN_EPOCH, wanted.epoch}:
            return
        if now < wanted.epoch:
            raise plan.overwritten(wanted.partition, wanted.end, wanted.epoch)
        consumer = self._opened()
        try:
            self._look_at_end(consumer, wanted)
        finally:
            consumer.unassign()

    def _look_at_end(self, consumer: Consumer, wanted: Range) -> None:
        """Go to the end of a range, where the leader says whether the records before it are of the epoch that was planned."""
        self._go_to(consumer, wanted, wanted.end, wanted.epoch)
        since = clock.monotonic()
        while clock.monotonic() - since <= self._seconds:
            for message in self._next(consumer, wanted):
                if message.error() is None or self._reached_by(message, wanted.end, wanted) is not None:
                    return
        raise self._silent(wanted, wanted.end)

    def messages(self, wanted: Range) -> Iterator[list[Message]]:
        """Yield the messages of a range as they come; messages after its end are dropped."""
        consumer = self._opened()
        at: int | None = wanted.begin
        epoch = wanted.before
        try:
            while at is not None:
                at = yield from self._until_end(consumer, wanted, at, epoch)
                epoch = UNKNOWN_EPOCH
        finally:
            consumer.unassign()

    def _until_end(
        self, consumer: Consumer, wanted: Range, at: int, epoch: int
    ) -> Generator[list[Message], None, int | None]:
        """Yield messages from an offset on; return where to continue after records that are lost, `None` at the end.

        Records before the offset must be of `epoch` or earlier ones, if that is known: the client asks the leader.
        """
        from confluent_kafka import Message

        self._go_to(consumer, wanted, at, epoch)
        since = clock.monotonic()
        while at < wanted.end:
            messages = self._next(consumer, wanted)
            records = list(filterfalse(Message.error, messages))
            if records:
                reached = _offsets(records)
                _check_order(at, reached, wanted)
                at = int(reached[-1]) + 1
                chosen = records[: int(np.searchsorted(reached, wanted.end))]
                self._check_epoch(chosen, wanted)
                yield chosen
                since = clock.monotonic()  # not before: the consumer of the messages may take any time
            for message in filter(Message.error, messages):
                if (reached_at := self._reached_by(message, at, wanted)) is not None:
                    return reached_at if reached_at < wanted.end else None
            if not records and clock.monotonic() - since > self._seconds:
                self._check_why(wanted)
                raise self._silent(wanted, at)
        return None

    def _go_to(self, consumer: Consumer, wanted: Range, at: int, epoch: int) -> None:
        """Go to an offset; if an epoch is known of the records before it, the client asks the leader before it reads.

        It asks at every `seek`, whatever it knows of the partition; at `assign` only if it does not know the leader yet. As long as the
        client still leaves its last assignment, in a thread of its own, it refuses to seek.
        """
        from confluent_kafka import KafkaException, TopicPartition

        place = TopicPartition(*wanted.partition, at, leader_epoch=epoch)
        since = clock.monotonic()
        try:
            consumer.assign([place])
            while epoch != UNKNOWN_EPOCH and not _has_sought(consumer, place):
                if clock.monotonic() - since > self._seconds:
                    raise self._silent(wanted, at)
                clock.sleep(_LEAVING_SECONDS)
        except KafkaException as error:
            raise self._told(error.args[0], wanted) from error

    def _next(self, consumer: Consumer, wanted: Range) -> list[Message]:
        """Return the messages that have come: none, or one and all that are ready after it. Waiting for more than one would take longer."""
        from confluent_kafka import KafkaException

        try:
            messages: list[Message] = consumer.consume(1, _POLL_SECONDS)
            if messages:
                with no_collection():
                    messages += consumer.consume(_BATCH_ROWS, 0)
                self._heard.forget()
        except KafkaException as error:
            raise self._told(error.args[0], wanted) from error
        if not messages and (refusal := self._heard.refusal) is not None:
            raise self._told(refusal, wanted)
        return messages

    def _reached_by(self, message: Message, at: int, wanted: Range) -> int | None:
        """Return the offset that an event reaches: the end of the partition, or of lost records; `None`: continue."""
        error = message.error()
        if error.name() == "_PARTITION_EOF":
            reached: int = message.offset()
            return reached if reached >= wanted.end else self._short_of(wanted)
        if error.name() == "_AUTO_OFFSET_RESET":
            return self._lost(error, at, wanted)
        # Without a partition it concerns a group, and no group is used.
        if client.is_away(error) or message.topic() is None:
            self._heard.hear(error)
            return None
        raise self._told(error, wanted)

    def _short_of(self, wanted: Range) -> int | None:
        """Return `None` to continue if a partition seems to end before the range's end; that end if there is nothing to continue to.

        The range's end existed when it was planned. A new leader reports no end until it knows that no other one had a later end, so
        its answer does not depend on timing. `RecordsLost` if a loss is a failure.
        """
        end = self._cluster.written([wanted.partition])[wanted.partition]
        if end >= wanted.end:
            return None
        self._accept(plan.cut_off(wanted.partition, wanted.end, end))
        return wanted.end

    def _check_why(self, wanted: Range) -> None:
        """Raise what keeps a partition from giving records, if its brokers know; brokers that are away were waited for already.

        `TopicReplaced` if the topic is gone, `TransactionOpen` if the partition has the whole range, and records before its end are not
        decided.
        """
        asked = Cluster(self._options, most_seconds=_LOOK_SECONDS)
        with suppress(BrokerAway):
            _check_id(asked, wanted)
            stable = asked.ends([wanted.partition])[wanted.partition].offset
            if stable < wanted.end <= asked.written([wanted.partition])[wanted.partition]:
                raise plan.undecided(wanted.partition, wanted.end, stable, self._seconds, self._given)

    def _lost(self, error: KafkaError, at: int, wanted: Range) -> int:
        """Return the offset at which to continue, the end if nothing is left; `RecordsLost`, `RecordsReplaced` if a loss is a failure."""
        first = self._cluster.firsts([wanted.partition])[wanted.partition]
        is_cut = _CUT in error.str()
        if first > at:
            if at == wanted.end and not is_cut:
                return first  # retention took records that were read before
            self._accept(plan.lost(wanted.partition, at, first))
            return first
        end = self._cluster.ends([wanted.partition])[wanted.partition].offset
        if end < at:
            self._accept(plan.cut_off(wanted.partition, at, end))
            return wanted.end
        if not is_cut:
            raise self._told(error, wanted)
        self._accept(plan.overwritten(wanted.partition, at, wanted.before if at == wanted.begin else wanted.epoch))
        return at

    def _check_epoch(self, chosen: list[Message], wanted: Range) -> None:
        """Check that records are of the epoch that was planned, or earlier ones; epochs rise, so the last record tells."""
        if chosen and wanted.epoch != UNKNOWN_EPOCH and (chosen[-1].leader_epoch() or 0) > wanted.epoch:
            self._accept(plan.overwritten(wanted.partition, wanted.end, wanted.epoch))

    def _accept(self, loss: BrokerError) -> None:
        """Raise a loss, or log it if a loss is no failure."""
        if not self._lossy:
            raise loss
        _log.warning("failOnDataLoss=false: %s", loss)

    def _silent(self, wanted: Range, at: int) -> BrokerAway:
        """Return the error for a partition that has given neither a record nor its end for too long."""
        msg = (
            f"partition {wanted.partition.number} of topic {wanted.partition.topic!r} gave nothing for {self._seconds:g} s at offset {at} "
            f"of {wanted.end}{self._heard.words}; see that the brokers at {self._given['bootstrap.servers']} run and can be reached from "
            "here, then start the query again, with a larger timeout if they are slow"
        )
        return BrokerAway(msg)

    def _opened(self) -> Consumer:
        if self._consumer is None:
            self._consumer = client.consumer(self._given, self._heard.hear)
        return self._consumer

    def _told(self, error: KafkaError, wanted: Range) -> BrokerError:
        return client.told(
            error, f"partition {wanted.partition.number} of topic {wanted.partition.topic!r}", self._given
        )


def _check_id(cluster: Cluster, wanted: Range) -> None:
    """Raise `TopicReplaced` if the topic of a range is another one than was planned, or is gone."""
    if wanted.id:
        name = wanted.partition.topic
        topic = cluster.topics([name]).get(name)
        known = topic.id if topic is not None else "none, as it is gone"
        if known != wanted.id:
            raise plan.replaced(name, wanted.id, known)


def _has_sought(consumer: Consumer, place: TopicPartition) -> bool:
    """Seek; tell whether the client has accepted it, which it does not while it leaves its last assignment."""
    from confluent_kafka import KafkaException

    try:
        consumer.seek(place)
    except KafkaException as error:
        if error.args[0].name() not in _LEAVING:
            raise
        return False
    return True


def _check_order(at: int, reached: Any, wanted: Range) -> None:  # noqa: ANN401 - numpy's
    """Raise `BrokerError` for records before `at`, or not in rising order: they came before, or the topic is not what it was."""
    if reached[0] < at or not (np.diff(reached) > 0).all():
        msg = (
            f"partition {wanted.partition.number} of topic {wanted.partition.topic!r} gave offset {reached[0]} or a later one out of "
            f"order, expected rising ones from {at} on; start the query again, which reads the range anew"
        )
        raise BrokerError(msg)
