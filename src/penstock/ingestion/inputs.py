"""What an ingest reads: files below a directory, files that rows name, or topics of Kafka.

The job, the sink and the ledger are those of every ingest. What they ask of an input is `Input`, and each kind is a class here; another
kind is a class more, and a line in `input_of`.
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

# Plans of an ingest have a place beside the offset, so batches need not be small.
_FILES_A_BATCH = "100000"


class Input(Protocol):
    """What an ingest asks of its input. `options` are the user's, by the names of the tables, checked."""

    @property
    def options(self) -> Mapping[str, str]:
        """What the stage on the executors is told of the input."""

    @property
    def place(self) -> Where | None:
        """Where it is in a storage; `None`: in no storage."""

    @property
    def storage(self) -> Storage | None:
        """The storage of `place`."""

    @property
    def columns(self) -> NameColumns | None:
        """The columns of the rows that name what is read; `None`: the plan names it."""

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return what is read, by the user's word, by what is noted, or by a look. Raises `OptionError` and `SchemaChanged`."""

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Return what looks at what would be read, without Spark. `OptionError` where that cannot be known."""

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:
        """Return what is carried to `tasks` tasks, a row a part of the input; `location` is the checkpoint's."""

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning | None:
        """Return what plans `tasks` tasks a batch in this process; `None` where that is for a process of Spark's.

        Raises `OptionError` and `DependencyError`.
        """

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the offset at the end of a batch, which counts what was read; empty where it counts nothing. Raises `DamagedState`."""

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:
        """Return how many parts of a batch that was planned are no longer what was planned."""


def input_of(src: str, source: dict[str, Any], dst: str, checkpoint: str | None) -> Input:
    """Return the input that SRC and the options of `source` say; output and checkpoint may not lie in it.

    `source` has no schema any more, and is taken apart. Raises `OptionError`; asks no broker and reads no file.
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
    """Return where an ingest with these options lists files; `None` where it lists none: topics, and files that rows name."""
    given = dict(source)
    names = names_taken(given)
    if is_topics(src) or not (names is None or names.is_published):
        return None
    return where_of((locate(src, name="SRC")[1], *_absolute(given)), given.get("basePath"))


@dataclass(frozen=True)
class FileInput:
    """Files below a directory, or below several: planned by Spark's driver, and carried as splits."""

    place: Where
    options: Mapping[str, str]

    @property
    def storage(self) -> Storage:
        """The storage that has them."""
        return self.place.storage

    @property
    def columns(self) -> NameColumns | None:
        """None: the plan names what is read."""
        return None

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return the schema of the records."""
        return ReadSchema.of(schema, self.options, notes, committed)

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Return what lists the input and plans as Spark's driver would."""
        return Preview(self.storage, self.options, stage, sink, checkpoint, _carried(checkpoint.location), notes=notes)

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:  # noqa: ARG002 - one of `Input`
        """Return the splits that the source plans."""
        carried = dict(self.options) | _carried(location) | {"tasks": str(tasks)}
        return spark.readStream.format("penstock").options(**carried).load()

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning | None:
        """Return the planner of files that do not grow and stay where they are, on this host."""
        options = parse(LIVE_SOURCE, dict(self.options) | _carried(location) | {"tasks": str(tasks)}, what="source")
        if not self.storage.of_this_host or options["follow"] or options["cleanSource"] != "off":
            return None
        planner = configured.planner(options, stage.reading)
        assert isinstance(planner, Planner)  # noqa: S101 - another one is of files that are followed
        return FilePlanning(planner, packed=isinstance(stage.reading.form, TableFormat))

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the cursor behind the last file."""
        return checkpoint.only_offset(number)

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:
        """Return how many splits of a plan are of files that are not as they were."""
        options = parse(LIVE_SOURCE, dict(self.options) | _carried(checkpoint.location), what="source")
        reading = stage.reading
        splits = configured.planner(options, reading).splits(self.offset(checkpoint, number))
        return sum(not reading.files.has(split) for split in splits)


@dataclass(frozen=True)
class NamedInput(FileInput):
    """Files that rows name: what was read is known to the rows' own stream, so an offset counts no file."""

    names: Names

    @property
    def columns(self) -> NameColumns | None:
        """The columns that have names, sizes and ranges."""
        return self.names.columns

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Raise `OptionError`."""
        del stage, sink, checkpoint, notes
        msg = "what rows name is not known before they are read: a dry run, and `penstock check`, look at no files; leave files out"
        raise OptionError(msg)

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:
        """Return the splits of what is named."""
        return self.names.splits(spark, self.options, stage, _notes_of_names(location), tasks)

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning | None:
        """Return the planner of lists and of what an output publishes, which names files on this host; rows of a DataFrame are Spark's."""
        if not self.storage.of_this_host:
            return None
        packed = isinstance(stage.reading.form, TableFormat)
        return self.names.planner_here(self.options, stage, _notes_of_names(location), tasks, packed=packed)

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:  # noqa: ARG002 - one of `Input`
        """Return nothing: it is that of the rows."""
        return {}

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:  # noqa: ARG002 - one of `Input`
        """Return how many splits of lists are not as they were; a file that is named and changed is found by the task that reads it."""
        return self.names.changed(self.options, checkpoint, number)


