"""The kinds of input of an ingest: files below a directory, files that rows name, and topics of Kafka.

The job, the sink and the ledger are the same for every ingest. `Input` is what they need from an input, and each kind is a class
here; a new kind needs another class, and a line in `input_of`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import OptionError
from penstock.formats.families import TableFormat
from penstock.ingestion.dry import Preview
from penstock.ingestion.drytopics import TopicPreview
from penstock.ingestion.given import check_ours, given_options, text, texts
from penstock.ingestion.names import Names, names_taken
from penstock.ingestion.places import check_apart, check_directories
from penstock.ingestion.planning import FilePlanning, TopicPlanning
from penstock.ingestion.schema import ReadSchema
from penstock.ingestion.topics import Topics, topic_offset
from penstock.options import SOURCE, parse
from penstock.options.internal import LIVE_SOURCE, SPLITS
from penstock.options.parsers import path_list
from penstock.options.topics import is_topics
from penstock.session.streams import stream_reader
from penstock.source import configured
from penstock.source.plan import Planner
from penstock.source.where import where_of
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from penstock.ingestion.planning import Planning
    from penstock.ingestion.stage import Stage
    from penstock.query.checkpoint import Checkpoint
    from penstock.sink.sink import Sink
    from penstock.source.named import NameColumns
    from penstock.source.noted import SchemaNotes
    from penstock.source.where import Where
    from penstock.storage import Storage

# Long plans of an ingest lie beside the offset, so batches need not be small.
_FILES_A_BATCH = "100000"


class Input(Protocol):
    """What an ingest needs from its input. `options` are the user's checked options, by the names of the tables."""

    @property
    def options(self) -> Mapping[str, str]:
        """The options of the input for the stage on the executors."""

    @property
    def place(self) -> Where | None:
        """The place of the input in a storage; `None` if it is in none."""

    @property
    def storage(self) -> Storage | None:
        """The storage of `place`."""

    @property
    def columns(self) -> NameColumns | None:
        """The columns of the rows that name what is read; `None` if the plan names it."""

    @property
    def is_in_time(self) -> bool:
        """Whether files are read in the order of their times, so that an offset says up to which time everything is read."""

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return the schema as the user gave it, as it was noted, or as it is inferred. Raises `OptionError` and `SchemaChanged`."""

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Return a preview of what would be read, without Spark. `OptionError` if that cannot be known."""

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:
        """Return what is carried to `tasks` tasks, one row for each part of the input; `location` is the checkpoint's."""

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning | None:
        """Return the planner of `tasks` tasks for each batch in this process; `None` if a process of Spark must plan.

        Raises `OptionError` and `DependencyError`.
        """

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset at the end of a batch, which counts what was read; empty if it counts nothing. Raises `DamagedState`."""

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:
        """Return how many parts of a planned batch have changed since."""


def input_of(src: str, source: dict[str, Any], dst: str, checkpoint: str | None) -> Input:
    """Return the input for SRC and the options of `source`; output and checkpoint must not lie in it.

    `source` no longer has a schema, and is changed here. Raises `OptionError`; calls no broker and reads no file.
    """
    names = names_taken(source)
    if is_topics(src):
        check_directories(dst, checkpoint)
        check_ours(source, "source")
        return TopicInput(Topics.of(src, texts(source)))
    _, path = locate(src, name="SRC")
    place = where_of((path, *_absolute(source)), source.get("basePath"))
    check_apart(place, dst, checkpoint, strict=_is_strict(source), lists=names is None or names.is_published)
    options = {"maxFilesPerTrigger": _FILES_A_BATCH} | given_options(SOURCE, source, path, "source")
    if names is None:
        return FileInput(place, options)
    names.check(options)
    return NamedInput(place, options, names)


def place_of(src: str, source: Mapping[str, Any]) -> Where | None:
    """Return where an ingest with these options lists files; `None` if it lists none, for topics and for files that rows name."""
    given = dict(source)
    names = names_taken(given)
    if is_topics(src) or not (names is None or names.is_published):
        return None
    return where_of((locate(src, name="SRC")[1], *_absolute(given)), given.get("basePath"))


@dataclass(frozen=True)
class FileInput:
    """Files below one or several directories: Spark's driver plans them, and they are carried as splits."""

    place: Where
    options: Mapping[str, str]

    @property
    def storage(self) -> Storage:
        """The storage of the files."""
        return self.place.storage

    @property
    def columns(self) -> NameColumns | None:
        """None: the plan names what is read."""
        return None

    @property
    def is_in_time(self) -> bool:
        """Whether files are read whole: the order of files that grow is not that of their times."""
        return not parse(SOURCE, dict(self.options), what="source")["follow"]

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return the schema of the records."""
        return ReadSchema.of(schema, self.options, notes, committed)

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Return a preview that lists the input and plans as Spark's driver would."""
        return Preview(self.storage, self.options, stage, sink, checkpoint, _carried(checkpoint.location), notes=notes)

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:  # noqa: ARG002 - one of `Input`
        """Return the splits that the source plans."""
        carried = dict(self.options) | _carried(location) | {"tasks": str(tasks)}
        return stream_reader(spark, "penstock").options(**carried).load()

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning | None:
        """Return the planner, if the files are on this host, do not grow, and are not cleaned."""
        options = parse(LIVE_SOURCE, dict(self.options) | _carried(location) | {"tasks": str(tasks)}, what="source")
        if not self.storage.of_this_host or options["follow"] or options["cleanSource"] != "off":
            return None
        planner = configured.planner(options, stage.reading)
        assert isinstance(planner, Planner)  # noqa: S101 - another one is of files that are followed
        return FilePlanning(planner, packed=isinstance(stage.reading.form, TableFormat))

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset with the cursor after the last file."""
        return checkpoint.only_offset(number)

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:
        """Return how many splits of a plan belong to files that have changed."""
        options = parse(LIVE_SOURCE, dict(self.options) | _carried(checkpoint.location), what="source")
        reading = stage.reading
        splits = configured.planner(options, reading).splits(self.offset(checkpoint, number))
        return sum(not reading.files.has(split) for split in splits)


@dataclass(frozen=True)
class NamedInput(FileInput):
    """Files that rows name. Only the stream of these rows knows what was read, so an offset counts no file."""

    names: Names

    @property
    def columns(self) -> NameColumns | None:
        """The columns with names, sizes and ranges."""
        return self.names.columns

    @property
    def is_in_time(self) -> bool:
        """False: the order is that of the rows, and the times are those of the lists."""
        return False

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Raise `OptionError`."""
        del stage, sink, checkpoint, notes
        msg = "what rows name is not known before they are read: a dry run, and `penstock check`, look at no files; leave files out"
        raise OptionError(msg)

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:
        """Return the splits of the named files."""
        return self.names.splits(spark, self.options, stage, _notes_of_names(location), tasks)

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning | None:
        """Return the planner of lists, or of an output's events, that name files on this host; `None` for rows of a DataFrame."""
        if not self.storage.of_this_host:
            return None
        packed = isinstance(stage.reading.form, TableFormat)
        return self.names.planner_here(self.options, stage, _notes_of_names(location), tasks, packed=packed)

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:  # noqa: ARG002 - one of `Input`
        """Return nothing: the offset belongs to the stream of rows."""
        return {}

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:  # noqa: ARG002 - one of `Input`
        """Return how many splits of lists have changed; a changed file that a list names is found by the task that reads it."""
        return self.names.changed(self.options, checkpoint, number)


