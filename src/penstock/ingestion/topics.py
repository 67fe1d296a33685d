"""Topics of Kafka as the input of an ingest: SRC is `kafka://broker:port[,broker:port]/topic[,topic]`.

The job, the sink and the ledger are the same for every ingest. Only the contents of a plan, and the work of a task, are
different:

    plan      offsets of partitions, by `kafka.plan`, in Spark's offset log
    carried   ranges of offsets instead of ranges of bytes, about as many as there are tasks (`kafka.carried`)
    read      records of a range as Arrow (`kafka.read`), their values by `format` (`kafka.values`), or as they are without one

A range is read by position and its end is fixed, so a batch that is tried again, or replayed, has the same records in the same
order.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from penstock.errors import OptionError
from penstock.formats.families import RecordFormat
from penstock.formats.zones import zone_name
from penstock.ingestion.schema import ReadSchema, is_infer
from penstock.kafka import read
from penstock.kafka.carried import share_of
from penstock.kafka.offset import OURS, Partition, Positions
from penstock.kafka.values import ValueReader
from penstock.options import SOURCE, parse
from penstock.options.formats import VALUES
from penstock.options.internal import LIVE_TOPICS, SPLITS
from penstock.options.kafka import KAFKA
from penstock.options.topics import CLIENT, SERVERS, STARTING, is_topics, of_address, parse_topics
from penstock.session import ddl
from penstock.session.streams import stream_reader
from penstock.source import configured
from penstock.source.rescue import with_paths

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.formats.account import Account
    from penstock.formats.aside import Aside
    from penstock.kafka.plan import TopicPlanner
    from penstock.options import Options
    from penstock.query.checkpoint import Checkpoint
    from penstock.source.noted import SchemaNotes
    from penstock.source.read import Reading

# Options of a source of files that say how a value is read, or what becomes of a value that cannot be read.
_OF_VALUES = {"format", "badRecords", "metadataColumn"}
_OF_BOTH = {"quarantineLocation", "maxBadRecords", "maxBadFraction", "timeZone", "sessionTimeZone"}
# A record is one value, in UTF-8. So options about the places of records in a file, or about whole files, do not apply.
_OF_FILES = {"encoding", "lineSep", "header", "multiLine", "blockSize"}
# Unlike a stream, an ingest reads everything that is there. A batch that fails is tried again as a whole.
_USUAL = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "10000000"}

_VALUE_OPTIONS = tuple(
    option for option in SOURCE if (option.special or option.name in _OF_VALUES) and option.name not in _OF_FILES
)
_RECORD_OPTIONS = (*_VALUE_OPTIONS, *(option for option in SOURCE if option.name in _OF_BOTH))
TOPICS = (*KAFKA, *_RECORD_OPTIONS)
_VALUE = json.dumps(
    {"type": "struct", "fields": [{"name": "value", "type": "string", "nullable": True, "metadata": {}}]}
)
_ROWS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
_HEADERS = ", headers array<struct<key:string,value:binary>>"


@dataclass(frozen=True)
class Topics:
    """The user's options for topics: `given`, by the names of the tables, with the address as `path`; `options` are the same, checked."""

    given: Mapping[str, str]
    options: Options

    @staticmethod
    def of(src: str, source: Mapping[str, str]) -> Topics:
        """Return the checked options. Raises `OptionError`; calls no broker."""
        own = {name: text for name, text in source.items() if name != "path"}
        address = of_address(src)
        _check_told_once(address, own)
        _check_known(own)
        usual = _usual(own) | address
        options = parse_topics(usual | own, stream=True, table=TOPICS, what="source of topics")
        client = {CLIENT + name: text for name, text in options["kafka"].items()}
        given = {name: text for name, text in {**options.given, **client}.items() if name not in usual}
        return Topics({**given, "path": src}, options)

    @property
    def rows(self) -> dict[str, str]:
        """The options that say how values are read, for a source of files."""
        names = {option.name for option in _RECORD_OPTIONS} - {"metadataColumn"}
        chosen = {name: text for name, text in self.options.given.items() if name in names}
        return chosen | {"path": "/", "partitionColumns": "none"}

    @property
    def servers(self) -> str:
        """The addresses of the brokers."""
        return str(self.options["kafka"][SERVERS.removeprefix(CLIENT)])

    @property
    def as_they_are(self) -> bool:
        """Whether rows have Kafka's own columns, because no format is given."""
        return "format" not in self.options.given

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return the schema of the values, or Kafka's own schema if no format is given. Raises `OptionError` and `SchemaChanged`."""
        if self.as_they_are:
            self._check_plain(schema)
            return ReadSchema(ddl.schema_json(_ROWS + _HEADERS * bool(self.options["includeHeaders"])))
        if is_infer(schema):
            msg = "schema=infer looks at files, and this is a topic: say its columns, such as schema='id bigint, name string'"
            raise OptionError(msg)
        return ReadSchema.of(schema, self.rows, notes, committed)

    def _check_plain(self, schema: object) -> None:
        """Raise `OptionError` for options of values if rows have Kafka's own columns."""
        names = {option.name for option in _VALUE_OPTIONS}
        for name in [*(["schema"] if schema is not None else []), *sorted(names & set(self.options.given))]:
            msg = (
                f"{name} is for values that are decoded, and without a format rows have Kafka's own columns: add a format, such as json, "
                "or leave it out"
            )
            raise OptionError(msg)

    def frame(self, spark: SparkSession, tasks: int) -> DataFrame:
        """Return the ranges of the topics as rows, for `tasks` tasks in each batch."""
        return stream_reader(spark, "penstock-kafka").options(**self.planned(tasks)).load()

    def planner(self, tasks: int) -> TopicPlanner:
        """Return a planner in this process; `DependencyError` if the library is missing."""
        from penstock.kafka.cluster import Cluster
        from penstock.kafka.plan import TopicPlanner

        options = parse_topics(self.planned(tasks), stream=True, table=LIVE_TOPICS)
        return TopicPlanner(options, Cluster(options))

    def planned(self, tasks: int) -> dict[str, str]:
        """Return the options for the source that plans."""
        names = {option.name for option in KAFKA} - {"minPartitions"} | {"sessionTimeZone"}
        chosen = {name: text for name, text in self.options.given.items() if name in names}
        client = {CLIENT + name: text for name, text in self.options["kafka"].items()}
        return chosen | client | {"emit": SPLITS, "tasks": str(self.options["minPartitions"] or tasks)}


