"""`penstock.read_files`: the records of the files that the rows of a DataFrame name, streaming or batch.

Two maps of Arrow batches, and between them an exchange of what is small: the first makes splits of names (see `source.named`),
which Spark deals out to its tasks, so that one row that names a large file keeps all of them busy, and the second reads. No row
comes to the driver.

The exchange deals rows out by what they hold, so that a task that is tried again has the same ones.
"""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Any

import xxhash
from pyspark.sql import DataFrame
from pyspark.sql.types import IntegralType, StringType, StructField, StructType, TimestampType

from penstock.arguments import flag, named
from penstock.errors import OptionError
from penstock.formats.schema import to_spark
from penstock.options.formats import DEFAULT
from penstock.session import ddl
from penstock.session.connect import require_driver
from penstock.session.zone import time_zone
from penstock.source.named import OPTIONS, SPLIT, NamedFiles, NamingColumns
from penstock.source.pinned import Moment, Pins, pins
from penstock.source.schemas import INFER, default_schema
from penstock.spark.border import leaving
from penstock.spark.task import task_place, task_run
from penstock.spark.worker import settle_reader
from penstock.storage import locate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

# What a column must be of that says something of a file, by what it says; and in words.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "path": ((StringType,), "string"),
    "start": ((IntegralType,), "bigint"),
    "end": ((IntegralType,), "bigint"),
    "size": ((IntegralType,), "bigint"),
    "modified": ((TimestampType, IntegralType), "timestamp, or bigint (nanoseconds since 1970)"),
    "identity": ((StringType,), "string"),
}
_IF_THERE = ("size", "modified", "identity")


@named
def read_files(  # noqa: PLR0913 - what users are promised
    df: DataFrame,
    *,
    path: str = "path",
    format: str = DEFAULT,  # noqa: A002 - as the option is called
    schema: Any = None,  # noqa: ANN401 - DDL or a StructType
    keep_input: bool = True,
    start: str | None = None,
    end: str | None = None,
    size: str | None = "size",
    modified: str | None = "modified",
    identity: str | None = "identity",
    **options: Any,  # noqa: ANN401 - those of the source, checked by its table
) -> DataFrame:
    """Return the records of the files that the rows of `df` name in the column `path`; streaming and batch alike.

    `format` and `schema` (DDL or StructType; text and binary need none) are those of the files, and `options` are those of the source
    that say how a file is read: dialects, encodings, `splitSize`, `badRecords`, `badFiles`, `changedFiles`, `badRecordColumn`,
    `metadataColumn` and the like.

    - `keep_input=True`: the columns of the row come first, with each record of its file.
    - `start`, `end`: columns; only the records that begin in the bytes from `start` (inclusive) to `end` (exclusive). Null: where the
      file begins, and where it ends. Ranges that lie edge to edge give each record once.
    - `size`, `modified`, `identity`: columns, where there are such, of what the row says of the file, as the rows of `emit=files`
      do. What is there must be that version, or it is a changed file (`changedFiles`). `None`: they say nothing of it.

    A path is an absolute one or a URL, and names that very file, hidden or not. With the option `basePath` it may be relative to that,
    must lie below it, and directories `k=v` below it are columns. Files of several storages may be mixed. What is missing, is
    a directory, leads out of `basePath` or cannot be read fails the query, or is set aside (`badFiles`).

    Large files are cut into ranges of `splitSize`, for as many tasks as the session has (`tasks`); small ones are read together.
    Records of one range are in their order, nothing else is.

    A stream may be replayed. Where rows say size and modification time, a replay reads the same bytes or fails with `FileChanged`.
    Else, or where files are set aside, the option `stateLocation` is needed: a directory, of this query alone, for notes of what
    was found.

    Everything that can be is checked here: `OptionError`. Tasks raise `BadFile`, `BadRecord`, `FileChanged` and `StorageError`.
    """
    given: object = df
    if not isinstance(given, DataFrame):
        msg = f"read_files: df is a {type(df).__name__}; expected Spark's DataFrame of rows that name files"
        raise OptionError(msg)
    require_driver(df, "read_files")
    keep = flag(keep_input, name="keep_input")
    asked = {"path": path, "start": start, "end": end, "size": size, "modified": modified, "identity": identity}
    columns = _columns(df, asked)
    files = _named_files(df, columns, format, schema, options)
    place = _notes_place(df, files)
    context = df.sparkSession.sparkContext
    tasks = files.options["tasks"] or context.defaultParallelism
    run, streams = context.applicationId, df.isStreaming

    def notes() -> Pins | None:
        query, batch, partition = task_place()
        if place is None or query is None or batch is None:
            return None
        # The run of a query is its job group, which a program may have set; one of another driver is another run all the same.
        name = xxhash.xxh3_64_hexdigest(f"{run} {task_run()}".encode())
        return pins(locate(place, name="stateLocation"), Moment(query, batch, partition, name))

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_reader()
        return files.splits(batches, notes(), keep=keep, replays=streams)

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        settle_reader()
        return files.records(batches)

    # To `mapInArrow` the name `a.b` is a part of `a`, and a name that is there twice is nothing.
    placed = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    kept = placed.schema.fields if keep else []
    splits = placed.mapInArrow(leaving(split), StructType([StructField(SPLIT, StringType()), *kept]))
    outputs = StructType.fromJson(json.loads(to_spark(files.schema)))
    fields = StructType([*(df.schema.fields if keep else ()), *outputs.fields])
    _distinct(fields.names)
    return splits.repartition(tasks).mapInArrow(leaving(read), fields)


