"""Turns rows that name files into splits, and distributes these to the tasks that read: for `read_files` and ingests.

The tasks that look at the files make the splits. Only the small splits are exchanged, so one row that names a large file keeps
all tasks busy. No row goes to the driver. The exchange distributes rows by their contents, so a task that is tried again gets the
same rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    IntegralType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    YearMonthIntervalType,
)

from penstock.errors import OptionError
from penstock.ingestion.looks import NameLook
from penstock.session.connect import application
from penstock.session.leaving import mapped
from penstock.source.named import NameColumns, NamedFiles, NamingColumns
from penstock.source.splitruns import SPLIT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa
    from pyspark.sql import DataFrame

# The types that a column about files may have, by what it says about a file; and these types in words.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "path": ((StringType,), "string"),
    "start": ((IntegralType,), "bigint"),
    "end": ((IntegralType,), "bigint"),
    "size": ((IntegralType,), "bigint"),
    "modified": ((TimestampType, IntegralType), "timestamp, or bigint (nanoseconds since 1970)"),
    "identity": ((StringType,), "string"),
}
_IF_THERE = ("size", "modified", "identity")


def split_frame(df: DataFrame, files: NamedFiles, place: str | None, *, keep: bool, tasks: int) -> DataFrame:
    """Return the splits of the files that the rows of `df` name, distributed to `tasks` tasks; with `keep`, beside the columns of the rows.

    `place` is the directory for notes of what was found, `None` if none are needed.
    """
    # `mapInArrow` takes `a.b` for a member of `a`, and does not allow a name twice.
    placed = df.toDF(*(f"c{number}" for number in range(len(df.columns))))
    if not keep:  # other columns may be large, or of a type that cannot be passed to Python
        chosen = sorted({place for place in files.columns if place is not None})
        placed = placed.select(*(f"c{number}" for number in chosen))
        places = {name: chosen.index(place) for name, place in files.columns._asdict().items() if place is not None}
        files = replace(files, columns=NamingColumns(**places))
    look = NameLook(files, place, application(df.sparkSession), df.isStreaming)

    def split(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return look.splits(batches, keep=keep)

    kept = placed.schema.fields if keep else []
    splits = mapped(placed, split, StructType([StructField(SPLIT, StringType()), *kept]))
    return splits.repartition(tasks)


def naming_frame(df: DataFrame) -> tuple[DataFrame, NameColumns]:
    """Return the columns of a stream that say something about files, and what each says. Raises `OptionError`."""
    asked = {name: name if name in df.columns or name == "path" else None for name in NamingColumns._fields}
    given = naming_columns(df, asked, "ingest: files")
    if not df.isStreaming:
        msg = (
            "ingest: files is a DataFrame that is not a stream, and no checkpoint could say how far it was read; expected one of "
            "spark.readStream, such as spark.readStream.table(...); the files that such rows name can be read by penstock.read_files"
        )
        raise OptionError(msg)
    places = {name: place for name, place in given._asdict().items() if place is not None}
    frame = df.select(*places)
    modified = None if given.modified is None else df.schema.fields[given.modified].dataType
    columns = NamingColumns(**{name: number for number, name in enumerate(places)})
    return frame, NameColumns(columns, isinstance(modified, IntegralType))


def naming_columns(df: DataFrame, asked: Mapping[str, str | None], caller: str) -> NamingColumns:
    """Return the places of the columns that say something about files; `OptionError` if one is missing or has another type.

    `asked` are the names of the columns, by what they say. `caller` is the user's function, for messages.
    """
    places: dict[str, int] = {}
    for parameter, column in asked.items():
        if column is None and parameter != "path":
            continue
        if not isinstance(column, str):
            msg = f"{caller}: {parameter}={column!r}; expected the name of a column"
            raise OptionError(msg)
        count = df.columns.count(column)
        if not count and parameter in _IF_THERE and column == parameter:
            continue  # the default name, and the rows have no such column
        if count != 1:
            shown = "is no column" if not count else f"are {count} columns"
            msg = f"{caller}: {parameter}={column!r}: there {shown} of that name; expected one of {', '.join(df.columns) or '(none)'}"
            raise OptionError(msg)
        places[parameter] = df.columns.index(column)
        _check_type(df, parameter, places[parameter], caller)
    return NamingColumns(**places)


def check_kept(df: DataFrame) -> None:
    """Raise `OptionError` for a column that cannot be kept beside records, because Spark passes no values of its type to Python workers."""
    for field in df.schema.fields:
        if (kind := _held_back(field.dataType)) is not None:
            msg = (
                f"read_files: the column {field.name!r} is {field.dataType.simpleString()}, and Spark hands no {kind.simpleString()} to "
                "Python; cast it, drop it, or set keep_input=False"
            )
            raise OptionError(msg)


def _held_back(kind: DataType) -> DataType | None:
    """Return the part of a type that Spark does not pass to Python workers, if there is one."""
    if isinstance(kind, (YearMonthIntervalType, CalendarIntervalType)):
        return kind
    parts: list[DataType] = []
    if isinstance(kind, StructType):
        parts = [field.dataType for field in kind.fields]
    elif isinstance(kind, ArrayType):
        parts = [kind.elementType]
    elif isinstance(kind, MapType):
        parts = [kind.keyType, kind.valueType]
    return next((held for held in map(_held_back, parts) if held is not None), None)


def _check_type(df: DataFrame, parameter: str, place: int, caller: str) -> None:
    kinds, words = _TYPES[parameter]
    column, kind = df.columns[place], df.schema.fields[place].dataType
    if not isinstance(kind, kinds):
        other = f"; or {parameter}=None, if it says nothing of the file" if parameter in _IF_THERE else ""
        advice = f'; make such a column: df.selectExpr("{_made(column, kind, kinds[0])} as {parameter}")'
        msg = f"{caller}: {parameter}={column!r} is {kind.simpleString()}; expected {words}{advice}{other}"
        raise OptionError(msg)


def _made(column: str, kind: DataType, wanted: type) -> str:
    """Return an SQL expression that makes the wanted type from a column of another type."""
    quoted = f"`{column.replace('`', '``')}`"
    if isinstance(kind, StructType):
        names = [field.name for field in kind.fields if isinstance(field.dataType, wanted)] or ["member"]
        return f"{quoted}.`{names[0].replace('`', '``')}`"
    if isinstance(kind, ArrayType):
        return f"explode({quoted})"
    spelt = {StringType: "string", TimestampType: "timestamp"}.get(wanted, "bigint")
    return f"cast({quoted} as {spelt})"