def _usual(own: Mapping[str, str]) -> dict[str, str]:
    """Return the defaults of an ingest for options that the user has not given in any form; the begin may also be given as a time."""
    written = {name.lower() for name in own}
    begins = any(name.lower() in written for name in STARTING)
    unsaid = [name for name in _USUAL if name.lower() not in written and not (begins and name in STARTING)]
    return {name: _USUAL[name] for name in unsaid}


def counts_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """Return how many offsets were planned, and how many were left, by a query's offset; 0 for a query of files."""
    own = offset.get(OURS, {})
    return {"input_offsets": own.get("read", 0), "left_offsets": own.get("left", 0)}


def left_of(offset: Mapping[str, Any]) -> dict[str, int]:
    """Return the offsets that were left, by partition, for at most a hundred partitions with the most; empty for a query of files."""
    left_offsets = offset.get(OURS, {}).get("behind", {})
    return {
        str(Partition(topic, number)): left for topic, each in left_offsets.items() for number, left in each.items()
    }


def topic_offset(checkpoint: Checkpoint, number: int) -> dict[str, Any]:
    """Return the end offset of a batch. `DamagedState` if it is not about topics alone, or was altered."""
    return checkpoint.sole_offset(number, "topics", Positions.of)


def unsaid_columns(src: str, source: Mapping[str, str]) -> str | None:
    """Return the format if its columns must be given and are not; `None` if nothing is missing. Raises `OptionError`."""
    given = {name: text for name, text in source.items() if name != "schema"}
    if "schema" in source:
        return None
    if is_topics(src):
        topics = Topics.of(src, given)
        return None if topics.as_they_are or topics.options["format"] in VALUES else str(topics.options["format"])
    options = parse(SOURCE, given | {"path": src}, what="source")
    return str(options["format"]) if options["emit"] == "records" and options["format"] not in VALUES else None


def _check_told_once(address: Mapping[str, str], source: Mapping[str, str]) -> None:
    """Raise `OptionError` for an option that repeats what SRC says."""
    for name in source:
        if name.lower() in {each.lower() for each in address}:
            msg = f"source option {name!r}: SRC says that, as kafka://broker:9092/topic; leave it out"
            raise OptionError(msg)
        if name.lower() == SERVERS.lower():
            msg = f"source option {name!r}: the brokers are in SRC, kafka://broker:9092/topic; leave it out"
            raise OptionError(msg)


def _check_known(source: Mapping[str, str]) -> None:
    """Raise `OptionError` for options of files."""
    ours = {name for option in TOPICS for name in option.names}
    of_files = {name for option in SOURCE for name in option.names}
    for name in source:
        if name.lower() in of_files - ours:
            msg = f"source option {name!r} is for files, and SRC is a topic, each of whose records is one value; leave it out"
            raise OptionError(msg)