@dataclass(frozen=True)
class TopicInput:
    """Topics of Kafka: planned and carried as ranges of offsets."""

    topics: Topics
    place: None = None
    storage: None = None
    columns: None = None
    is_in_time: bool = False

    @property
    def options(self) -> Mapping[str, str]:
        """The options that were given, with the address as `path`."""
        return self.topics.given

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return the schema of the values, or of Kafka's own rows."""
        return self.topics.read_schema(schema, notes, committed)

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Return a preview that asks the brokers for the ends of the topics."""
        carried = _carried(checkpoint.location)
        return TopicPreview(None, self.options, stage, sink, checkpoint, carried, notes=notes, topics=self.topics)

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:  # noqa: ARG002 - one of `Input`
        """Return the ranges that the source of topics plans."""
        return self.topics.frame(spark, tasks)

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning:  # noqa: ARG002 - one of `Input`
        """Return the planner of topics. If a broker is away for a while, the client waits for it, so Spark is not needed."""
        return TopicPlanning(self.topics.planner(tasks), self.topics.options["minPartitions"] or tasks)

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the positions in all partitions."""
        return topic_offset(checkpoint, number)

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:  # noqa: ARG002 - one of `Input`
        """Return 0: records of a topic do not change, and the task that reads them finds out what retention has removed."""
        return 0


def _notes_of_names(location: str) -> str:
    return f"{location}/penstock/named"


def _carried(location: str) -> dict[str, str]:
    """Return the source options that make it emit splits."""
    return {"emit": SPLITS, "stateLocation": f"{location}/penstock"}


def _is_strict(source: Mapping[str, Any]) -> bool:
    """Tell whether SRC has to exist; the value of the option is checked later, with all others."""
    given = next((value for name, value in source.items() if name.lower() == "strictmode"), True)
    return text("strictMode", given).lower() != "false"


def _absolute(source: dict[str, Any]) -> tuple[str, ...]:
    """Return the further paths of a source. Makes them, and `basePath`, absolute in `source`, because other processes read them."""
    by_name = {name.lower(): name for name in source}
    if (name := by_name.get("basepath")) is not None:
        source["basePath"] = locate(source.pop(name), name="basePath")[1]
    name = by_name.get("paths")
    if name is None:
        return ()
    paths = [locate(path, name="paths")[1] for path in path_list(text(name, source.pop(name)), "paths")]
    source["paths"] = json.dumps(paths)
    return tuple(paths)