_own = inspect.signature(read_files)
_known = dict.fromkeys(
    name for option in OPTIONS for name in (option.name, *option.aliases) if name not in _own.parameters
)
read_files.__signature__ = _own.replace(  # type: ignore[attr-defined]  # what help() and editors tell of it, and what is misspelt
    parameters=[
        *(given for given in _own.parameters.values() if given.kind is not inspect.Parameter.VAR_KEYWORD),
        *(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in _known),
    ]
)


def _columns(df: DataFrame, asked: Mapping[str, str | None]) -> NamingColumns:
    """Return the places of the columns that say something of a file; `OptionError` for one that is not there, or of another type."""
    places: dict[str, int] = {}
    for parameter, column in asked.items():
        if column is None and parameter != "path":
            continue
        if not isinstance(column, str):
            msg = f"read_files: {parameter}={column!r}; expected the name of a column"
            raise OptionError(msg)
        count = df.columns.count(column)
        if not count and parameter in _IF_THERE and column == parameter:
            continue  # the default, and rows do not say
        if count != 1:
            shown = "is no column" if not count else f"are {count} columns"
            msg = f"read_files: {parameter}={column!r}: there {shown} of that name; expected one of {', '.join(df.columns) or '(none)'}"
            raise OptionError(msg)
        places[parameter] = df.columns.index(column)
        _check_type(df, parameter, column, places[parameter])
    return NamingColumns(**places)


def _check_type(df: DataFrame, parameter: str, column: str, place: int) -> None:
    kinds, words = _TYPES[parameter]
    kind = df.schema.fields[place].dataType
    if not isinstance(kind, kinds):
        other = f"; or {parameter}=None, if it says nothing of the file" if parameter in _IF_THERE else ""
        msg = f"read_files: {parameter}={column!r} is {kind.simpleString()}; expected {words}{other}"
        raise OptionError(msg)


def _named_files(df: DataFrame, columns: NamingColumns, form: str, schema: Any, given: Mapping[str, Any]) -> NamedFiles:  # noqa: ANN401 - what the user gave
    """Return how files are read. Raises `OptionError`."""
    if schema == INFER:
        msg = "read_files: schema='infer' would have to look at files that no row has named yet; `penstock schema` prints that of a sample"
        raise OptionError(msg)
    whole = {"sessionTimeZone": time_zone(df.sparkSession), "format": form} | dict(given)
    if schema is None:
        schema = default_schema(NamedFiles.checked(whole)[0])
    modified = None if columns.modified is None else df.schema.fields[columns.modified].dataType
    return NamedFiles.of(whole, ddl.schema_json(schema), columns, nanoseconds=isinstance(modified, IntegralType))


def _notes_place(df: DataFrame, files: NamedFiles) -> str | None:
    """Return where notes are kept; `OptionError` for a stream that needs some and has no place."""
    location = files.options["stateLocation"]
    if location is not None:
        return locate(location, name="stateLocation")[1]
    if df.isStreaming and files.needs_notes:
        why = (
            "files that are set aside may be there when a batch is replayed"
            if files.says_version
            else "rows do not say which version of a file they mean (size and modified)"
        )
        msg = f"read_files: {why}: set the option stateLocation, a directory of this query alone for notes of what was found"
        raise OptionError(msg)
    return None


def _distinct(names: list[str]) -> None:
    """Refuse columns that Spark could not tell apart."""
    lower = [name.lower() for name in names]
    for name in names:
        if lower.count(name.lower()) > 1:
            msg = f"read_files: the output would have two columns {name!r}; rename one, or take keep_input=False"
            raise OptionError(msg)