@dataclass(frozen=True)
class TopicRows:
    """Reads the ranges of a task. `reading` has the format of values, and what becomes of bad values; it opens no file."""

    topics: Topics
    options: Options
    reading: Reading
    metadata: str | None
    passes_lines: bool = False

    @staticmethod
    def of(source: Mapping[str, str], schema: str) -> TopicRows:
        """Return the reader for the options and the schema (Spark's JSON) of a stage. Raises `OptionError`; touches nothing."""
        topics = Topics.of(source["path"], source)
        options = parse(SOURCE, topics.rows, what="source of topics")
        reading = configured.reading(options, _VALUE if topics.as_they_are else schema)
        form = reading.form
        if not isinstance(form, RecordFormat) and not form.as_it_is:
            msg = (
                f"format={form.name} is for whole files; expected text, json, csv or binary, which a record of a topic can be, or none, "
                "for Kafka's own columns"
            )
            raise OptionError(msg)
        name = topics.options["metadataColumn"]
        if name in reading.format.schema.names:
            msg = f"metadataColumn={name!r} is a column of the schema, too; choose another name, such as _meta"
            raise OptionError(msg)
        if topics.options["includeHeaders"] and not topics.as_they_are and name is None:
            msg = "includeHeaders needs metadataColumn, such as _meta, where format says what values are: the headers are in it"
            raise OptionError(msg)
        return TopicRows(topics, options, reading, name)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the rows."""
        if self.topics.as_they_are:
            return read.schema(self.topics.options)
        fields = list(self.reading.format.schema)
        return pa.schema([*fields, *([] if self.metadata is None else [pa.field(self.metadata, self._metadata)])])

    @property
    def _metadata(self) -> pa.DataType:
        return pa.struct([field for field in read.schema(self.topics.options) if field.name != "value"])

    def place(self, topic: str, number: int) -> str:
        """Return the address of a partition, for messages and for lines about what is set aside."""
        return f"kafka://{self.topics.servers}/{topic}/{number}"

    def text(self, batches: Iterable[pa.RecordBatch], aside: Aside | None) -> Iterator[bytes]:
        """Not called: a value may hold line breaks."""
        raise NotImplementedError

    def rows(
        self, batches: Iterable[pa.RecordBatch], account: Account, aside: Aside | None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the records of the ranges that `batches` carry. Raises what `kafka.read.read` raises, and `BadRecord`."""
        for batch in batches:
            for text in batch.column(0).to_pylist():
                share = share_of(text)
                values = None if self.topics.as_they_are else self._values(share.zone, account, aside)
                for wanted in share.ranges:
                    place = self.place(*wanted.partition)
                    for records in read.read(self.topics.options, wanted):
                        if values is None:
                            yield records
                            continue
                        parsed = values.rows(records, place)
                        rows = self._with_path(parsed.rows, place, account)
                        if rows.num_rows or (aside is not None and aside.waits):
                            yield self._with_metadata(rows, records, parsed.records)

    def _values(self, zone: str | None, account: Account, aside: Aside | None) -> ValueReader:
        fmt = self.reading.format
        if zone is not None and self.options["timeZone"] is None:
            fmt = replace(fmt, zone=zone_name(zone, "the plan's zone"))
        return ValueReader(fmt, self.reading.policy, account, aside)

    def _with_path(self, rows: pa.RecordBatch, place: str, account: Account) -> pa.RecordBatch:
        """Return rows with the address of their partition in the column for what is rescued."""
        name = self.reading.format.rescued
        if name is None or rows.column(name).null_count == rows.num_rows:
            return rows
        column = rows.schema.get_field_index(name)
        rescued = with_paths(rows.column(column), [place], np.zeros(rows.num_rows, np.int64), account)
        return rows.set_column(column, rows.schema.field(column), rescued)

    def _with_metadata(self, rows: pa.RecordBatch, records: pa.RecordBatch, chosen: Any) -> pa.RecordBatch:  # noqa: ANN401 - numpy's
        """Return rows with the metadata column, which has the fields of a record besides its value; `chosen` are the rows' records."""
        if self.metadata is None:
            return rows
        whole = len(chosen) == records.num_rows
        kind = self._metadata
        columns = [records.column(field.name) for field in kind]
        taken = columns if whole else [column.take(pa.array(chosen)) for column in columns]
        column = pa.StructArray.from_arrays(taken, fields=list(kind))
        return pa.RecordBatch.from_arrays([*rows.columns, column], schema=self.schema)