@dataclass(frozen=True)
class TopicInput:
    """Topics of Kafka: planned and carried as ranges of offsets."""

    topics: Topics
    place: None = None
    storage: None = None
    columns: None = None

    @property
    def options(self) -> Mapping[str, str]:
        """What was given, the address as `path`."""
        return self.topics.given

    def read_schema(self, schema: Any, notes: SchemaNotes, committed: int) -> ReadSchema:  # noqa: ANN401 - DDL, or a StructType
        """Return the schema of values, or of Kafka's own rows."""
        return self.topics.read_schema(schema, notes, committed)

    def preview(self, stage: Stage, sink: Sink, checkpoint: Checkpoint, notes: list[str]) -> Preview:
        """Return what asks the brokers how far the topics are."""
        carried = _carried(checkpoint.location)
        return TopicPreview(None, self.options, stage, sink, checkpoint, carried, notes=notes, topics=self.topics)

    def frame(self, spark: SparkSession, stage: Stage, location: str, tasks: int) -> DataFrame:  # noqa: ARG002 - one of `Input`
        """Return the ranges that the source of topics plans."""
        return self.topics.frame(spark, tasks)

    def planner_here(self, stage: Stage, location: str, tasks: int) -> Planning:  # noqa: ARG002 - one of `Input`
        """Return the planner of topics: what a broker that goes for a while needs is the client's patience, not Spark's."""
        return TopicPlanning(self.topics.planner(tasks), self.topics.options["minPartitions"] or tasks)

    def offset(self, checkpoint: Checkpoint, number: int) -> dict[str, Any]:
        """Return the positions in all partitions."""
        return topic_offset(checkpoint, number)

    def changed(self, stage: Stage, checkpoint: Checkpoint, number: int) -> int:  # noqa: ARG002 - one of `Input`
        """Return 0: records of a topic do not change, and what retention has taken is found by the task that reads it."""
        return 0


def _notes_of_names(location: str) -> str:
    return f"{location}/penstock/named"


def _carried(location: str) -> dict[str, str]:
    """Return the source options that make splits of the plan."""
    return {"emit": SPLITS, "stateLocation": f"{location}/penstock"}


def _is_strict(source: Mapping[str, Any]) -> bool:
    """Tell whether SRC has to be there; what the option may be is checked with all others."""
    given = next((value for name, value in source.items() if name.lower() == "strictmode"), True)
    return text("strictMode", given).lower() != "false"


def _absolute(source: dict[str, Any]) -> tuple[str, ...]:
    """Return the further paths of a source; from now on they, and what they lie in, are absolute: other processes read them."""
    by_name = {name.lower(): name for name in source}
    if (name := by_name.get("basepath")) is not None:
        source["basePath"] = locate(source.pop(name), name="basePath")[1]
    name = by_name.get("paths")
    if name is None:
        return ()
    paths = [locate(path, name="paths")[1] for path in path_list(text(name, source.pop(name)), "paths")]
    source["paths"] = json.dumps(paths)
    return tuple(paths)
